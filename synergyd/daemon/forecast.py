"""Cells of each job of the queue, computed again only when something it depends on has changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from synergyd.control.failed_plans import NO_BANS, Bans
from synergyd.daemon import user_models
from synergyd.errors import SynergyError, UsageError, one_line
from synergyd.job_report import Report
from synergyd.records import Cell, Cluster, Directive, Job, JobState, Measurement, ModelSpec, Plan, Profile, Shape
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.settings import Settings
from synergyd.task.batch_advice import advise, remark
from synergyd.task.fit.population import UserPriors
from synergyd.task.fit.profile_file import read_profile
from synergyd.task.job_planner import JobPlanner
from synergyd.task.learning import CoarseProfiles
from synergyd.task.model.hardware import GpuFigures, figures
from synergyd.task.model.throughput import ThroughputPrior, fit_ahead
from synergyd.task.shapes import kinds

_LIKE = 1024
# Running jobs an epoch for which a batch range is looked for: each took 7 ms, ten times what its Cells take
_ADVISED = 100
log = logging.getLogger("synergyd.forecast")


@dataclass(frozen=True)
class CellsOrWhy:
    """A job's Cells; where there are none, one line why."""

    cells: tuple[Cell, ...]
    why_none: str
    #: there are some, and all are banned
    all_failed: bool = False
    #: a sentence on a batch range that it would gain from, with a blank before it; None: not looked for yet
    advice: str | None = ""
    #: the same for a line of `status`
    hint: str = ""


class _Asked(NamedTuple):
    """What a job's Cells depend on."""

    directive: Directive | None
    asked: Shape
    shape: Shape
    partition: str
    state: JobState
    kinds: object
    profile: Profile
    present: Plan | None
    bans: Bans
    prior: ThroughputPrior
    batches: tuple[int, int] | None
    batch_cap: int
    exact: str


