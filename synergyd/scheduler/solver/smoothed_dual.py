"""The few columns that can be part of a best answer while prices stay inside a box, and the dual over them.

Dual (Fisher 1981): D(l) = limit.l + sum over jobs of max(0, max over columns of utility - use.l), convex, an upper bound
for every l >= 0. Smoothed at temperature t, max becomes t log(1 + sum exp(./t)): its gradient is limit less the expected
use when each job picks its column with those (softmax) probabilities, so Newton's method finds prices at which the
expected use is the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from synergyd.scheduler.solver.instance import Floats, Instance, Ints, pointers, segment_max


@dataclass(frozen=True, kw_only=True)
class ReducedCore:
    """Columns kept: `column_rows` [n] is their place in the instance, `jobs` [m] the jobs that have any, `ptr` [m + 1].

    Exact for prices within [low, high]: there no column left out beats the best one kept.
    """

    column_rows: Ints
    jobs: Ints
    ptr: Ints
    kind: Ints
    utility: Floats
    use: Floats
    limit: Floats
    low: Floats
    high: Floats

    @property
    def row(self) -> Ints:
        """Return the number within `jobs` of each column's job [n]."""
        return np.repeat(np.arange(len(self.jobs)), np.diff(self.ptr))


@dataclass(frozen=True, kw_only=True)
class SmoothedDual:
    """The smoothed dual at some prices.

    `entropy_gap` = temperature x entropy: D - D* is no more than that where the expected use is the limit. `share` [n]:
    probability of each column, `none` [m] of no column.
    """

    prices: Floats
    temperature: float
    value: float
    gradient: Floats
    hessian: Floats
    entropy_gap: float
    share: Floats
    none: Floats


def reduced_core(full: Instance, low: Floats, high: Floats) -> ReducedCore:
    """Return the columns that are some job's best choice for some prices within [low, high] (R each), and better than no column."""
    cheap, dear = full.costs(low), full.costs(high)
    kept_columns, lens = [], []
    for first, end, start, stop in full.chunks():
        ptr = full.indptr[first : end + 1] - start
        kind, utility = full.kind[start:stop], full.utility[start:stop]
        worst = np.take(dear, kind, mode="clip")
        np.subtract(utility, worst, out=worst)
        floor = segment_max(worst, ptr)
        best = np.take(cheap, kind, mode="clip", out=worst)
        np.subtract(utility, best, out=best)
        keep = best >= np.repeat(floor, np.diff(ptr))
        keep &= best > 0
        indices = np.flatnonzero(keep)
        kept_columns.append(indices + start)
        lens.append(np.diff(np.searchsorted(indices, ptr)))
    at = np.concatenate(kept_columns) if kept_columns else np.zeros(0, dtype=np.intp)
    counts = np.concatenate(lens) if lens else np.zeros(0, dtype=np.intp)
    jobs = np.flatnonzero(counts)
    return ReducedCore(
        column_rows=at,
        jobs=jobs,
        ptr=pointers(counts[jobs]),
        kind=full.kind[at],
        utility=full.utility[at],
        use=full.use,
        limit=full.limit,
        low=low,
        high=high,
    )


def smooth(core: ReducedCore, prices: Floats, temperature: float) -> SmoothedDual:
    """Compute the value, gradient and Hessian of the smoothed dual."""
    row, starts = core.row, core.ptr[:-1]
    margin = np.take(core.use @ prices, core.kind)
    np.subtract(core.utility, margin, out=margin)
    margin /= temperature
    top = segment_max(margin, core.ptr)
    share = np.exp(margin - top[row])
    none = np.exp(-top)
    total = none + (np.add.reduceat(share, starts) if len(starts) else 0.0)
    share /= total[row]
    none /= total
    logs = top + np.log(total)
    value = temperature * logs.sum()
    mean_use = np.bincount(core.kind, share, minlength=len(core.use))
    use_by_job = csr_array((share, core.kind, core.ptr), shape=(len(core.jobs), len(core.use))) @ core.use
    hessian = ((core.use * mean_use[:, None]).T @ core.use - use_by_job.T @ use_by_job) / temperature
    return SmoothedDual(
        prices=prices,
        temperature=temperature,
        value=float(value + prices @ core.limit),
        gradient=core.limit - mean_use @ core.use,
        hessian=hessian,
        entropy_gap=float(value - temperature * (share @ margin)),
        share=share,
        none=none,
    )


def newton(core: ReducedCore, prices: Floats, temperature: float, steps: int, tolerance: float) -> SmoothedDual:
    """Run projected Newton within the core's box, until prices.|excess use| <= tolerance x value or `steps` are done."""
    now = smooth(core, np.clip(prices, core.low, core.high), temperature)
    # A price of the right order: a row that is free of charge may be exceeded all the same.
    usual = abs(now.value) / max(float(core.limit.sum()), 1e-9)
    for _ in range(steps):
        down = now.gradient > 0
        free = np.where(down, now.prices > core.low, now.prices < core.high)
        weight = np.where(down, now.prices, np.maximum(now.prices, usual))
        if not free.any() or weight[free] @ np.abs(now.gradient[free]) <= tolerance * abs(now.value):
            break
        step = np.zeros(len(prices))
        block = now.hessian[np.ix_(free, free)]
        block = block + np.diag(1e-9 * np.diag(block) + 1e-12 * (1.0 + np.trace(block)))
        step[free] = -np.linalg.solve(block, now.gradient[free])
        # Far from the answer the model is poor: no price more than doubles or so in one step.
        step = np.clip(step, -now.prices, now.prices + 0.5 * max(now.prices.max(initial=0.0), usual))
        size = 1.0
        for _ in range(12):
            trial = smooth(core, np.clip(now.prices + size * step, core.low, core.high), temperature)
            if trial.value <= now.value + 1e-4 * float(now.gradient @ (trial.prices - now.prices)):
                break
            size *= 0.4
        else:
            break
        now = trial
    return now


def inside_box(core: ReducedCore, now: SmoothedDual) -> bool:
    """Return whether the prices are a minimum over all prices >= 0, not only over the box."""
    stuck_high = (now.prices >= core.high) & (now.gradient < 0)
    stuck_low = (now.prices <= core.low) & (core.low > 0) & (now.gradient > 0)
    return not bool((stuck_high | stuck_low).any())
