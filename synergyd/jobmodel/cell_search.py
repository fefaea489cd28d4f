"""From shapes to Cells: the best plan for each shape and pipeline degree.

The search computes every fitting plan's step time and goodput, and the batch that suits it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from synergy_core.exchange import EXACT, Exchange
from synergy_core.records import Cell, ModelSpec, Plan, Shape

from synergyd.jobmodel.memory_belief import CERTAIN, MemoryBelief
from synergyd.jobmodel.model.arrays import Floats, Ints, PlanArrays
from synergyd.jobmodel.model.dims import dims
from synergyd.jobmodel.model.efficiency import best_batch, goodput
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.step_time import Passes, StepTime, passes
from synergyd.jobmodel.plan_limits import PlanLimits
from synergyd.jobmodel.plan_space import CandidatePlans, enumerate_plans, unit

LEAST_UNCERTAINTY = 0.03  # step-to-step and placement variation that no number of reports removes


@dataclass(frozen=True)
class CellSearchResult:
    """A job's Cells, or one line that says why there are none."""

    cells: tuple[Cell, ...]
    why_none: str
    #: there are some, and all are banned
    all_failed: bool = False
    #: a sentence on a batch range that it would gain from, with a blank before it; None: not looked for yet
    advice: str | None = ""
    #: the same for a line of `status`
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class RankedPlans:
    """Fitting plans with what they achieve; arrays of shape (N,).

    `goodput` is throughput times efficiency times the probability that the plan does not run out of memory.
    """

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
        """Return the positions of the plans, best goodput first.

        Plans of equal goodput stay in the order of enumeration: fewer tensor ranks first, then fewer pipeline ranks.
        """
        return np.argsort(-self.goodput, kind="stable").astype(np.int64)

    def cell(self, i: int) -> Cell:
        """Return plan number `i` as a Cell."""
        return self.cells(np.array([i]))[0]

    def cells(self, indices: Ints) -> list[Cell]:
        """Return the plans numbered `indices` as Cells."""
        selection = self.candidates.take(indices)
        shapes, plans = [self.shapes[n] for n in selection.shape.tolist()], selection.plans.records()
        columns = {
            "throughput": self.throughput[indices].tolist(),
            "efficiency": self.efficiency[indices].tolist(),
            "goodput": self.goodput[indices].tolist(),
            "step_s": self.step_s[indices].tolist(),
            "memory_bytes": list(map(math.ceil, selection.memory.tolist())),
            "sync_s": self._sync_s(indices, shapes, plans),
        }
        rows = zip(*columns.values(), strict=True)
        return [
            Cell(shape=shape, plan=plan, uncertainty=self.uncertainty, **dict(zip(columns, row, strict=True)))
            for shape, plan, row in zip(shapes, plans, rows, strict=True)
        ]

    def _sync_s(self, indices: Ints, shapes: Sequence[Shape], plans: Sequence[Plan]) -> list[float]:
        """Return the seconds of each step spent between nodes.

        These go to data-parallel groups that leave a node, and to pipeline stages on several nodes.
        """
        several = np.array([shape.nodes > 1 for shape in shapes])
        leaves = np.array([p.tp * p.cp * p.dp > s.gpus_per_node for p, s in zip(plans, shapes, strict=True)])
        across = np.where(leaves, self.times.dp[indices], 0.0) + self.times.pp[indices]
        synced: list[float] = np.where(several, across * self.step_s[indices] / self._total_s[indices], 0.0).tolist()
        return synced

    @cached_property
    def _total_s(self) -> Floats:
        return self.times.total

    def best_cells(self) -> list[Cell]:
        """Return the best plan of each (shape, pp), in order of shape and pp."""
        return self.cells(_best_of_each(self.candidates, self.goodput))


def _best_of_each(candidates: CandidatePlans, good: Floats) -> Ints:
    """Return the positions of the best plan of each (shape, pp), in that order. Among equals the first is chosen."""
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
    """Return the relative error (one sigma) of a prediction corrected by `samples` reports.

    It is prior / sqrt(1 + n), never below 3 %.
    """
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
    present_batch: int | None = None,
) -> RankedPlans:
    """Return every fitting plan of `model` on `shapes` of GPU type `gpu`, with its goodput (sequences/s) at the best batch of the range.

    `speed` is a Profile's correction, `memory` what it says of peaks. With `cells_only`, plans that are not the best of their
    shape and pp may be left out, which saves time where the batch has a range. `option` is what the replicas exchange; its effect
    on what an example is worth is not counted. `present_batch`: at which the job has `noise_scale` (efficiency.noise_scale_at).
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
    good, share = goodput(throughput, candidates.plans.global_batch, noise_scale, least, present_batch)
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
    """Return the plans with `option`, without those that need too much memory with it."""
    candidates = replace(candidates, plans=candidates.plans.exchanging(option))
    peak = peak_memory(model, gpu, candidates.plans).total
    candidates = replace(candidates, memory=peak * memory.factor, risk=memory.risk(gpu, peak))
    return candidates.take(np.flatnonzero(peak <= memory.limit(gpu)))


def _best_batches(
    made_of: Passes, candidates: CandidatePlans, largest_s: Floats, noise_scale: float, least: int, batch_unit: int
) -> tuple[PlanArrays, Floats]:
    """Return each plan at the batch of its range with the highest goodput, and that goodput before the speed correction.

    The time of a step grows by the same amount with each micro-batch, so two points determine it for all batches. The best batch
    is therefore known in closed form (efficiency.best_batch), and so is the better of the two multiples of the plan's unit on
    either side of it. A smaller batch never takes more memory.
    """
    plans = candidates.plans
    low, high, step = candidates.smallest, plans.global_batch, unit(plans, batch_unit)

    low_s = made_of.step(replace(plans, global_batch=low)).total
    slope = (largest_s - low_s) / np.maximum(high - low, 1)
    fixed = low_s - slope * low
    optimal_batch = best_batch(fixed, slope, noise_scale)
    below = np.clip(np.floor(optimal_batch / step).astype(np.int64) * step, low, high)
    above = np.minimum(below + step, high)

    def value(batch: Ints) -> Floats:
        return goodput(batch / np.maximum(fixed + slope * batch, 1e-12), batch, noise_scale, least)[0]

    lower, upper = value(below), value(above)
    return replace(plans, global_batch=np.where(upper > lower, above, below)), np.maximum(lower, upper)
