"""What the restarts of the controller's jobs cost: measured at their reports, believed for the next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from synergyd.control.resize.lifecycle import ResizeTimes
from synergyd.control.resize.restart_account import bytes_per_writer, measured, words
from synergyd.control.tracked import Output, Remember, Tracked
from synergyd.job_report import Report
from synergyd.records import Job, Profile
from synergyd.restarts import JobRestarts, RestartCost
from synergyd.task.restart_cost import RestartCosts

_KNOWN = 2  # restarts of a job after which the time that its checkpoints take is known


@dataclass
class Restarts:
    """Of all jobs. `costs`: what is kept of each program."""

    times: ResizeTimes
    epoch_s: float
    costs: RestartCosts = field(init=False)

    def __post_init__(self) -> None:
        self.costs = RestartCosts(self.times.restart_cost_s)

    def of(self, jobs: Iterable[Job], tracked: Mapping[int, Tracked], now_s: float) -> dict[int, JobRestarts]:
        """By job id: what the next restart of each would cost, and what those that Synergy chose have taken so far."""
        found = {}
        for job in jobs:
            if job.directive is not None and (one := tracked.get(job.job_id)) is not None:
                account = one.lifecycle.restart
                lost_s, life_s = account.spent_s(now_s), account.life_s(now_s)
                found[job.job_id] = JobRestarts(cost=self.cost(one, job), lost_s=lost_s, life_s=life_s)
        return found

    def cost(self, tracked: Tracked, job: Job) -> RestartCost:
        """Of the job's next restart."""
        size = bytes_per_writer(tracked.report) or tracked.lifecycle.restart.bytes_per_writer
        return self.costs.cost(job, size)

    def lead_s(self, tracked: Tracked) -> float:
        """How long before its end the job is asked for a checkpoint: what its own have taken tells, else the longest that is waited."""
        longest_s = self.times.lead_s
        if tracked.job is None or (cost := self.cost(tracked, tracked.job)).own < _KNOWN:
            return longest_s
        surely_s = 2 * (cost.checkpoint_s + 3 * cost.checkpoint_spread_s)
        return min(longest_s, surely_s + 2 * self.epoch_s)

    def measure(self, tracked: Tracked, report: Report, now_s: float) -> tuple[dict[str, Profile], list[Output]]:
        """(what to store, what to tell) where the job has come back from a restart, by its report."""
        life, job = tracked.lifecycle, tracked.job
        began = tracked.began[2] if tracked.began is not None and tracked.began[0] == report.restarts else report.step
        account, times = measured(life, report, began, now_s)
        if account is life.restart or job is None:
            return {}, []
        tracked.lifecycle = replace(life, restart=account)
        in_place = life.restart.under_way is not None and life.restart.under_way.in_place
        told = () if times.first and not in_place else (words(times),)
        # what a restart in place takes says nothing of a requeue
        return {} if in_place else self.costs.learn(job, times), [
            Remember(tracked.lifecycle, life.state, "Restarted", told)
        ]
