"""The Cells of each job, searched for again only when something they depend on has changed. Pure; daemon and simulator share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from synergy_core.records import Cluster, Directive, Job, JobState, Measurement, ModelSpec, Plan, Profile, Shape

from synergyd.control.failed_plans import NO_BANS, Bans
from synergyd.jobmodel.cell_search import CellSearchResult
from synergyd.jobmodel.fit.population import UserPriors
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.learning import CoarseProfiles
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.throughput import ThroughputPrior, fit_ahead
from synergyd.jobmodel.shapes import kinds
from synergyd.scheduler.problem.cell_index import CellIndex

_LIKE = 1024


class CellInputs(NamedTuple):
    """The inputs that a job's Cells depend on."""

    directive: Directive | None
    requested_shape: Shape
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


class Advisor(Protocol):
    """The author of `CellSearchResult.advice`, who gives it to a few jobs in each epoch."""

    def can_advise(self) -> bool:
        """Return whether a job without advice can have some in this epoch."""

    def with_advice(self, result: CellSearchResult, planner: JobPlanner) -> CellSearchResult:
        """Return `result` with advice to the planner's job, or with None where it has to wait for another epoch."""


@dataclass
class CellCache:
    """The Cells of all jobs; the answers are those of pure functions.

    `gpu_figures` returns the figures of a cluster's GPU type; `figures` are those known so far. Other types have the built-in ones.
    """

    gpu_figures: Callable[[str], GpuFigures] = figures
    figures: dict[str, GpuFigures] = field(default_factory=dict)
    advisor: Advisor | None = None
    _priors: UserPriors = field(default_factory=UserPriors)
    _coarse: CoarseProfiles = field(default_factory=CoarseProfiles)
    _by_job: dict[int, tuple[CellInputs, CellSearchResult]] = field(default_factory=dict)
    _by_inputs: dict[object, CellSearchResult] = field(default_factory=dict)  # results of like jobs, the latest last

    def learn_prior(self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]], cluster: Cluster) -> None:
        """Learn the prior of each user's jobs that are not measured yet from what that user's `programs` have measured."""
        figures_by_type = self.learn_figures(cluster)
        self._priors.learn(programs, lambda gpu_type: figures_by_type.get(gpu_type) or figures(gpu_type))

    def learn_figures(self, cluster: Cluster) -> dict[str, GpuFigures]:
        """Return `figures` with those of all GPU types of `cluster`."""
        for gpu_type in cluster.gpu_types():
            if gpu_type not in self.figures:
                self.figures[gpu_type] = self.gpu_figures(gpu_type)
        return self.figures

    def fit_changed_jobs(
        self,
        jobs: Iterable[Job],
        profiles: Mapping[int, Profile],
        cluster: Cluster,
        has_model: Callable[[Job], bool],
    ) -> None:
        """Begin an epoch: fit together the changed ones of `jobs` that have no model, whose Cells are about to be asked for.

        `profiles` is by job id. `has_model` returns whether a job's model is known without its profile.
        """
        jobs, to_fit, figures_by_type = tuple(jobs), [], self.learn_figures(cluster)
        priors = {job.job_id: self._priors.prior_for(job.uid) for job in jobs}
        self._coarse.renew({job.job_id: profiles[job.job_id] for job in jobs}, priors)
        for job in jobs:
            profile = profiles[job.job_id]
            if profile.measured and profile.model is None and not has_model(job):
                in_use = self._coarse.coarsen(job.job_id, profile, self._priors.prior_for(job.uid))
                entry = self._by_job.get(job.job_id)
                if entry is None or (entry[0].profile, entry[0].prior) != in_use:
                    to_fit.append(JobPlanner(job, in_use[0], None, figures_by_type, prior=in_use[1]).to_fit())
        fit_ahead(one for one in to_fit if one is not None)

    def cells(
        self,
        job: Job,
        profile: Profile,
        present: Plan | None,
        cluster: Cluster,
        model_of: Callable[[Profile], ModelSpec | None],
        bans: Bans = NO_BANS,
    ) -> CellSearchResult:
        """Return all Cells of one job on this cluster that `bans` allow.

        `present` is the plan it runs with. `model_of` returns the job's model, after its profile; what it raises is raised here, and
        the job is asked about again at the next call.
        """
        # each report moves it a little: Cells are searched for again only when it is worth it
        profile, prior = self._coarse.coarsen(job.job_id, profile, self._priors.prior_for(job.uid))
        key = CellInputs(
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
        entry = self._by_job.get(job.job_id)
        if entry is not None and entry[0] == key and not self._can_advise(entry[1]):
            return entry[1]
        model = model_of(profile)
        alike = (*key, model, job.directive_error, job.node_names)
        answer = self._by_inputs.pop(alike, None)
        if answer is None or self._can_advise(answer):
            answer = self._search(job, key, model, cluster)
        self._by_job[job.job_id] = (key, answer)
        self._by_inputs[alike] = answer
        while len(self._by_inputs) > _LIKE:
            del self._by_inputs[next(iter(self._by_inputs))]
        return answer

    def _search(self, job: Job, inputs: CellInputs, model: ModelSpec | None, cluster: Cluster) -> CellSearchResult:
        figures_by_type, bans = self.learn_figures(cluster), inputs.bans
        planner = JobPlanner(
            job, inputs.profile, model, figures_by_type, inputs.present, dict(bans.memory), inputs.prior
        )
        possible = planner.cells(cluster)
        # the values that an epoch derives from them are kept with them
        cells = CellIndex(cell for cell in possible if not bans.is_banned(cell))
        if possible and not cells:
            return CellSearchResult((), "all plans that fit have failed for this program", all_failed=True)
        result = CellSearchResult(cells, "" if cells else planner.why_no_cell(cluster))
        return self.advisor.with_advice(result, planner) if self.advisor is not None else result

    def _can_advise(self, answer: CellSearchResult) -> bool:
        return answer.advice is None and self.advisor is not None and self.advisor.can_advise()

    def forget(self, job_id: int) -> None:
        """Forget a job that is gone."""
        self._by_job.pop(job_id, None)
        self._coarse.forget(job_id)
