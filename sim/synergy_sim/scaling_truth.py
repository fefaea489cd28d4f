"""Ground truth by formula, for jobs of which only a length at the size asked for is known: philly, sacct, the generator.

Amdahl's law with a cost for each node beyond the first. A job's step on K GPUs on n nodes takes
    T(K, n) = T1 * ((1 - s) + s / K) + c * T1 * (n - 1)^0.5 / K^0.5    for n > 1 (no last term on one node)
with T1 its step on one GPU, s the parallel share and c what the network costs. The batch is fixed, so a unit of progress
is one step and its statistical efficiency 1. It is an assumption, not a measurement; whoever has measurements should use
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from synergy_core.records import Plan, Shape

from synergy_sim.records import Floats, PlacedGpus, TrainingSpeed


@dataclass(frozen=True)
class ScalingTruth:
    """A `Truth`: `seconds` on `requested_gpus` (placed as few nodes as can be) is the whole job, in steps of `step_s` there."""

    gpu_types: tuple[str, ...]
    seconds: float
    requested_gpus: PlacedGpus
    batch: int
    parallel: float = 0.98
    network: float = 0.05
    step_s: float = 1.0
    stages: int = 1

    @property
    def low(self) -> int:
        return self.batch

    @property
    def high(self) -> int:
        return self.batch

    @property
    def unit(self) -> float:
        return float(self.batch)

    def end(self, stage: int) -> float:
        return (stage + 1) / self.stages * self.seconds / self.step_s

    def executed_plan(self, plan: Plan) -> Plan:
        return plan

    def pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        if (self.gpu_types and placement.gpu_type not in self.gpu_types) or plan.gpus != placement.gpus:
            return None
        step_s = self.step_s * self.relative(placement) / self.relative(self.requested_gpus)
        sync_s = step_s * self._network_time(placement) / self.relative(placement)
        return TrainingSpeed(1.0 / step_s, step_s, None, sync_s, sync_s)

    def relative(self, placement: PlacedGpus) -> float:
        """Return the time of its step, in steps on one GPU."""
        return 1 - self.parallel + self.parallel / placement.gpus + self._network_time(placement)

    def _network_time(self, placement: PlacedGpus) -> float:
        """Return the time that the network takes, in steps on one GPU."""
        return self.network * math.sqrt((len(placement.per_node) - 1) / placement.gpus)

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        if self.batch % shape.gpus:
            return ()
        micro = self.batch // shape.gpus
        return (Plan(dp=shape.gpus, micro_batch=micro, global_batch=self.batch, zero_stage=0),)

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        placement = PlacedGpus(shape.gpu_type, (shape.gpus_per_node,) * shape.nodes)
        paces = [pace for plan in self.plans(shape) if (pace := self.pace(0, placement, plan)) is not None]
        return np.full(self.stages, max(p.rate for p in paces)) if paces else None
