"""GPUs that accounts and partitions may still take while jobs get Cells one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synergyd.scheduler.problem.records import Allocation, GpuLimit, JobRequest, Problem
from synergyd.scheduler.problem.utility import allocation as allocation_of


class Allowance:
    """GPUs left under each of the problem's limits, with `choice` given out."""

    def __init__(self, problem: Problem, choice: Sequence[int | None] = ()) -> None:
        self._limits = problem.limits
        self._left = [limit.gpus for limit in problem.limits]
        for ask, picked in zip(problem.asks, choice, strict=False):
            self.change(ask, None, picked)

    def allows(self, ask: JobRequest, before: int | None, after: int | None) -> bool:
        """May the job go from one of its Cells (None: it waits) to another? Giving GPUs back always may."""
        return self.exceeded(ask, before, after) is None

    def exceeded(self, ask: JobRequest, before: int | None, after: int | None) -> GpuLimit | None:
        """The first limit that such a step would go beyond; its GPUs are those that the problem's jobs may have."""
        if not self._limits:
            return None
        more = _gpus(ask, after) - _gpus(ask, before)
        for limit, left in zip(self._limits, self._left, strict=True):
            if more > max(left, 0) and limit.binds(ask):
                return limit
        return None

    def change(self, ask: JobRequest, before: int | None, after: int | None) -> None:
        more = _gpus(ask, after) - _gpus(ask, before)
        for i, limit in enumerate(self._limits):
            if limit.binds(ask):
                self._left[i] -= more


def within_limits(problem: Problem, allocated: Allocation) -> Allocation:
    """`allocated` with the changes undone that exceed a limit: for policies that ignore limits. Of the jobs that start or change,
    the last submitted give way first."""
    if not problem.limits:
        return allocated
    kept = [
        ask.current if picked is not None else None for ask, picked in zip(problem.asks, allocated.choice, strict=True)
    ]
    allowance = Allowance(problem, kept)
    order = sorted(range(len(kept)), key=lambda i: (problem.asks[i].submit_s, problem.asks[i].job_id))
    # those that give GPUs back first: others may take them
    order.sort(key=lambda i: _gpus(problem.asks[i], allocated.choice[i]) > _gpus(problem.asks[i], kept[i]))
    for i in order:
        if allowance.allows(problem.asks[i], kept[i], allocated.choice[i]):
            allowance.change(problem.asks[i], kept[i], allocated.choice[i])
            kept[i] = allocated.choice[i]
    if tuple(kept) == allocated.choice:
        return allocated
    moved = frozenset(i for i in allocated.moved if kept[i] == allocated.choice[i])
    return replace(allocation_of(problem, kept, moved), upper_bound=allocated.upper_bound)


def _gpus(ask: JobRequest, index: int | None) -> int:
    return 0 if index is None else ask.cells[index].shape.gpus
