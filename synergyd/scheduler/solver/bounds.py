"""The value of a choice and the upper bound of all choices, computed from the instance alone."""

from __future__ import annotations

import numpy as np

from synergyd.scheduler.solver.instance import Bools, Floats, Instance, Ints, segment_max

SLACK = 1e-9  # relative: sums of thousands of floats


def best_margins(full: Instance, prices: Floats) -> Floats:
    """Return each job's largest utility less price [N], at least 0 (no column)."""
    cost = full.costs(prices)
    margins = np.zeros(full.jobs)
    for first, end, start, stop in full.chunks():
        margin = np.take(cost, full.kind[start:stop], mode="clip")
        np.subtract(full.utility[start:stop], margin, out=margin)
        margins[first:end] = segment_max(margin, full.indptr[first : end + 1] - start)
    return margins


def compute_upper_bound(full: Instance, prices: Floats, margins: Floats | None = None) -> float:
    """Return the dual at `prices` [R] >= 0: no feasible choice has a higher value."""
    best = best_margins(full, prices) if margins is None else margins
    return float(best.sum() + prices @ full.limit)


def usage(full: Instance, choice: Ints) -> Floats:
    """Return the use of each row [R] by a choice [N] (columns or -1)."""
    counts = np.bincount(full.kind[choice[choice >= 0]], minlength=len(full.use))
    use: Floats = counts @ full.use
    return use


def objective(full: Instance, choice: Ints) -> float:
    """Return the sum of the chosen columns' utility."""
    return float(full.utility[choice[choice >= 0]].sum())


def feasible(full: Instance, choice: Ints) -> bool:
    """Return whether each job has one column of its own or none, and every row is within its limit."""
    has_column = choice >= 0
    own: Bools = (choice >= full.indptr[:-1]) & (choice < full.indptr[1:])
    within = usage(full, choice) <= full.limit * (1 + SLACK) + SLACK
    return bool((own | ~has_column).all() and within.all())


def near_columns(full: Instance, prices: Floats, margins: Floats, slack: float) -> tuple[Ints, Ints]:
    """Return (columns, their jobs) that a choice within `slack` of the dual bound may contain.

    These are the columns whose regret, the job's best margin less their own, is at most `slack`. Any other column costs the
    bound more than that.
    """
    cost = full.costs(prices)
    columns, jobs = [], []
    for first, end, start, stop in full.chunks():
        ptr = full.indptr[first : end + 1] - start
        regret = np.repeat(margins[first:end], np.diff(ptr))
        regret += np.take(cost, full.kind[start:stop], mode="clip")
        regret -= full.utility[start:stop]
        at = np.flatnonzero((regret <= slack) & (full.utility[start:stop] > 0))
        columns.append(at + start)
        jobs.append(np.searchsorted(ptr, at, side="right") - 1 + first)
    if not columns:
        return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
    return np.concatenate(columns), np.concatenate(jobs)
