"""Where the memory model expects a job to fit, before anything of it has run: what a scheduler knows that has not seen the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from synergy_core.records import ModelSpec, Shape

from synergy_sim.placement_truth import PlacementTruth
from synergy_sim.records import Scenario
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.plan_limits import PlanLimits
from synergyd.jobmodel.plan_space import enumerate_plans


@dataclass(frozen=True, eq=False)
class MemoryFit:
    """A callable that says whether any plan of the model fits a shape, by the memory model.

    `spec` is None where no model is known: then it may fit anywhere. `batch`: sequences a step. `runs_on`: what the trace's own launcher
    can run on at all. `requested`: (GPU type, GPUs) on which its user has seen it fit. `names`: GPU type -> the name of its figures,
    where that is another.
    """

    spec: ModelSpec | None
    batch: int
    runs_on: Callable[[Shape], bool]
    requested: tuple[str, int]
    precision: str = "bf16"
    names: Mapping[str, str] = field(default_factory=dict)
    _known: dict[Shape, bool] = field(default_factory=dict, repr=False)

    def __call__(self, shape: Shape) -> bool:
        if not self.runs_on(shape):
            return False
        if self.spec is None or (shape.gpu_type, shape.gpus) == self.requested:
            return True
        if shape not in self._known:
            gpu = figures(self.names.get(shape.gpu_type, shape.gpu_type))
            limits = PlanLimits(self.batch, self.batch, ep=None, precisions=(self.precision,))
            self._known[shape] = len(enumerate_plans(self.spec, gpu, [shape], limits).plans) > 0
        return self._known[shape]


def anywhere(shape: Shape) -> bool:
    """Return True: a launcher that runs on every shape."""
    return True


def with_known_fit(scenario: Scenario) -> Scenario:
    """Return the scenario with jobs of which it is known where they fit and up to which size they were measured, as peers' code knows."""
    jobs = []
    for job in scenario.jobs:
        if job.expected_fit is not None and isinstance(job.truth, PlacementTruth):
            largest = job.truth.times.largest
            job = replace(job, expected_fit=None, max_gpus=min(job.max_gpus or largest, largest))
        jobs.append(job)
    return replace(scenario, jobs=tuple(jobs))
