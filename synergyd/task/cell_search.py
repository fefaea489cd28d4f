"""From shapes to Cells: every fitting plan's step time and goodput, the batch that suits it, and the best plan for each
shape and pipeline degree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from synergyd.exchange import EXACT, Exchange
from synergyd.records import Cell, ModelSpec, Plan, Shape
from synergyd.task.memory_belief import CERTAIN, MemoryBelief
from synergyd.task.model.arrays import Floats, Ints, PlanArrays
from synergyd.task.model.dims import dims
from synergyd.task.model.efficiency import best_batch, goodput
from synergyd.task.model.hardware import GpuFigures
from synergyd.task.model.memory import peak_memory
from synergyd.task.model.step_time import Passes, StepTime, passes
from synergyd.task.plan_limits import PlanLimits
from synergyd.task.plan_space import CandidatePlans, enumerate_plans, unit

LEAST_UNCERTAINTY = 0.03  # step-to-step and placement variation that no number of reports removes


@dataclass(frozen=True, kw_only=True)
class RankedPlans:
    """Fitting plans with what they achieve; arrays of shape (N,). `goodput` is throughput times efficiency times the probability that
    the plan does not run out of memory."""

    shapes: tuple[Shape, ...]
    candidates: CandidatePlans
    times: StepTime
    step_s: Floats
    throughput: Floats
    efficiency: Floats
    goodput: Floats
    uncertainty: float

    @cached_property
    def order(self) -> Ints:
        """Positions, best goodput first. Equal goodput: as enumerated, fewer tensor, then pipeline ranks first."""
        return np.argsort(-self.goodput, kind="stable").astype(np.int64)

    def cell(self, i: int) -> Cell:
        """Plan number `i` as a Cell."""
        return self.cells(np.array([i]))[0]

    def cells(self, indices: Ints) -> list[Cell]:
        """The plans of these numbers as Cells."""
        chosen = self.candidates.take(indices)
        shapes, plans = [self.shapes[n] for n in chosen.shape.tolist()], chosen.plans.records()
        columns = {
            "throughput": self.throughput[indices].tolist(),
            "efficiency": self.efficiency[indices].tolist(),
            "goodput": self.goodput[indices].tolist(),
            "step_s": self.step_s[indices].tolist(),
            "memory_bytes": list(map(math.ceil, chosen.memory.tolist())),
            "sync_s": self._sync_s(indices, shapes, plans),
        }
        rows = zip(*columns.values(), strict=True)
        return [
            Cell(shape=shape, plan=plan, uncertainty=self.uncertainty, **dict(zip(columns, row, strict=True)))
            for shape, plan, row in zip(shapes, plans, rows, strict=True)
        ]

    def _sync_s(self, indices: Ints, shapes: Sequence[Shape], plans: Sequence[Plan]) -> list[float]:
        """Seconds of a step between nodes: data-parallel groups that leave a node, and pipeline stages on several."""
        several = np.array([shape.nodes > 1 for shape in shapes])
        leaves = np.array([p.tp * p.cp * p.dp > s.gpus_per_node for p, s in zip(plans, shapes, strict=True)])
        across = np.where(leaves, self.times.dp[indices], 0.0) + self.times.pp[indices]
        synced: list[float] = np.where(several, across * self.step_s[indices] / self._total_s[indices], 0.0).tolist()
        return synced

    @cached_property
    def _total_s(self) -> Floats:
        return self.times.total

    def best_cells(self) -> list[Cell]:
        """The best plan of each (shape, pp), in order of shape and pp."""
        return self.cells(_best_of_each(self.candidates, self.goodput))


def _best_of_each(candidates: CandidatePlans, good: Floats) -> Ints:
    """Positions of the best of each (shape, pp), in that order; of equals the first."""
    if not len(good):
        return np.zeros(0, dtype=np.int64)
    key = candidates.shape * (int(candidates.plans.pp.max()) + 1) + candidates.plans.pp
    groups = np.argsort(key, kind="stable")
    key, good = key[groups], good[groups]
    starts = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    best = np.repeat(np.maximum.reduceat(good, starts), np.diff(np.r_[starts, len(good)]))
    tops = np.flatnonzero(good == best)
    _, first = np.unique(key[tops], return_index=True)
    return groups[tops[first]].astype(np.int64)


def uncertainty(prior: float, samples: int) -> float:
    """Relative error (one sigma) of a prediction corrected by `samples` reports: prior / sqrt(1 + n), never below 3
    %."""
    return math.hypot(LEAST_UNCERTAINTY, prior / math.sqrt(1 + max(0, samples)))


def rank(
    model: ModelSpec,
    gpu: GpuFigures,
    shapes: Sequence[Shape],
    limits: PlanLimits,
    *,
    noise_scale: float | None = None,
    smallest_batch: int | None = None,
    speed: float = 1.0,
    memory: MemoryBelief = CERTAIN,
    samples: int = 0,
    cells_only: bool = False,
    option: Exchange = EXACT,
) -> RankedPlans:
    """Every fitting plan of `model` on `shapes` of GPU type `gpu`, with its goodput (sequences/s) at the batch of the
    range that suits it best.

    `speed` is a Profile's correction, `memory` what it says of peaks. `cells_only`: plans that are not the best of their shape and pp
    may be left out, which saves time where the batch has a range. `option`: what their replicas exchange; what that makes an example
    worth is not counted.
    """
    candidates = enumerate_plans(model, gpu, shapes, limits, memory)
    if option != EXACT:
        candidates = _exchanging(model, gpu, candidates, option, memory)
    least = smallest_batch or limits.low
    made_of = passes(dims(model), gpu, candidates.plans)
    times = made_of.step(candidates.plans)
    if limits.low < limits.high and noise_scale is not None and len(candidates.plans):
        plans, estimate = _best_batches(made_of, candidates, times.total, noise_scale, least, limits.batch_unit)
        candidates = replace(candidates, plans=plans)
        if cells_only:
            candidates = candidates.take(_best_of_each(candidates, estimate * (1 - candidates.risk)))
            made_of = passes(dims(model), gpu, candidates.plans)
        times = made_of.step(candidates.plans)
    step_s = times.total / speed
    throughput = candidates.plans.global_batch / step_s
    good, share = goodput(throughput, candidates.plans.global_batch, noise_scale, least)
    sigma = uncertainty(gpu.uncertainty, samples)
    return RankedPlans(
        shapes=tuple(shapes),
        candidates=candidates,
        times=times,
        step_s=step_s,
        throughput=throughput,
        efficiency=share,
        goodput=good * (1 - candidates.risk),
        uncertainty=sigma,
    )


def _exchanging(
    model: ModelSpec, gpu: GpuFigures, candidates: CandidatePlans, option: Exchange, memory: MemoryBelief
) -> CandidatePlans:
    """The plans with `option`, of which those that need too much memory with it are left out."""
    candidates = replace(candidates, plans=candidates.plans.exchanging(option))
    peak = peak_memory(model, gpu, candidates.plans).total
    candidates = replace(candidates, memory=peak * memory.factor, risk=memory.risk(gpu, peak))
    return candidates.take(np.flatnonzero(peak <= memory.limit(gpu)))


def _best_batches(
    made_of: Passes, candidates: CandidatePlans, largest_s: Floats, noise_scale: float, least: int, batch_unit: int
) -> tuple[PlanArrays, Floats]:
    """Each plan at the batch of its range where its goodput is highest, and that goodput but for speed.

    The time of a step grows by the same amount with each micro-batch, so two points determine it for all batches and the
    best one is known in closed form (efficiency.best_batch), and so is the better of the multiples of the plan's unit on
    its two sides. A smaller batch never takes more memory.
    """
    plans = candidates.plans
    low, high, step = candidates.smallest, plans.global_batch, unit(plans, batch_unit)

    low_s = made_of.step(replace(plans, global_batch=low)).total
    slope = (largest_s - low_s) / np.maximum(high - low, 1)
    fixed = low_s - slope * low
    wanted = best_batch(fixed, slope, noise_scale)
    below = np.clip(np.floor(wanted / step).astype(np.int64) * step, low, high)
    above = np.minimum(below + step, high)

    def value(batch: Ints) -> Floats:
        return goodput(batch / np.maximum(fixed + slope * batch, 1e-12), batch, noise_scale, least)[0]

    lower, upper = value(below), value(above)
    return replace(plans, global_batch=np.where(upper > lower, above, below)), np.maximum(lower, upper)
