"""The scheduler's forecasts for the simulated jobs.

They come from the daemon's own JobPlanner, taught by reports; or, where a run asks for an oracle, they are the truth
itself in the same form.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from synergy_core.errors import UsageError
from synergy_core.exchange import EXACT, Exchange
from synergy_core.job_report import Report
from synergy_core.records import Cell, Cluster, Directive, Job, JobState, Measurement, ModelSpec, Plan, Profile, Shape

from synergy_sim.exchanging_truth import reported_efficiency
from synergy_sim.records import TraceJob, place_shape, requested_shape
from synergy_sim.world import SimulatedJob
from synergyd.control.cell_cache import CellCache
from synergyd.control.failed_plans import NO_BANS, Bans
from synergyd.jobmodel.cell_search import CellSearchResult
from synergyd.jobmodel.exchange_choice import ExchangeChoice
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.exchange_cost import prior_worth
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.shapes import job_shapes
from synergyd.scheduler.problem.records import Progress

REPORT_EVERY_S = 10.0  # as in the agent
_FIRST_SPEED_STEPS = 3  # after so many an agent states the time of a step
_AT_MOST = 12  # reports of one pace: more of them teach nothing more
REPORT_NOISE = 0.01  # one sigma of a reported step time, relative


@dataclass
class LearntForecast:
    """The forecasts of a JobPlanner that learns from reports alone, sent as the jobs' agents would. `figures` by GPU type."""

    figures: dict[str, GpuFigures] = field(default_factory=dict)
    seed: int = 0
    lengths: bool = True  # do jobs tell how far they are, of how much?
    learns: bool = True
    _models: dict[str, ModelSpec] = field(default_factory=dict)
    #: the run that reported last, as (incarnation, changes without a requeue), and when
    _reported_s: dict[int, tuple[tuple[int, int], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._cache = CellCache(figures=self.figures)

    def reports(self, live: SimulatedJob, job: Job, until_s: float, stops: bool = False) -> tuple[Report, ...]:
        """Return the reports of a running job since its last ones, as its launcher would send them; none while none is due.

        The first report of a run, sent as its training begins, says only that. One follows as soon as the time of a step is
        known, then one each REPORT_EVERY_S, and one more as the job `stops` for a checkpoint.
        """
        assert live.pace is not None and live.plan is not None
        first_s = live.ready_s + _FIRST_SPEED_STEPS * live.pace.step_s
        run = job.restarts, live.moves
        reported, before_s = self._reported_s.get(job.job_id, ((-1, 0), 0.0))
        if reported != run:
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
            if reported == run:
                return ()
            self._reported_s[job.job_id] = run, -math.inf
            return (Report(job.job_id, job.restarts, step=0, plan=live.plan),)
        self._reported_s[job.job_id] = run, min(until_s, before_s + due * REPORT_EVERY_S)
        return tuple(
            Report(
                job.job_id,
                job.restarts,
                step=0,
                step_s=live.pace.step_s * self._noise_factor(),
                noise_scale=None if live.pace.noise_scale is None else live.pace.noise_scale * self._noise_factor(),
                plan=live.plan,
                trained_s=until_s - live.ready_s,
                comm="" if live.plan.exchange == str(EXACT) else live.plan.exchange,
                comm_efficiency=reported_efficiency(live.plan),
            )
            for _ in range(min(due, _AT_MOST))
        )

    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]], cluster: Cluster) -> None:
        """Learn the prior of each user's next jobs from the measurements of that user's `programs`."""
        self._cache.learn_prior(programs, cluster)

    def predict_run(self, live: SimulatedJob, job: Job, profile: Profile) -> tuple[float, int] | None:
        """Return (step seconds, peak bytes) as the bare model predicts them for the shape and plan that the job runs with."""
        assert live.plan is not None
        return JobPlanner(job, profile, self._model(live.job), self.figures).predict(job.shape, live.plan)

    def _noise_factor(self) -> float:
        return math.exp(self._random.gauss(0.0, REPORT_NOISE))

    def prepare(self, jobs: Iterable[tuple[SimulatedJob, Job, Profile]], cluster: Cluster) -> None:
        """Prepare for calls of `cells` for `jobs`: fit the profiles that have changed, all together."""
        jobs = tuple(jobs)
        simulated = {live.job_id: live.job for live, _, _ in jobs}
        self._cache.fit_changed_jobs(
            [job for _, job, _ in jobs],
            {job.job_id: profile for _, job, profile in jobs},
            cluster,
            lambda job: self._model(simulated[job.job_id]) is not None,
        )

    def cells(
        self,
        live: SimulatedJob,
        job: Job,
        profile: Profile,
        present: Plan | None,
        cluster: Cluster,
        bans: Bans = NO_BANS,
    ) -> CellSearchResult:
        """Return the job's Cells, without those on shapes that it is known, or expected, not to fit on."""
        result = self._cache.cells(job, profile, present, cluster, lambda _profile: self._model(live.job), bans)
        fits = live.job.expected_fit or live.job.can_run
        if fits is None:
            return result
        cells = tuple(cell for cell in result.cells if fits(cell.shape))
        return CellSearchResult(cells, result.why_none or ("" if cells else "it fits on no shape of this cluster"))

    def progress(self, live: SimulatedJob) -> Progress:
        """Return the job's progress as its reports tell it; it is known from the first report on."""
        has_reported = self.lengths and live.job_id in self._reported_s
        return reported_progress(live) if has_reported else Progress(attained_gpu_s=live.gpu_s)

    def forget(self, job_id: int) -> None:
        self._cache.forget(job_id)
        self._reported_s.pop(job_id, None)

    def _model(self, job: TraceJob) -> ModelSpec | None:
        if job.spec is not None or job.model is None:
            return job.spec
        if job.model not in self._models:
            self._models[job.model] = load_model(job.model)
        return self._models[job.model]


