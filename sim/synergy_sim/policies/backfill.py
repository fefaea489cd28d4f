"""EASY backfilling, the core of Slurm's sched/backfill (Lifka, JSSPP'95; Mu'alem and Feitelson, TPDS 2001)."""

from __future__ import annotations

import math
from bisect import bisect_left

from synergy_core.records import Shape

from synergy_sim.policies.requested_size import by_submission, requested_size, seconds_left
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement, make_placement_requests, place
from synergyd.scheduler.problem.records import Allocation, JobRequest, Policy, Problem
from synergyd.scheduler.problem.utility import allocation


class BackfillPolicy(Policy):
    """FIFO at the size asked for, with backfill.

    Behind the first job that must wait (the head), a job starts only if the head can start no later for it.

    The head's time is the earliest at which enough GPUs are free, by the ends of the jobs that run (seconds left on
    their Cells). Jobs of unknown length never end, so a head that waits for such ones has no time, and only jobs on
    nodes that it can't use pass it. A job too big for the empty machine, or that no plan fits at its size, is passed over.
    Lengths are the predicted ones, where Slurm goes by time limits; at most `depth` jobs behind the head are tried (Slurm:
    bf_max_job_test).
    """

    sizes_fixed = True
    rule = "first come, first served at the size asked for, and nobody may delay the first one that waits"

    def __init__(self, depth: int = 500) -> None:
        self._depth = depth

    def allocate(self, problem: Problem) -> Allocation:
        empty = FreeGpus(problem.nodes)
        choice: list[int | None] = [job.current for job in problem.jobs]
        placement = _place_choice(problem, choice)
        guard: _Reservation | None = None
        trials = 0
        for i in by_submission(problem):
            job, want = problem.jobs[i], requested_size(problem.jobs[i])
            if want is None:
                continue
            shape = job.cells[want].shape
            if (
                job.current is not None
                or want in job.banned_cells
                or empty.pick(shape, job.node_filter, needs=job.needs) is None
            ):
                continue
            trials += guard is not None
            if trials > self._depth:
                break
            trial = [*choice[:i], want, *choice[i + 1 :]]
            after = _place_choice(problem, trial) if _can_fit(problem, placement, job, shape) else None
            if after is None or after.unplaced_reasons:
                guard = guard or _Reservation(problem, choice, placement, job, shape)
            elif guard is None or guard.can_start(trial, after, i):
                choice, placement = trial, after
        return allocation(problem, choice)


class _Reservation:
    """The head's reservation: it must be able to start at `time_s` (seconds from now), whichever jobs pass it."""

    def __init__(
        self, problem: Problem, choice: list[int | None], placement: Placement, head: JobRequest, shape: Shape
    ) -> None:
        self._problem, self._head, self._shape = problem, head, shape
        ends = sorted({_end(problem.jobs[i], c) for i, c in enumerate(choice) if c is not None} - {math.inf})
        # The later, the more is free: the first time that suffices is found by halving.
        first = bisect_left(ends, True, key=lambda end: self._can_start(end, choice, placement))
        self.time_s = ends[first] if first < len(ends) else math.inf

    def can_start(self, choice: list[int | None], placement: Placement, newcomer: int) -> bool:
        if math.isfinite(self.time_s):
            return self._can_start(self.time_s, choice, placement)
        nodes = {r.name: r for r in self._problem.nodes}
        names = [nodes[name] for name in placement.nodes[self._problem.jobs[newcomer].job_id]]
        return not any(r.gpu_type == self._shape.gpu_type and r.admits(self._head.node_filter) for r in names)

    def _can_start(self, time_s: float, choice: list[int | None], placement: Placement) -> bool:
        free_gpus = FreeGpus(self._problem.nodes)
        for job, picked in zip(self._problem.jobs, choice, strict=True):
            if picked is not None and _end(job, picked) > time_s:
                free_gpus.take(placement.nodes[job.job_id], job.cells[picked].shape.gpus_per_node, job.needs)
        return free_gpus.pick(self._shape, self._head.node_filter, needs=self._head.needs) is not None


def _end(job: JobRequest, choice: int) -> float:
    return seconds_left(job, job.cells[choice])


def _place_choice(problem: Problem, choice: list[int | None]) -> Placement:
    return place(problem.nodes, make_placement_requests(problem, allocation(problem, choice)))


def _can_fit(problem: Problem, placement: Placement, job: JobRequest, shape: Shape) -> bool:
    """Return whether enough GPUs are left in all. Only the placement of all jobs shows whether they are on the right nodes."""
    usable = (r for r in problem.nodes if r.gpu_type == shape.gpu_type and r.admits(job.node_filter))
    return sum(placement.free_gpus[r.name] for r in usable) >= shape.gpus
