"""The daemon's forecasts: each job's Cells after its user's model and what its program has failed with, with advice to its user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from synergy_core.achieved import Achieved
from synergy_core.errors import SynergyError, UsageError, one_line
from synergy_core.job_report import Report
from synergy_core.records import Cluster, Job, JobState, Measurement, ModelSpec, Plan, Profile

from synergyd.control.cell_cache import CellCache
from synergyd.control.failed_plans import NO_BANS, Bans
from synergyd.daemon import user_models
from synergyd.jobmodel.batch_advice import advise, measured_gain, remark
from synergyd.jobmodel.cell_search import CellSearchResult
from synergyd.jobmodel.fit.profile_file import read_profile
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.counts import flops_per_step
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.settings import Settings

# Running jobs an epoch for which a batch range is looked for: each took 7 ms, ten times as long as its Cells
_ADVISED = 100
log = logging.getLogger("synergyd.forecast")


class BatchAdvisor:
    """The author of advice on batch ranges, for `_ADVISED` running jobs in each epoch. `log_fault` logs a fault in it by job id."""

    def __init__(self, log_fault: Callable[[int, str, Exception], object]) -> None:
        self._log_fault = log_fault
        self._to_advise = _ADVISED

    def begin_epoch(self) -> None:
        """Begin an epoch."""
        self._to_advise = _ADVISED

    def can_advise(self) -> bool:
        """Return whether one more job can have advice in this epoch."""
        return self._to_advise > 0

    def with_advice(self, result: CellSearchResult, planner: JobPlanner) -> CellSearchResult:
        """Return `result` with advice on the batch range and on the exchange between replicas."""
        advice, hint = self._advice(planner)
        if advice is not None and planner.job.state is JobState.RUNNING:
            advice += measured_gain(planner.job, planner.profile) + planner.exchange_remark()
        return replace(result, advice=advice, hint=hint)

    def _advice(self, planner: JobPlanner) -> tuple[str | None, str]:
        """Return (CellSearchResult.advice, its hint). A fault in it costs nothing else."""
        if sentence := remark(planner.job, planner.profile):
            return sentence, ""
        if planner.job.state is JobState.RUNNING and planner.profile.noise_scale is not None:
            if self._to_advise <= 0:
                return None, ""
            self._to_advise -= 1
        try:
            advice = advise(planner)
        except Exception as error:
            self._log_fault(planner.job.job_id, "its batch range", error)
            return "", ""
        return (advice.sentence(), advice.short) if advice is not None else ("", "")


class Forecast:
    """The Cells and predictions of all jobs. Raises UsageError for a Profile that can't be read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._predictor = read_profile(settings.profile) if settings.profile else None
        self._advisor = BatchAdvisor(self._own_fault)
        self._cache = CellCache(self._gpu_figures, advisor=self._advisor)
        self._models = user_models.UserModels()
        self._faults: set[tuple[int, str]] = set()  # logged, by job

    def begin_epoch(self) -> None:
        """Begin an epoch."""
        self._advisor.begin_epoch()
        self._models.begin()

    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]], cluster: Cluster) -> None:
        """Learn the prior of each user's jobs that are not measured yet from what that user's `programs` have measured."""
        self._cache.learn_prior(programs, cluster)

    def fit_changed_jobs(self, jobs: Iterable[Job], profiles: Mapping[int, Profile], cluster: Cluster) -> None:
        """Fit together the changed jobs among `jobs` whose model is not known: their Cells are about to be asked for."""
        try:
            self._cache.fit_changed_jobs(jobs, profiles, cluster, _names_model)
        except Exception:  # each is fitted by itself then, where a fault costs that job alone
            log.exception("plain jobs' models could not be fitted together")

    def cells(
        self, job: Job, profile: Profile, present: Plan | None, cluster: Cluster, bans: Bans = NO_BANS
    ) -> CellSearchResult:
        """Return all Cells of one job on this cluster that `bans` allow; `present` is the plan it runs with."""
        try:
            return self._cache.cells(job, profile, present, cluster, partial(self._model, job), bans)
        except SynergyError as error:
            return CellSearchResult((), str(error))  # not kept: a file that its user corrects is read at the next epoch
        except Exception as error:  # a fault of ours, or of what the job says: it costs this job alone
            return CellSearchResult((), self._own_fault(job.job_id, "its Cells", error))

    def predict(self, report: Report, job: Job | None, profile: Profile) -> tuple[float, int] | None:
        """Return the (step seconds, peak bytes) that the bare model, without the profile's corrections, predicts of the reported plan."""
        if report.plan is None or job is None:
            return None
        try:
            planner = JobPlanner(
                job,
                replace(profile, model=report.model or profile.model, kernels=report.kernels or profile.kernels),
                self._model(job, profile),
                self._cache.figures,
            )
            return planner.predict(job.shape, report.plan)
        except SynergyError:
            return None
        except Exception as error:
            self._own_fault(job.job_id, "the prediction of its report", error)
            return None

    def achieved(self, report: Report | None, job: Job, profile: Profile) -> Achieved | None:
        """Return the speed of a running job by its report, or None if this incarnation has told no step time."""
        if report is None or report.restarts != job.restarts or not report.step_s or job.state is not JobState.RUNNING:
            return None
        speed = Achieved(step_s=report.step_s)
        try:
            gpu_figures = self._cache.figures.get(job.shape.gpu_type) or self._gpu_figures(job.shape.gpu_type)
            if profile.samples and profile.speed > 0:
                speed = replace(
                    speed, predicted_step_s=report.step_s / profile.speed, uncertainty=gpu_figures.uncertainty
                )
            model = report.model or self._model(job, profile)
            if model is None or report.plan is None:
                return speed
            batch = report.plan.global_batch
            achieved_flops = flops_per_step(model, batch) / report.step_s
            peak_flops = gpu_figures.peak_tflops * 1e12 * report.plan.gpus
            speed = replace(speed, tokens_per_s=batch * model.seq / report.step_s, mfu=achieved_flops / peak_flops)
            if report.gpu_activity is None:
                return speed
            planner = JobPlanner(job, replace(profile, model=model), model, self._cache.figures)
            return replace(speed, communication_share=planner.communication_share(job.shape, report.plan))
        except SynergyError:  # a model file that can't be read
            return speed
        except Exception as error:
            self._own_fault(job.job_id, "its speed", error)
            return speed

    def least_memory(self, report: Report, job: Job | None, profile: Profile) -> float | None:
        """Return the least ratio of measured to predicted peak memory of a plan that failed on the job's GPUs, or None if unknown."""
        plan = report.failure.plan if report.failure is not None else None
        predicted = self.predict(replace(report, plan=plan), job, profile) if plan is not None else None
        if predicted is None or job is None or predicted[1] <= 0:
            return None
        gpu_figures = self._cache.figures.get(job.shape.gpu_type) or figures(job.shape.gpu_type)
        return gpu_figures.usable_bytes / predicted[1]

    def forget(self, job_id: int) -> None:
        """Forget a job that is gone."""
        self._cache.forget(job_id)
        self._faults = {fault for fault in self._faults if fault[0] != job_id}

    def _own_fault(self, job_id: int, what: str, error: Exception) -> str:
        """Log, once, a fault that the job's user can't mend. Return the line for `explain`."""
        text = (
            f"{what} could not be worked out ({type(error).__name__}: {one_line(str(error), 100)}): it is left as it is"
        )
        if (job_id, text) not in self._faults:
            log.error("job %d: %s", job_id, text, exc_info=error)
            self._faults.add((job_id, text))
        return text

    def _gpu_figures(self, gpu_type: str) -> GpuFigures:
        own = self._settings.gpu_figures
        return self._predictor.figures(gpu_type, overrides=own) if self._predictor else figures(gpu_type, own)

    def _model(self, job: Job, profile: Profile) -> ModelSpec | None:
        """Return the directive's model if it names one, else the reported one, which may be of a script that only imitates it."""
        name = job.directive.model if job.directive else None
        if not name:
            return profile.model
        try:
            return self._models.load_cached(name, job.uid)
        except UsageError:
            if profile.model is not None:
                return profile.model
            raise


def _names_model(job: Job) -> bool:
    return bool(job.directive and job.directive.model)
