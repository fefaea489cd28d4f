"""What the scheduler believes of the simulated jobs: the daemon's own JobPlanner, taught by reports; or, where a run asks
for an oracle, the truth itself in the same form."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synergyd.errors import UsageError
from synergyd.exchange import EXACT, Exchange
from synergyd.job_report import Report
from synergyd.records import Cell, Cluster, Directive, Job, JobState, Measurement, ModelSpec, Plan, Profile, Shape
from synergyd.scheduler.problem.records import Progress
from synergyd.sim.exchanging_truth import told_worth
from synergyd.sim.records import TraceJob, asked_shape, placed_on
from synergyd.sim.world import Live
from synergyd.task.exchange_choice import ExchangeChoice
from synergyd.task.fit.population import UserPriors
from synergyd.task.job_planner import JobPlanner
from synergyd.task.learning import CoarseProfiles
from synergyd.task.model.exchange_cost import prior_worth
from synergyd.task.model.hardware import GpuFigures, figures
from synergyd.task.model.spec import load_model
from synergyd.task.model.throughput import ThroughputPrior, fit_ahead
from synergyd.task.shapes import job_shapes

REPORT_EVERY_S = 10.0  # what the agent keeps to
_FIRST_SPEED_STEPS = 3  # after so many an agent states the time of a step
_AT_MOST = 12  # of one pace: more of them teach nothing more
REPORT_NOISE = 0.01  # one sigma of a reported step time, relative


class _Asked(NamedTuple):
    """What a job's Cells depend on."""

    directive: Directive | None
    asked: Shape
    shape: Shape
    profile: Profile
    present: Plan | None
    kinds: tuple[object, ...]
    prior: ThroughputPrior