class Forecast:
    """Caches by job; the answers are those of pure functions. Raises UsageError for a Profile that can't be read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._predictor = read_profile(settings.profile) if settings.profile else None
        self._figures: dict[str, GpuFigures] = {}
        self._kept: dict[int, tuple[_Asked, CellsOrWhy]] = {}
        self._coarse = CoarseProfiles()
        self._like: dict[object, CellsOrWhy] = {}  # what like jobs have been given, the latest last
        self._models = user_models.UserModels()
        self._priors = UserPriors()
        self._to_advise = _ADVISED
        self._faults: set[tuple[int, str]] = set()  # logged, by job

    def begin(self) -> None:
        """An epoch begins."""
        self._to_advise = _ADVISED
        self._models.begin()

    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]], cluster: Cluster) -> None:
        """Learn what each user's jobs that are not measured yet are taken for, after what that user's `programs` have measured."""
        self._all_figures(cluster)
        known = self._figures
        self._priors.learn(programs, lambda gpu_type: known.get(gpu_type) or figures(gpu_type))

    def expect(self, jobs: Iterable[Job], profiles: Mapping[int, Profile], cluster: Cluster) -> None:
        """The Cells of `jobs` are about to be asked for: fits what has changed of those whose model is not known, all together."""
        try:
            self._fit_together(jobs, profiles, cluster)
        except Exception:  # each is fitted by itself then, where a fault costs that job alone
            log.exception("plain jobs' models could not be fitted together")

    def _fit_together(self, jobs: Iterable[Job], profiles: Mapping[int, Profile], cluster: Cluster) -> None:
        jobs, wanted, known = tuple(jobs), [], self._all_figures(cluster)
        priors = {job.job_id: self._priors.of(job.uid) for job in jobs}
        self._coarse.renew({job.job_id: profiles[job.job_id] for job in jobs}, priors)
        for job in jobs:
            profile = profiles[job.job_id]
            if profile.measured and profile.model is None and not (job.directive and job.directive.model):
                in_use, kept = (
                    self._coarse.of(job.job_id, profile, self._priors.of(job.uid)),
                    self._kept.get(job.job_id),
                )
                if kept is None or (kept[0].profile, kept[0].prior) != in_use:
                    wanted.append(JobPlanner(job, in_use[0], None, known, prior=in_use[1]).to_fit())
        fit_ahead(one for one in wanted if one is not None)

    def cells(
        self, job: Job, profile: Profile, present: Plan | None, cluster: Cluster, bans: Bans = NO_BANS
    ) -> CellsOrWhy:
        """All Cells of one job on this cluster that `bans` allow; `present` is the plan it runs with."""
        # each report moves it a little: Cells are made anew only when it is worth it
        profile, prior = self._coarse.of(job.job_id, profile, self._priors.of(job.uid))
        key = _Asked(
            job.directive,
            job.asked,
            job.shape,
            job.partition,
            job.state,
            kinds(job, cluster),
            profile,
            present,
            bans,
            prior,
            job.batches,
            job.batch_cap,
            job.exact,
        )
        kept = self._kept.get(job.job_id)
        if kept is not None and kept[0] == key and not self._may_advise(kept[1]):
            return kept[1]
        try:
            model = self._model(job, profile)
            alike = (*key, model, job.directive_error, job.node_names)
            answer = self._like.pop(alike, None)
            if answer is None or self._may_advise(answer):
                answer = self._made(job, key, model, cluster)
        except SynergyError as error:
            return CellsOrWhy((), str(error))  # not kept: a file that its user corrects is read at the next epoch
        except Exception as error:  # a fault of ours, or of what the job says: it costs this job alone
            return CellsOrWhy((), self._own_fault(job.job_id, "its Cells", error))
        self._kept[job.job_id] = (key, answer)
        self._like[alike] = answer
        while len(self._like) > _LIKE:
            del self._like[next(iter(self._like))]
        return answer

    def _made(self, job: Job, asked: _Asked, model: ModelSpec | None, cluster: Cluster) -> CellsOrWhy:
        known, bans = self._all_figures(cluster), asked.bans
        task = JobPlanner(job, asked.profile, model, known, asked.present, dict(bans.memory), asked.prior)
        found = task.cells(cluster)
        cells = CellIndex(
            c for c in found if not bans.rules_out(c)
        )  # what an epoch derives from them is kept with them
        if found and not cells:
            return CellsOrWhy((), "all plans that fit have failed for this program", all_failed=True)
        advice, hint = self._advice(task)
        if advice is not None and job.state is JobState.RUNNING:
            advice += task.exchange_remark()
        return CellsOrWhy(cells, "" if cells else task.why_no_cell(cluster), advice=advice, hint=hint)

    def _may_advise(self, answer: CellsOrWhy) -> bool:
        return answer.advice is None and self._to_advise > 0

    def _advice(self, task: JobPlanner) -> tuple[str | None, str]:
        """(CellsOrWhy.advice, its hint). A fault in it costs nothing else."""
        if said := remark(task.job, task.profile, self._settings.adapt_batch > 0):
            return said, ""
        if task.job.state is JobState.RUNNING and task.profile.noise_scale is not None:
            if self._to_advise <= 0:
                return None, ""
            self._to_advise -= 1
        try:
            advice = advise(task)
        except Exception as error:
            self._own_fault(task.job.job_id, "its batch range", error)
            return "", ""
        return (advice.sentence(), advice.short) if advice is not None else ("", "")

    def predicted(self, report: Report, job: Job | None, profile: Profile) -> tuple[float, int] | None:
        """(step seconds, peak bytes) that the bare model, without the profile's corrections, predicts of the reported plan."""
        if report.plan is None or job is None:
            return None
        try:
            task = JobPlanner(
                job, replace(profile, model=report.model or profile.model), self._model(job, profile), self._figures
            )
            return task.predict(job.shape, report.plan)
        except SynergyError:
            return None
        except Exception as error:
            self._own_fault(job.job_id, "the prediction of its report", error)
            return None

    def least_memory(self, report: Report, job: Job | None, profile: Profile) -> float | None:
        """Measured over predicted peak memory at the least, of a plan that failed on the job's GPUs; None where nothing is known."""
        plan = report.failure.plan if report.failure is not None else None
        predicted = self.predicted(replace(report, plan=plan), job, profile) if plan is not None else None
        if predicted is None or job is None or predicted[1] <= 0:
            return None
        known = self._figures.get(job.shape.gpu_type) or figures(job.shape.gpu_type)
        return known.usable_bytes / predicted[1]

    def forget(self, job_id: int) -> None:
        """Of a job that is gone."""
        self._kept.pop(job_id, None)
        self._coarse.forget(job_id)
        self._faults = {fault for fault in self._faults if fault[0] != job_id}

    def _own_fault(self, job_id: int, what: str, error: Exception) -> str:
        """Logs a fault that is not the job's user's to mend, once; the line for `explain`."""
        text = (
            f"{what} could not be worked out ({type(error).__name__}: {one_line(str(error), 100)}): it is left as it is"
        )
        if (job_id, text) not in self._faults:
            log.error("job %d: %s", job_id, text, exc_info=error)
            self._faults.add((job_id, text))
        return text

    def _all_figures(self, cluster: Cluster) -> dict[str, GpuFigures]:
        for gpu_type in cluster.gpu_types():
            if gpu_type not in self._figures:
                own = self._settings.gpu_figures
                known = self._predictor.figures(gpu_type, overrides=own) if self._predictor else figures(gpu_type, own)
                self._figures[gpu_type] = known
        return self._figures

    def _model(self, job: Job, profile: Profile) -> ModelSpec | None:
        """The directive's model before the reported one, which may be of a script that only imitates it."""
        name = job.directive.model if job.directive else None
        if not name:
            return profile.model
        try:
            return self._models.of(name, job.uid)
        except UsageError:
            if profile.model is not None:
                return profile.model
            raise
