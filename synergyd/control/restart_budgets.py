"""The cost of restarts: measured at the jobs' reports, believed for the next. Pure.

A requeue and a change that the job's launchers make while it runs (live, in place) cost differently, and each is learnt from its own
measurements. A job is priced by the second where every other size of it is one of other whole nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from synergy_core.job_report import Report
from synergy_core.records import Cluster, Job, JobState, Profile
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.control.in_place import can_grow_live, can_shrink_live
from synergyd.control.resize.lifecycle import ResizeTimes
from synergyd.control.resize.restart_accounting import bytes_per_writer, measure, restart_message
from synergyd.control.tracked import Output, Remember, TrackedJob
from synergyd.jobmodel.restart_cost import LIVE_PREFIX, RestartCostModel

_KNOWN = 2  # restarts of a job after which the time that its checkpoints take is known


@dataclass
class RestartBudgets:
    """The restarts of all jobs. `costs`: what is kept of each program's requeues; `live_costs`: of its changes without one.

    `cluster`: as it was seen last. `live`: nodes may join and leave running jobs.
    """

    times: ResizeTimes
    epoch_s: float
    live: bool = True
    cluster: Cluster = field(default_factory=lambda: Cluster(()))
    costs: RestartCostModel = field(init=False)
    live_costs: RestartCostModel = field(init=False)

    def __post_init__(self) -> None:
        self.costs = RestartCostModel(self.times.restart_cost_s)
        self.live_costs = RestartCostModel(self.times.restart_cost_s, LIVE_PREFIX)

    def compute(self, jobs: Iterable[Job], tracked: Mapping[int, TrackedJob], now_s: float) -> dict[int, RestartBudget]:
        """Return by job id what the next restart of each job would cost, and what those that Synergy chose have taken so far."""
        budgets = {}
        for job in jobs:
            if job.directive is not None and (one := tracked.get(job.job_id)) is not None:
                account = one.lifecycle.restart_history
                lost_s, life_s = account.spent_s(now_s), account.life_s(now_s)
                every_change = self._changes_live(one, job)
                cost, live_cost = self._cost(one, job, every_change), None
                if self.live and not every_change and can_change_live(one, job):
                    live_cost = self._cost(one, job, live=True)
                budgets[job.job_id] = RestartBudget(cost=cost, live_cost=live_cost, lost_s=lost_s, life_s=life_s)
        return budgets

    def expected_cost(self, tracked: TrackedJob, job: Job) -> RestartCost:
        """Return the believed cost of the job's next restart."""
        return self._cost(tracked, job, self._changes_live(tracked, job))

    def _changes_live(self, tracked: TrackedJob, job: Job) -> bool:
        return self.live and changes_live(tracked, job, self.cluster)

    def _cost(self, tracked: TrackedJob, job: Job, live: bool) -> RestartCost:
        return (self.live_costs if live else self.costs).cost(job, self._writer_bytes(tracked))

    def _writer_bytes(self, tracked: TrackedJob) -> float | None:
        return bytes_per_writer(tracked.report) or tracked.lifecycle.restart_history.bytes_per_writer

    def load(self, profiles: Mapping[str, Profile]) -> None:
        """Load the restarts that an earlier daemon has stored."""
        self.costs.load(profiles)
        self.live_costs.load(profiles)

    def forget(self, job_id: int) -> None:
        """Drop the state of a job that has ended. The restarts that it has taught stay."""
        self.costs.forget(job_id)
        self.live_costs.forget(job_id)

    def lead_s(self, tracked: TrackedJob) -> float:
        """Return how many seconds before its end the job is asked for a checkpoint: by what its own have taken, else the longest wait."""
        longest_s = self.times.lead_s
        if tracked.job is None or (cost := self.expected_cost(tracked, tracked.job)).own < _KNOWN:
            return longest_s
        surely_s = 2 * (cost.checkpoint_s + 3 * cost.checkpoint_spread_s)
        return min(longest_s, surely_s + 2 * self.epoch_s)

    def measure(self, tracked: TrackedJob, report: Report, now_s: float) -> tuple[dict[str, Profile], list[Output]]:
        """Return (what to store, what to tell) if the job has come back from a restart, by its report."""
        life, job = tracked.lifecycle, tracked.job
        began = (
            tracked.first_report[2]
            if tracked.first_report is not None and tracked.first_report[0] == report.restarts
            else report.step
        )
        account, times = measure(life, report, began, now_s)
        if account is life.restart_history or job is None:
            return {}, []
        tracked.lifecycle = replace(life, restart_history=account)
        in_place = life.restart_history.under_way is not None and life.restart_history.under_way.in_place
        story = () if times.is_first_start and not in_place else (restart_message(times),)
        if in_place:  # none of them is the incarnation's first start
            number = max(1, life.orders)
            learnt_profiles = self.live_costs.learn(job, replace(times, restarts=number, requeue_s=0.0))
        else:
            learnt_profiles = self.costs.learn(job, times)
        return learnt_profiles, [Remember(tracked.lifecycle, life.state, "Restarted", story)]


def can_change_live(tracked: TrackedJob, job: Job) -> bool:
    """Return whether nodes like those of the running job can join it and leave it without a requeue."""
    life = tracked.lifecycle
    if job.state is not JobState.RUNNING or life.live_refusal or life.join_refusal:
        return False
    return (can_shrink_live(tracked) or job.shape.nodes == 1) and can_grow_live(tracked)


def changes_live(tracked: TrackedJob, job: Job, cluster: Cluster) -> bool:
    """Return whether the running job's launchers can take it to any other size that it may have.

    They move it by whole nodes, so it must have whole nodes now, of the only type that it may have, and may not get smaller than one.
    """
    directive = job.directive
    if directive is None or not can_change_live(tracked, job):
        return False
    types = directive.gpu_types or cluster.gpu_types()
    largest = max((gpus for kind, gpus, *_ in cluster.kinds if kind == job.shape.gpu_type), default=0)
    whole = job.shape.gpus_per_node == largest and (directive.min_gpus or 1) >= largest
    return whole and set(types) <= {job.shape.gpu_type}
