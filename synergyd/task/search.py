"""From shapes to Cells: every fitting plan's step time, goodput, and the best plan for each shape and pipeline
degree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synergyd.records import Cell, ModelSpec, Shape
from synergyd.task.arrays import Floats, Ints
from synergyd.task.efficiency import goodput
from synergyd.task.hardware import GpuFigures
from synergyd.task.perf import StepTime, step_time
from synergyd.task.plans import Candidates, Limits, enumerate_plans

_LEAST_UNCERTAINTY = 0.03  # step-to-step and placement variation that no number of reports removes


@dataclass(frozen=True)
class Ranked:
    """Fitting plans with what they achieve; arrays of shape (N,), `order` sorts them best goodput first."""

    shapes: tuple[Shape, ...]
    candidates: Candidates
    times: StepTime
    step_s: Floats
    throughput: Floats
    efficiency: Floats
    goodput: Floats
    order: Ints
    uncertainty: float

    def cell(self, i: int) -> Cell:
        """Plan number `i` as a Cell."""
        return Cell(
            shape=self.shapes[int(self.candidates.shape[i])],
            plan=self.candidates.plans.plan(i),
            throughput=float(self.throughput[i]),
            efficiency=float(self.efficiency[i]),
            goodput=float(self.goodput[i]),
            step_s=float(self.step_s[i]),
            memory_bytes=math.ceil(self.candidates.memory[i]),
            uncertainty=self.uncertainty,
        )

    def best_cells(self) -> list[Cell]:
        """The best plan of each (shape, pp), in order of shape and pp."""
        shape, pp = self.candidates.shape[self.order], self.candidates.plans.pp[self.order]
        key = shape * (int(pp.max(initial=0)) + 1) + pp
        # np.unique gives each key's first place, which in `order` is its best plan
        _, first = np.unique(key, return_index=True)
        return [self.cell(int(self.order[i])) for i in first]


def uncertainty(prior: float, samples: int) -> float:
    """Relative error (one sigma) of a prediction corrected by `samples` reports: prior / sqrt(1 + n), never below 3
    %."""
    return math.hypot(_LEAST_UNCERTAINTY, prior / math.sqrt(1 + max(0, samples)))


def rank(
    model: ModelSpec,
    gpu: GpuFigures,
    shapes: Sequence[Shape],
    limits: Limits,
    *,
    noise_scale: float | None = None,
    smallest_batch: int | None = None,
    speed: float = 1.0,
    memory: float = 1.0,
    samples: int = 0,
) -> Ranked:
    """Every fitting plan of `model` on `shapes` of GPU type `gpu`, ranked by goodput (sequences/s).

    `speed` and `memory` are a Profile's corrections. Equal goodput: fewer tensor, then pipeline ranks, then smaller
    micro-batch.
    """
    found = enumerate_plans(model, gpu, shapes, limits, memory)
    plans = found.plans
    times = step_time(model, gpu, plans)
    step_s = times.total / speed
    throughput = plans.global_batch / step_s
    good, share = goodput(throughput, plans.global_batch, noise_scale, smallest_batch or limits.low)
    order = np.lexsort((plans.global_batch, plans.micro_batch, plans.pp, plans.tp, -good)).astype(np.int64)
    return Ranked(
        tuple(shapes), found, times, step_s, throughput, share, good, order, uncertainty(gpu.uncertainty, samples)
    )