@dataclass
class OracleForecast:
    """The truth of each job's present stage as Cells, and the work that is left."""

    learns: bool = False
    lengths: bool = True
    _by_job: dict[int, tuple[object, CellSearchResult]] = field(default_factory=dict)

    def reports(self, live: SimulatedJob, job: Job, until_s: float, stops: bool = False) -> tuple[Report, ...]:
        """Return one report of the present pace at once: an oracle learns nothing, and nobody waits for its jobs' reports."""
        assert live.pace is not None
        trained_s, step_s = until_s - live.ready_s, live.pace.step_s
        return (Report(job.job_id, job.restarts, step=0, plan=live.plan, step_s=step_s, trained_s=trained_s),)

    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]], cluster: Cluster) -> None:
        """Do nothing: an oracle has nothing to learn."""

    def prepare(self, jobs: Iterable[tuple[SimulatedJob, Job, Profile]], cluster: Cluster) -> None:
        """Do nothing: an oracle fits nothing."""

    def predict_run(self, live: SimulatedJob, job: Job, profile: Profile) -> tuple[float, int] | None:
        return None

    def cells(
        self,
        live: SimulatedJob,
        job: Job,
        profile: Profile,
        present: Plan | None,
        cluster: Cluster,
        bans: Bans = NO_BANS,
    ) -> CellSearchResult:
        key = live.stage, live.plan, job.shape, job.directive, cluster.kinds
        cache_entry = self._by_job.get(live.job_id)
        if cache_entry is None or cache_entry[0] != key:
            shapes = [shape for some in job_shapes(job, cluster).values() for shape in some]
            batch = fixed_batch(job)
            cells = self._best(live, shapes, batch, EXACT)
            choice = ExchangeChoice.build(job, profile, live.plan)
            if choice.considered_options:
                cells += choice.make_cells(cells, lambda option: self._best(live, shapes, batch, option))
            if live.plan is not None and job.state is JobState.RUNNING:
                # what it runs with now, so that a better batch on the same GPUs can be seen
                has_present = any((c.shape, c.plan) == (job.shape, live.plan) for c in cells)
                cells += [c for c in [_cell(live, job.shape, live.plan)] if c is not None and not has_present]
            why_none = "" if cells else "nothing was measured within its limits"
            cache_entry = self._by_job[live.job_id] = key, CellSearchResult(tuple(cells), why_none)
        return cache_entry[1]

    def progress(self, live: SimulatedJob) -> Progress:
        return reported_progress(live)

    def forget(self, job_id: int) -> None:
        self._by_job.pop(job_id, None)

    def _best(self, live: SimulatedJob, shapes: Sequence[Shape], batch: int | None, option: Exchange) -> list[Cell]:
        """Return the best Cell of each shape where replicas exchange by `option`.

        The option's effect on the worth of an example is not counted.
        """
        result = []
        for shape in shapes:
            plans = [plan for plan in live.job.truth.plans(shape, batch) if plan.exchange == str(option)]
            cells = [c for plan in plans if (c := _cell(live, shape, plan))]
            if cells:
                best = max(cells, key=lambda c: c.goodput)
                worth = prior_worth(option, best.plan.dp)
                result.append(replace(best, efficiency=best.efficiency / worth, goodput=best.goodput / worth))
        return result


def reported_progress(live: SimulatedJob) -> Progress:
    """Return the progress that a job's reports tell: work done and work left."""
    truth = live.job.truth
    remaining = max(0.0, truth.end(truth.stages - 1) - live.progress)
    return Progress(live.gpu_s, remaining * truth.unit, live.progress * truth.unit)


def fixed_batch(job: Job) -> int | None:
    """Return the batch that a directive fixes, or None if it leaves a range."""
    batch_range = job.directive.global_batch if job.directive else None
    return batch_range[0] if batch_range is not None and batch_range[0] == batch_range[1] else None


def _cell(live: SimulatedJob, shape: Shape, plan: Plan) -> Cell | None:
    truth = live.job.truth
    pace = truth.pace(live.stage, place_shape(shape), plan)
    if pace is None:
        return None
    goodput, throughput = pace.rate * truth.unit, plan.global_batch / pace.step_s
    return Cell(shape, plan, throughput, goodput / throughput, goodput, pace.step_s, 0, sync_s=pace.sync_s)


def make_directive(job: TraceJob, *, rigid: bool) -> Directive:
    """Return the directive that the job's user would have written. `rigid`: the size is the one asked for, and so is the batch."""
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
        min_gpus=job.min_gpus,
        max_gpus=job.max_gpus,
        weight=job.weight,
        deadline_s=job.deadline_s,
        reshard=job.reshard,
        resize=job.resize,
        comm=() if rigid else job.comm,
    )


def queued_job(live: SimulatedJob, cluster: Cluster, *, rigid: bool) -> Job:
    """Return the job as sbatch has put it into the queue. Raises UsageError where the cluster can't hold the size asked for."""
    job = live.job
    asked_shape = requested_shape(job, cluster)
    if asked_shape is None:
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
        shape=asked_shape,
        asked=asked_shape,
        directive=make_directive(job, rigid=rigid),
    )
