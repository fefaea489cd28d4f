"""A small cluster that is played epoch by epoch: honest jobs and one that may lie. The daemon's own controller, planner and
`decide` stand over jobs whose true pace is known here alone; a decision is carried out at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from synergy_core.job_report import Report
from synergy_core.records import Cluster, Decision, Directive, Job, JobState, Node, Plan, Profile, Shape, Snapshot

from synergyd.control.controller import Controller
from synergyd.control.resize.events import JobObserved, Observed, ReportsReceived, SnapshotTaken
from synergyd.control.resize.lifecycle import make_resize_times
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.learning import coarse
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.throughput import ThroughputModel
from synergyd.settings import Settings
from tests.unit.scheduler.epochs import decide

GPU = figures("a100")
LIAR = 1
START_S, EPOCH_S, RESTART_S = 1_000_000.0, 600.0, 60.0
REPORTS = 3  # of each epoch

#: a report as it is told, of the true one and of the job as it stands
Tale = Callable[[Report, "Played"], Report]


def truth(report: Report, job: Played) -> Report:
    return report


@dataclass(kw_only=True)
class Played:
    """One job: what Slurm shows of it, how it truly trains, and what it tells."""

    job: Job
    pace: ThroughputModel
    total: float
    noise_scale: float
    tale: Tale = truth
    plan: Plan | None = None
    done: float = 0.0
    gpu_s: float = 0.0
    steps: int = 0

    @property
    def smallest_batch(self) -> int:
        directive = self.job.directive
        assert directive is not None and directive.global_batch is not None
        return directive.global_batch[0]

    def step_s(self) -> float:
        plan, shape = self.plan, self.job.shape
        assert plan is not None
        return self.pace.step_s(GPU, shape, plan.dp, plan.micro_batch, plan.micro_batches)

    def train(self, seconds: float) -> None:
        assert self.plan is not None
        batch, phi = self.plan.global_batch, self.noise_scale
        steps = seconds / self.step_s()
        self.steps += int(steps)
        self.done += steps * batch * (phi + self.smallest_batch) / (phi + batch)
        self.gpu_s += seconds * self.job.shape.gpus

    def report(self) -> Report:
        true = Report(
            self.job.job_id,
            self.job.restarts,
            step=self.steps,
            step_s=self.step_s(),
            noise_scale=self.noise_scale,
            plan=self.plan,
            done=self.done,
            total=self.total,
            rebatching=True,
        )
        return self.tale(true, self)


def played(job_id: int, **changes: object) -> Played:
    """A plain PyTorch job of a user of its own; no two have quite the same pace."""
    shape = Shape("a100", 1, 4)
    directive = replace(Directive(global_batch=(64, 1024), max_micro_batch=64), **changes)  # type: ignore[arg-type]
    job = Job(
        job_id=job_id,
        name=f"run{chr(96 + job_id)}",
        user=f"user{job_id}",
        uid=1000 + job_id,
        partition="",
        state=JobState.PENDING,
        reason="",
        submit_s=START_S,
        start_s=None,
        begin_s=None,
        restarts=0,
        shape=shape,
        asked=shape,
        directive=directive,
    )
    pace = ThroughputModel(sample_flops=25e9 * (1 + 0.03 * job_id), overhead_s=0.01 + 0.0005 * job_id)
    return Played(job=job, pace=pace, total=5e7, noise_scale=500.0 + 10 * job_id)


@dataclass
class Play:
    """`run` goes through `epochs` epochs of ten minutes. No job ends in it."""

    jobs: list[Played]
    settings: Settings
    nodes: int = 4
    gpus_a_node: int = 8
    now_s: float = START_S
    decisions: dict[int, Decision] = field(default_factory=dict)  # of the last epoch

    def __post_init__(self) -> None:
        self.controller = Controller(make_resize_times(self.settings), EPOCH_S)

    def run(self, epochs: int = 18) -> Play:
        for one in self.jobs:
            self.controller.handle(JobObserved(one.job.job_id, START_S, Observed("PENDING")), self.now_s)
        for _ in range(epochs):
            self._epoch()
        return self

    def cluster(self) -> Cluster:
        held: dict[str, int] = {}
        for one in self.jobs:
            for name in one.job.node_names:
                held[name] = held.get(name, 0) + one.job.shape.gpus_per_node
        nodes = (Node(f"n{i}", "a100", self.gpus_a_node, held.get(f"n{i}", 0)) for i in range(self.nodes))
        return Cluster(tuple(nodes))

    def _epoch(self) -> None:
        jobs, cluster = tuple(one.job for one in self.jobs), self.cluster()
        snapshot = Snapshot(self.now_s, cluster, jobs, self.controller.profiles)
        self.controller.handle(SnapshotTaken(snapshot, EPOCH_S), self.now_s)
        believed = self.controller.believed_profiles(jobs)
        planners = {
            one.job.job_id: JobPlanner(one.job, coarse(believed[one.job.job_id]), None, {"a100": GPU}, one.plan)
            for one in self.jobs
        }
        found = decide(
            snapshot,
            self.settings,
            {i: planner.cells(cluster) for i, planner in planners.items()},
            {},
            {one.job.job_id: one.plan for one in self.jobs if one.plan is not None},
            self.controller.ages_s(self.now_s),
            progress=self.controller.progress(jobs),
            typical_s=self.controller.durations.typical_s,
        )
        self.decisions = {decision.job_id: decision for decision in found}
        for one in self.jobs:
            self._carry_out(one, self.decisions[one.job.job_id])
        self.now_s += EPOCH_S

    def _carry_out(self, one: Played, decision: Decision) -> None:
        cell, seconds = decision.cell, EPOCH_S
        if cell is None:
            if one.job.state is JobState.RUNNING:
                asked = one.job.asked
                one.job = replace(one.job, state=JobState.PENDING, shape=asked, node_names=(), start_s=None)
            return
        if (cell.shape, decision.node_names) != (one.job.shape, one.job.node_names):
            again = one.done > 0
            seconds -= RESTART_S
            one.job = replace(
                one.job,
                state=JobState.RUNNING,
                shape=cell.shape,
                node_names=decision.node_names,
                start_s=self.now_s,
                restarts=one.job.restarts + again,
            )
            if again:
                one.gpu_s += RESTART_S * cell.shape.gpus
            self.controller.jobs[one.job.job_id].lifecycle = replace(
                self.controller.jobs[one.job.job_id].lifecycle, incarnation=one.job.restarts
            )
        one.plan = cell.plan
        for part in range(1, REPORTS + 1):
            one.train(seconds / REPORTS)
            report = one.report()
            planner = JobPlanner(one.job, Profile(), None, {"a100": GPU}, one.plan)
            event = ReportsReceived((report,), report.restarts, planner.predict(one.job.shape, one.plan), one.job.shape)
            self.controller.handle(event, self.now_s + EPOCH_S * part / REPORTS)
