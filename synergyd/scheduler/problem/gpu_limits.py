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
        for job, picked in zip(problem.jobs, choice, strict=False):
            self.change(job, None, picked)

    def allows(self, job: JobRequest, before: int | None, after: int | None) -> bool:
        """May the job go from one of its Cells (None: it waits) to another? Giving GPUs back always may."""
        return self.exceeded(job, before, after) is None

    def exceeded(self, job: JobRequest, before: int | None, after: int | None) -> GpuLimit | None:
        """The first limit that such a step would go beyond; its GPUs are those that the problem's jobs may have."""
        if not self._limits:
            return None
        more = _gpus(job, after) - _gpus(job, before)
        for limit, left in zip(self._limits, self._left, strict=True):
            if more > max(left, 0) and limit.binds(job):
                return limit
        return None

    def change(self, job: JobRequest, before: int | None, after: int | None) -> None:
        more = _gpus(job, after) - _gpus(job, before)
        for i, limit in enumerate(self._limits):
            if limit.binds(job):
                self._left[i] -= more


def within_limits(problem: Problem, allocated: Allocation) -> Allocation:
    """`allocated` with the changes undone that exceed a limit: for policies that ignore limits. Of the jobs that start or change,
    the last submitted give way first."""
    if not problem.limits:
        return allocated
    kept = [
        job.current if picked is not None else None for job, picked in zip(problem.jobs, allocated.choice, strict=True)
    ]
    allowance = Allowance(problem, kept)
    order = sorted(range(len(kept)), key=lambda i: (problem.jobs[i].submit_s, problem.jobs[i].job_id))
    # those that give GPUs back first: others may take them
    order.sort(key=lambda i: _gpus(problem.jobs[i], allocated.choice[i]) > _gpus(problem.jobs[i], kept[i]))
    for i in order:
        if allowance.allows(problem.jobs[i], kept[i], allocated.choice[i]):
            allowance.change(problem.jobs[i], kept[i], allocated.choice[i])
            kept[i] = allocated.choice[i]
    if tuple(kept) == allocated.choice:
        return allocated
    moved = frozenset(i for i in allocated.moved if kept[i] == allocated.choice[i])
    return replace(allocation_of(problem, kept, moved), upper_bound=allocated.upper_bound)


def _gpus(job: JobRequest, index: int | None) -> int:
    return 0 if index is None else job.cells[index].shape.gpus
