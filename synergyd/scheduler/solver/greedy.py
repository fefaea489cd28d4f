"""A quick feasible allocation that moves no job: running jobs stay, waiting ones start, then the job that gains most grows.

The answer of last resort, when the exact solver has run out of time, and the start that it must not fall below.
"""

from __future__ import annotations

from collections.abc import Mapping

from synergy_core.records import Shape

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.problem.gpu_limits import Allowance
from synergyd.scheduler.problem.records import Allocation, Problem
from synergyd.scheduler.problem.utility import allocation
from synergyd.scheduler.solver.columns import Column, columns


def fill(problem: Problem, allocated: Allocation, nodes: Mapping[int, tuple[str, ...]]) -> Allocation:
    """Return `allocated` with waiting jobs started on the free GPUs, best gain a GPU first.

    The jobs of `allocated` are on `nodes` (by job id).
    """
    free_gpus, choice = FreeGpus(problem.nodes), list(allocated.choice)
    allowance = Allowance(problem, choice)
    for i, cell, _ in allocated.assignments(problem):
        free_gpus.take(nodes[problem.jobs[i].job_id], cell.shape.gpus_per_node, problem.jobs[i].needs)
    waiting = [i for i, picked in enumerate(choice) if picked is None and problem.jobs[i].current is None]
    pairs = [(i, column) for i in waiting for column in columns(problem.jobs[i], problem.terms)]
    for i, column in sorted(pairs, key=lambda pair: (-pair[1].gain / pair[1].gpus, problem.jobs[pair[0]].job_id)):
        job = problem.jobs[i]
        if choice[i] is not None or not allowance.allows(job, None, column.cell):
            continue
        names = free_gpus.pick(job.cells[column.cell].shape, job.node_filter, needs=job.needs, shun=job.shun)
        if names is not None:
            free_gpus.take(names, column.gpus_per_node, job.needs)
            allowance.change(job, None, column.cell)
            choice[i] = column.cell
    return allocation(problem, choice, allocated.moved_jobs, allocated.upper_bound)


def greedy(problem: Problem, upper_bound: float = float("inf"), grow: bool = True) -> Allocation:
    """Return an allocation that is feasible: each job is placed on nodes as it is chosen. With `grow` False running jobs stay."""
    return greedy_on_nodes(problem, upper_bound, grow)[0]


def greedy_on_nodes(
    problem: Problem, upper_bound: float = float("inf"), grow: bool = True
) -> tuple[Allocation, Placement]:
    """Run `greedy`, and return its allocation with the nodes of every job that has a Cell.

    Waiting jobs come in order of gain per GPU (ties: first submitted), then changes in order of gain per extra GPU.
    """
    free_gpus = FreeGpus(problem.nodes, problem.spanned_nodes if problem.room else None)
    choice: list[int | None] = [job.current for job in problem.jobs]
    places: list[tuple[tuple[str, ...], Shape] | None] = [None] * len(choice)
    gains = [0.0] * len(choice)
    for i, job in enumerate(problem.jobs):
        if job.current is not None:
            places[i] = (job.nodes, job.cells[job.current].shape)
            free_gpus.take(job.nodes, job.cells[job.current].shape.gpus_per_node, job.needs)
    options = [columns(job, problem.terms) for job in problem.jobs]
    allowance = Allowance(problem, choice)

    def attempt(i: int, column: Column) -> None:
        before = places[i]
        if not allowance.allows(problem.jobs[i], choice[i], column.cell):
            return
        job = problem.jobs[i]
        if before:
            free_gpus.give(before[0], before[1].gpus_per_node, job.needs)
        shape = job.cells[column.cell].shape
        names = free_gpus.pick(shape, job.node_filter, before[0] if before else (), needs=job.needs, shun=job.shun)
        if names is not None:
            allowance.change(job, choice[i], column.cell)
            places[i], choice[i], gains[i] = (names, shape), column.cell, column.gain
            free_gpus.take(names, shape.gpus_per_node, job.needs)
        elif before:
            free_gpus.take(before[0], before[1].gpus_per_node, job.needs)

    def rank(pair: tuple[int, Column]) -> tuple[float, float, int, int]:
        i, column = pair
        return (-column.gain / column.gpus, problem.jobs[i].submit_s, problem.jobs[i].job_id, column.cell)

    every = sorted(((i, c) for i, own in enumerate(options) for c in own), key=rank)
    for i, column in every:
        if choice[i] is None:
            attempt(i, column)
    for i, column in every:
        job = problem.jobs[i]
        # A move in place of a stay can't gain here: no other job is moved for it.
        if column.gain > gains[i] and column.cell != job.current and (grow or job.current is None):
            attempt(i, column)
    nodes = {job.job_id: own[0] for job, own in zip(problem.jobs, places, strict=True) if own is not None}
    return allocation(problem, choice, upper_bound=upper_bound), Placement(nodes, {}, free_gpus.free)
