"""Ground truth of a job of which the time of one step was measured on placements of GPUs, whatever plan was best there.

The job's own launcher runs the fastest plan that was measured on the GPUs it gets; the scheduler chooses GPUs alone. For
it the job is data-parallel with a nominal batch of `BATCH` parts that every size up to 8 and its multiples by 2, 4 and 8
divides. The table of times does not say what the batch really is, and it is fixed.

A placement that was not measured takes the time of the fastest measured one that fits into it, each node's group of GPUs on
one node: with the same GPUs on fewer nodes, or with some GPUs left idle, a job can at least do that. Where none fits, the job
can't run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from synergy_core.records import Plan, Shape

from synergy_sim.records import Floats, PlacedGpus, TrainingSpeed, place_shape

BATCH = 6720  # 64 x 3 x 5 x 7
MOST_NODES = 1000  # of a placement
Placement = tuple[int, ...]  # GPUs a node, most first


@dataclass(eq=False)
class Times:
    """Seconds of one step of one kind of job: GPU type -> placement -> seconds."""

    by_type: Mapping[str, Mapping[Placement, float]]
    #: GPU type -> placement -> where its time comes from, where that is not a measurement
    origins: Mapping[str, Mapping[Placement, str]] = field(default_factory=dict)
    _cache: dict[tuple[str, Placement], float | None] = field(default_factory=dict, repr=False)

    @property
    def largest(self) -> int:
        """Return the most GPUs of a measured placement."""
        return max(sum(placement) for times in self.by_type.values() for placement in times)

    def smallest(self, gpu_type: str) -> int:
        """Return the fewest GPUs of a measured placement on a type; 0 where there is none."""
        return min((sum(placement) for placement in self.by_type.get(gpu_type, ())), default=0)

    def step_s(self, placement: PlacedGpus) -> float | None:
        key = placement.gpu_type, tuple(sorted(placement.per_node, reverse=True))
        if key not in self._cache:
            times = self.by_type.get(placement.gpu_type, {})
            inside = [seconds for groups, seconds in times.items() if has_room(groups, key[1])]
            self._cache[key] = times.get(key[1], min(inside, default=None))
        return self._cache[key]

    def can_run(self, shape: Shape) -> bool:
        return self.step_s(place_shape(shape)) is not None

    def origin(self, placement: PlacedGpus) -> str:
        """Return the origin of the time on `placement`: "measured", as `origins` says, or "of a smaller placement"."""
        key = tuple(sorted(placement.per_node, reverse=True))
        if key not in self.by_type.get(placement.gpu_type, {}):
            return "of a smaller placement"
        return self.origins.get(placement.gpu_type, {}).get(key, "measured")

    def is_measured(self, shape: Shape) -> bool:
        """Return whether the time is known for so many GPUs of that type, on groups that fit the shape.

        Otherwise it would be the time of fewer.
        """
        into = (shape.gpus_per_node,) * shape.nodes
        times = self.by_type.get(shape.gpu_type, {})
        return any(sum(placement) == shape.gpus and has_room(placement, into) for placement in times)


def has_room(placement: Placement, into: Placement) -> bool:
    """Return whether the groups of `placement` find room on the nodes of `into` (both most first), first fit."""
    if sum(placement) > sum(into):
        return False
    room = list(into)
    for group in placement:
        node = next((i for i, free in enumerate(room) if free >= group), None)
        if node is None:
            return False
        room[node] -= group
    return True


@dataclass(frozen=True)
class PlacementTruth:
    """A `Truth`: `steps` steps, each as long as `times` say."""

    times: Times
    steps: float
    stages: int = 1

    @property
    def low(self) -> int:
        return BATCH

    @property
    def high(self) -> int:
        return BATCH

    @property
    def unit(self) -> float:
        return float(BATCH)

    def end(self, stage: int) -> float:
        return self.steps

    def executed_plan(self, plan: Plan) -> Plan:
        return plan

    def pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        step_s = self.times.step_s(placement) if plan.gpus == placement.gpus else None
        return None if step_s is None else TrainingSpeed(1 / step_s, step_s, None)

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        if BATCH % shape.gpus:
            return ()
        return (Plan(dp=shape.gpus, micro_batch=BATCH // shape.gpus, global_batch=BATCH, zero_stage=0),)

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        step_s = self.times.step_s(place_shape(shape)) if self.plans(shape) else None
        return None if step_s is None else np.array([1 / step_s])
