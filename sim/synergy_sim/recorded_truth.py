"""Ground truth of a job that a daemon has watched: its own profile, as that daemon had learnt it by the end.

A plan that was measured on a shape takes as long there as was measured; any other as JobPlanner expects it after all of
the profile's measurements. Statistical efficiency is that of the profile's noise scale, over the batches that the job was
seen with; without a noise scale, or with one batch alone, the batch is fixed. The simulated scheduler sees none of this: it
learns again, from the reports of this truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd

import numpy as np
from synergy_core.records import Plan, Shape

from synergy_sim.records import Floats, PlacedGpus, TrainingSpeed
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.efficiency import efficiency
from synergyd.jobmodel.unknown_model import largest_divisor


@dataclass(eq=False)
class RecordedTruth:
    """A `Truth`. `examples` is the job's whole work in sequences at the smallest batch `low`."""

    task: JobPlanner
    examples: float
    low: int
    high: int
    largest_micro: int | None = None  # the most that a GPU holds
    stages: int = 1
    _steps: dict[tuple[Shape, Plan], float | None] = field(default_factory=dict, repr=False)
    _plans: dict[Shape, tuple[Plan, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._steps |= {(m.shape, m.plan): m.step_s for m in self.task.profile.measured}

    @property
    def unit(self) -> float:
        return float(self.low)

    @property
    def noise_scale(self) -> float | None:
        return self.task.profile.noise_scale if self.low < self.high else None

    def end(self, stage: int) -> float:
        return self.examples / self.unit

    def executed_plan(self, plan: Plan) -> Plan:
        local = plan.global_batch // plan.dp if plan.dp else 0
        if self.largest_micro is None or plan.micro_batch <= self.largest_micro or plan.global_batch % plan.dp:
            return plan
        return replace(plan, micro_batch=largest_divisor(local, self.largest_micro))

    def efficiency(self, batch: int) -> float:
        noise = self.noise_scale
        return 1.0 if noise is None else float(efficiency(np.array(batch), noise, self.low))

    def pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        step_s = self._step_s(_even(placement), plan)
        if step_s is None:
            return None
        rate = plan.global_batch * self.efficiency(plan.global_batch) / step_s / self.unit
        return TrainingSpeed(rate, step_s, self.noise_scale)

    def _step_s(self, shape: Shape, plan: Plan) -> float | None:
        if (shape, plan) not in self._steps:
            self._steps[shape, plan] = self.task.expected_step_s(shape, plan)
        return self._steps[shape, plan]

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        if shape not in self._plans:
            best = self.task.best_plan(shape)
            measured = [m.plan for m in self.task.profile.measured if m.shape == shape]
            self._plans[shape] = tuple(dict.fromkeys(measured if best is None else [best.plan, *measured]))
        return tuple(p for p in self._plans[shape] if batch is None or p.global_batch == batch)

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        placement = PlacedGpus(shape.gpu_type, (shape.gpus_per_node,) * shape.nodes)
        paces = [pace for plan in self.plans(shape, batch) if (pace := self.pace(0, placement, plan)) is not None]
        return np.array([max(p.rate for p in paces)]) if paces else None


def _even(placement: PlacedGpus) -> Shape:
    """Return the GPUs as a shape; uneven ones as on more nodes of equal share, which is no faster."""
    each = gcd(*placement.per_node)
    return Shape(placement.gpu_type, placement.gpus // each, each)
