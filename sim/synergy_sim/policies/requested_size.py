"""Helpers of the policies that Synergy is compared with: the size asked for, the order of submission, the time left."""

from __future__ import annotations

import math

from synergy_core.records import Cell, Shape

from synergyd.scheduler.problem.records import JobRequest, Problem
from synergyd.scheduler.problem.utility import is_growth_refused, smallest


def requested_size(job: JobRequest) -> int | None:
    """Return the index of the Cell of the size asked for, or None where no plan fits it: such a job is not started at another size.

    A job that runs at that shape keeps its present Cell: a better plan alone is no reason for these policies to restart it.
    """
    want = job.requested_cell
    if want is not None and job.current is not None and job.cells[job.current].shape == job.cells[want].shape:
        return job.current
    return want


def requested_or_smallest(job: JobRequest) -> int:
    """Return the same for policies that choose sizes: where no plan fits the size asked for, the smallest Cell."""
    want = requested_size(job)
    return smallest(job.cells) if want is None else want


def by_submission(problem: Problem) -> list[int]:
    """Return the indices of all jobs, first submitted first (job id on ties)."""
    return sorted(range(len(problem.jobs)), key=lambda i: (problem.jobs[i].submit_s, problem.jobs[i].job_id))


def seconds_left(job: JobRequest, cell: Cell) -> float:
    """Return the seconds until the job's end on this Cell; infinite where its remaining work or its goodput is not known."""
    remaining = job.progress.remaining
    return math.inf if remaining is None or cell.goodput <= 0 else max(0.0, remaining) / cell.goodput


def best_of_shapes(job: JobRequest) -> dict[Shape, int]:
    """Return the index of the best Cell of each shape, without banned ones.

    The present shape always has the present Cell, so that a policy which thinks in GPU counts restarts no job for a better plan.
    """
    best: dict[Shape, int] = {}
    for i, cell in enumerate(job.cells):
        before = best.get(cell.shape)
        if i not in job.banned_cells and (before is None or job.relative[i] > job.relative[before]):
            best[cell.shape] = i
    if job.current is not None:
        best[job.cells[job.current].shape] = job.current
    return best


def within_growth(job: JobRequest, problem: Problem, factor: float) -> dict[Shape, int]:
    """Return those of `best_of_shapes` with at most `factor` times the present GPUs and within the settings' own bound.

    A waiting job starts with the least that it runs on, for each GPU type. The present Cell is always among them.
    """
    best = best_of_shapes(job)
    least: dict[str, int] = {}
    for shape in best:
        least[shape.gpu_type] = min(shape.gpus, least.get(shape.gpu_type, shape.gpus))
    now = None if job.current is None else job.cells[job.current].shape.gpus
    return {
        shape: i
        for shape, i in best.items()
        if i == job.current
        or (
            shape.gpus <= (least[shape.gpu_type] if now is None else factor * now)
            and not is_growth_refused(job, i, problem.terms)
        )
    }