@dataclass
class LearntBelief:
    """Jobs report as their agents would, and JobPlanner goes by nothing else. `figures` by GPU type."""

    figures: dict[str, GpuFigures] = field(default_factory=dict)
    seed: int = 0
    lengths: bool = True  # do jobs tell how far they are, of how much?
    learns: bool = True
    priors: UserPriors = field(default_factory=UserPriors)
    _cells: dict[int, tuple[_Asked, tuple[Cell, ...], str]] = field(default_factory=dict)
    _coarse: CoarseProfiles = field(default_factory=CoarseProfiles)
    _models: dict[str, ModelSpec] = field(default_factory=dict)
    _reported_s: dict[int, tuple[int, float]] = field(default_factory=dict)  # the incarnation that has last, and when

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def reports(self, live: Live, job: Job, until_s: float, stops: bool = False) -> tuple[Report, ...]:
        """The reports of a running job since its last ones, as its launcher would send them; none while none is due.

        The first one of an incarnation, as its training begins, says no more than that. One follows as soon as the time of a step
        is known, then one each REPORT_EVERY_S, and one more as the job `stops` for a checkpoint.
        """
        assert live.pace is not None and live.plan is not None
        first_s = live.ready_s + _FIRST_SPEED_STEPS * live.pace.step_s
        restarts, before_s = self._reported_s.get(job.job_id, (-1, 0.0))
        if restarts != job.restarts:
            before_s = -math.inf
        if until_s < first_s:
            due = 0
        elif before_s < first_s:
            due = 1 + int((until_s - first_s) / REPORT_EVERY_S)
            before_s = first_s - REPORT_EVERY_S
        else:
            due = int((until_s - before_s) / REPORT_EVERY_S)
            due += stops and due == 0
        if due < 1:
            if restarts == job.restarts:
                return ()
            self._reported_s[job.job_id] = job.restarts, -math.inf
            return (Report(job.job_id, job.restarts, step=0, plan=live.plan),)
        self._reported_s[job.job_id] = job.restarts, min(until_s, before_s + due * REPORT_EVERY_S)
        return tuple(
            Report(
                job.job_id,
                job.restarts,
                step=0,
                step_s=live.pace.step_s * self._noisy(),
                noise_scale=None if live.pace.noise_scale is None else live.pace.noise_scale * self._noisy(),
                plan=live.plan,
                trained_s=until_s - live.ready_s,
                comm="" if live.plan.exchange == str(EXACT) else live.plan.exchange,
                comm_efficiency=told_worth(live.plan),
            )
            for _ in range(min(due, _AT_MOST))
        )

    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]]) -> None:
        """Learn what each user's next jobs are taken for, after what that user's `programs` have measured."""
        self.priors.learn(programs, lambda gpu_type: self._all(gpu_type)[gpu_type])

    def predicted(self, live: Live, job: Job, profile: Profile) -> tuple[float, int] | None:
        """(step seconds, peak bytes) that the bare model predicts of what the job runs with."""
        assert live.plan is not None
        return JobPlanner(job, profile, self._model(live.job), self._all(job.shape.gpu_type)).predict(
            job.shape, live.plan
        )

    def _noisy(self) -> float:
        return math.exp(self._random.gauss(0.0, REPORT_NOISE))

    def expect(self, jobs: Iterable[tuple[Live, Job, Profile]]) -> None:
        """The Cells of `jobs` are about to be asked for: fits what has changed, of all together."""
        jobs = tuple(jobs)
        self._coarse.renew(
            {job.job_id: profile for _, job, profile in jobs},
            {job.job_id: self.priors.of(job.uid) for _, job, _ in jobs},
        )
        wanted = []
        for live, job, profile in jobs:
            if profile.measured:
                in_use = self._coarse.of(job.job_id, profile, self.priors.of(job.uid))
                kept = self._cells.get(job.job_id)
                if kept is None or (kept[0].profile, kept[0].prior) != in_use:
                    task = JobPlanner(job, in_use[0], self._model(live.job), self.figures, prior=in_use[1])
                    wanted.append(task.to_fit())
        fit_ahead(one for one in wanted if one is not None)

    def cells(
        self, live: Live, job: Job, profile: Profile, present: Plan | None, cluster: Cluster
    ) -> tuple[tuple[Cell, ...], str]:
        """(Cells, why there are none)."""
        profile, prior = self._coarse.of(job.job_id, profile, self.priors.of(job.uid))
        key = _Asked(job.directive, job.asked, job.shape, profile, present, cluster.kinds, prior)
        kept = self._cells.get(job.job_id)
        if kept is not None and kept[0] == key:
            return kept[1], kept[2]
        for gpu_type in cluster.gpu_types():
            self._all(gpu_type)
        task = JobPlanner(job, profile, self._model(live.job), self.figures, present, prior=prior)
        cells = task.cells(cluster)
        why = "" if cells else task.why_no_cell(cluster)
        if (can_run := live.job.can_run) is not None:
            cells = tuple(cell for cell in cells if can_run(cell.shape))
            why = why or ("" if cells else "it fits on no shape of this cluster")
        self._cells[job.job_id] = key, cells, why
        return cells, why

    def progress(self, live: Live) -> Progress:
        """As told by the job's reports, the first of which makes it known."""
        known = self.lengths and live.job_id in self._reported_s
        return progressed(live) if known else Progress(attained_gpu_s=live.gpu_s)

    def forget(self, job_id: int) -> None:
        self._cells.pop(job_id, None)
        self._coarse.forget(job_id)
        self._reported_s.pop(job_id, None)

    def _all(self, gpu_type: str) -> Mapping[str, GpuFigures]:
        if gpu_type not in self.figures:
            self.figures[gpu_type] = figures(gpu_type)
        return self.figures

    def _model(self, job: TraceJob) -> ModelSpec | None:
        if job.spec is not None or job.model is None:
            return job.spec
        if job.model not in self._models:
            self._models[job.model] = load_model(job.model)
        return self._models[job.model]


@dataclass
class OracleBelief:
    """The truth of each job's present stage as Cells, and what is left of it."""

    learns: bool = False
    lengths: bool = True
    _kept: dict[int, tuple[object, tuple[Cell, ...]]] = field(default_factory=dict)

    def reports(self, live: Live, job: Job, until_s: float, stops: bool = False) -> tuple[Report, ...]:
        """An oracle learns nothing; its jobs report at once, and are waited for by nobody."""
        assert live.pace is not None
        trained_s, step_s = until_s - live.ready_s, live.pace.step_s
        return (Report(job.job_id, job.restarts, step=0, plan=live.plan, step_s=step_s, trained_s=trained_s),)

    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]]) -> None:
        """It knows."""

    def expect(self, jobs: Iterable[tuple[Live, Job, Profile]]) -> None:
        """It fits nothing."""

    def predicted(self, live: Live, job: Job, profile: Profile) -> tuple[float, int] | None:
        return None

    def cells(
        self, live: Live, job: Job, profile: Profile, present: Plan | None, cluster: Cluster
    ) -> tuple[tuple[Cell, ...], str]:
        key = live.stage, live.plan, job.shape, job.directive, cluster.kinds
        kept = self._kept.get(live.job_id)
        if kept is None or kept[0] != key:
            shapes = [shape for some in job_shapes(job, cluster).values() for shape in some]
            batch = fixed_batch(job)
            cells = self._best(live, shapes, batch, EXACT)
            choice = ExchangeChoice.of(job, profile, live.plan)
            if choice.looked_at:
                cells += choice.beside(cells, lambda option: self._best(live, shapes, batch, option))
            if live.plan is not None and job.state is JobState.RUNNING:
                # what it runs with now, so that a better batch on the same GPUs can be seen
                known = any((c.shape, c.plan) == (job.shape, live.plan) for c in cells)
                cells += [c for c in [_cell(live, job.shape, live.plan)] if c is not None and not known]
            kept = self._kept[live.job_id] = key, tuple(cells)
        return kept[1], "" if kept[1] else "nothing was measured within its limits"

    def progress(self, live: Live) -> Progress:
        return progressed(live)

    def forget(self, job_id: int) -> None:
        self._kept.pop(job_id, None)

    def _best(self, live: Live, shapes: Sequence[Shape], batch: int | None, option: Exchange) -> list[Cell]:
        """Of each shape, where replicas exchange by `option`; what that makes an example worth is not counted."""
        result = []
        for shape in shapes:
            plans = [plan for plan in live.job.truth.plans(shape, batch) if plan.exchange == str(option)]
            found = [c for plan in plans if (c := _cell(live, shape, plan))]
            if found:
                best = max(found, key=lambda c: c.goodput)
                worth = prior_worth(option, best.plan.dp)
                result.append(replace(best, efficiency=best.efficiency / worth, goodput=best.goodput / worth))
        return result


def progressed(live: Live) -> Progress:
    """What a job's reports say of it: how far it is, of how much."""
    truth = live.job.truth
    left = max(0.0, truth.end(truth.stages - 1) - live.progress)
    return Progress(live.gpu_s, left * truth.unit, live.progress * truth.unit)


def fixed_batch(job: Job) -> int | None:
    """The batch that a directive fixes; None if it leaves a range."""
    said = job.directive.global_batch if job.directive else None
    return said[0] if said is not None and said[0] == said[1] else None


def _cell(live: Live, shape: Shape, plan: Plan) -> Cell | None:
    truth = live.job.truth
    pace = truth.pace(live.stage, placed_on(shape), plan)
    if pace is None:
        return None
    goodput, throughput = pace.rate * truth.unit, plan.global_batch / pace.step_s
    return Cell(shape, plan, throughput, goodput / throughput, goodput, pace.step_s, 0, sync_s=pace.sync_s)


def directive_of(job: TraceJob, *, rigid: bool) -> Directive:
    """What the job's user would have written. `rigid`: the size is the one asked for, and so is the batch."""
    if rigid or job.batch_fixed:
        # a batch that does not divide by its GPUs is rounded up, as the job itself would
        batch = -(-job.batch // job.gpus) * job.gpus if rigid else job.batch
        low, high = batch, batch
    else:
        low, high = job.truth.low, job.truth.high
    fixed = job.plan if job.plan_fixed else None
    return Directive(
        model=job.model,
        global_batch=(low, high),
        tp=fixed.tp if fixed else None,
        pp=fixed.pp if fixed else None,
        micro_batch=fixed.micro_batch if fixed else None,
        max_micro_batch=None if rigid or fixed else job.max_micro_batch,
        max_gpus=job.max_gpus,
        weight=job.weight,
        deadline_s=job.deadline_s,
        reshard=job.reshard,
        resize=job.resize,
        comm=() if rigid else job.comm,
    )


def submitted(live: Live, cluster: Cluster, *, rigid: bool) -> Job:
    """The job as sbatch has put it into the queue. Raises UsageError where the cluster can't hold the size asked for."""
    job = live.job
    asked = asked_shape(job, cluster)
    if asked is None:
        raise UsageError(job.where or job.name, f"{job.gpus} GPUs of one type are more than the cluster has")
    return Job(
        job_id=live.job_id,
        name=job.name,
        user="trace",
        uid=job.uid,
        partition="",
        state=JobState.PENDING,
        reason="",
        submit_s=job.submit_s,
        start_s=None,
        begin_s=None,
        restarts=0,
        shape=asked,
        asked=asked,
        directive=directive_of(job, rigid=rigid),
    )
