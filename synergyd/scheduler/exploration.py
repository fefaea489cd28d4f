"""Trials of larger sizes whose goodput is uncertain, on GPUs that no other job wants.

The trial of a Cell of expected goodput g, one sigma s, is worth what comes after it: the job stays there if it is better, else it
goes back to its goodput now, at the cost of a restart and of the time tried. With log X normal, mean g, and k = goodput now x what
that leaves (knowledge gradient: Frazier, Powell, Dayanik 2008),

    E[max(X, k)] = g F((ln(g / k) + s^2 / 2) / s) + k F((ln(k / g) + s^2 / 2) / s)        F: the standard normal's distribution

A trial is made where that, with the restart factor of going there, is 1 % more than the goodput now. So it pays for its two
restarts, as far as the job's age and length are known, and ends once the size was measured.
"""

from __future__ import annotations

import math
from collections import Counter

from synergy_core.formatting import format_shape, format_size
from synergy_core.reasons import Reason
from synergy_core.records import Cell

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement, make_placement_requests, place
from synergyd.scheduler.problem.cell_index import MEASURED, CellIndex
from synergyd.scheduler.problem.gpu_limits import Allowance, within_limits
from synergyd.scheduler.problem.records import Allocation, JobRequest, Problem
from synergyd.scheduler.problem.utility import allocation as allocation_of
from synergyd.scheduler.problem.utility import is_growth_refused, restart_factor

#: times the present GPUs, at most: Pollux's bound, too, on sizes beyond those measured (OSDI'21, section 4.1)
_REACH = 2
_TRIES = 4  # placements tried an epoch
_STARTS = 32  # jobs an epoch that start as they asked: each looks at all nodes, 40 ms of 10,000
# times the present goodput that a trial must be worth: what is at stake must be more than the arithmetic's own error
_GAIN = 1.01
_SURELY_WORSE = 2.0  # sigmas: 2.3 % of normal errors are larger


def explore(
    problem: Problem, allocated: Allocation, placement: Placement
) -> tuple[Allocation, Placement, int, int] | None:
    """Return the allocation with one running job on a size that it tries, or None where no trial is worth it.

    The job uses GPUs that the allocation leaves free; its index and that of its Cell are returned, too. Every other job keeps
    what it was given. No trial takes a bad node.
    """
    idle = _idle(problem, allocated)
    if not any(free > 0 for free in idle.values()) or any(choice is None for choice in allocated.choice):
        return None  # a job that waits wants them
    trials: list[tuple[float, int, int]] = []
    for i, (job, choice) in enumerate(zip(problem.jobs, allocated.choice, strict=True)):
        if choice is not None and choice == job.current and i not in allocated.moved_jobs:
            gains = _trials(job, choice, idle).items()
            trials += [(-gain, i, index) for index, gain in gains if not is_growth_refused(job, index, problem.terms)]
    for _, i, index in sorted(trials)[:_TRIES]:
        choices = list(allocated.choice)
        choices[i] = index
        found_place = _place(problem, choices, allocated.moved_jobs)
        if found_place is not None and _bad(problem, *found_place) <= _bad(problem, allocated, placement):
            return *found_place, i, index
    return None


def start_at_requested_size(
    problem: Problem, allocated: Allocation, placement: Placement
) -> tuple[Allocation, Placement] | None:
    """Return the allocation with jobs at the size asked for where they would start on fewer GPUs.

    This is done as far as GPUs are left over and the jobs are not known to be slower at that size, by measurements or by more
    than the figures' error. The result is None where nothing changes. The size that a user asked for is evidence. Every other
    job keeps its nodes, and no bad node is taken.
    """
    if any(choice is None for choice in allocated.choice):
        return None  # a job that waits wants them
    idle = _idle(problem, allocated)
    wanting = [i for i in range(len(problem.jobs)) if _starts_smaller(problem.jobs[i], allocated.choice[i], idle)]
    if not wanting:
        return None
    choices, nodes = list(allocated.choice), dict(placement.nodes)
    free, allowance = _free(problem, allocated, placement), Allowance(problem, allocated.choice)
    bad = {node.name for node in problem.nodes if node.penalty > 0}
    refused = 0
    for i in wanting[:_STARTS]:
        job, choice = problem.jobs[i], choices[i]
        if choice is None or job.requested_cell is None or not _starts_smaller(job, choice, idle):
            continue
        shape, asked_shape, names = job.cells[choice].shape, job.cells[job.requested_cell].shape, nodes[job.job_id]
        picked_nodes = None
        if allowance.allows(job, choice, job.requested_cell):
            free.give(names, shape.gpus_per_node, job.needs)
            picked_nodes = free.pick(asked_shape, job.node_filter, names, None, job.needs, job.shun)
            if picked_nodes is None or bad.intersection(picked_nodes) - set(names):
                picked_nodes = None
                free.take(names, shape.gpus_per_node, job.needs)
        if picked_nodes is None:
            refused += 1
            if refused >= _TRIES:
                break
            continue
        free.take(picked_nodes, asked_shape.gpus_per_node, job.needs)
        allowance.change(job, choice, job.requested_cell)
        choices[i], nodes[job.job_id] = job.requested_cell, picked_nodes
        idle[asked_shape.gpu_type] -= asked_shape.gpus - shape.gpus
    if choices == list(allocated.choice):
        return None
    return allocation_of(problem, choices, allocated.moved_jobs), Placement(nodes, {}, free.free)


def _starts_smaller(job: JobRequest, choice: int | None, idle: Counter[str]) -> bool:
    """Return whether the job starts on fewer GPUs than it asked for, where that size may be better and `idle` has GPUs for it."""
    if (
        choice is None
        or job.current is not None
        or (job.needed_goodput and job.overdue_s < 0)
        or job.requested_cell is None
        or job.requested_cell in job.banned_cells
    ):
        return False
    own_cell, asked_cell = job.cells[choice], job.cells[job.requested_cell]
    more = asked_cell.shape.gpus - own_cell.shape.gpus
    if asked_cell.shape.gpu_type != own_cell.shape.gpu_type or not 0 < more <= idle[asked_cell.shape.gpu_type]:
        return False
    return asked_cell.uncertainty > MEASURED and not _surely_worse(asked_cell, own_cell)


def _surely_worse(cell: Cell, than: Cell) -> bool:
    """Return whether the goodput of `cell` is less by more than both predictions may be off."""
    if cell.goodput <= 0 or than.goodput <= 0:
        return than.goodput > 0
    return math.log(than.goodput / cell.goodput) > _SURELY_WORSE * math.hypot(cell.uncertainty, than.uncertainty)


def _free(problem: Problem, allocated: Allocation, placement: Placement) -> FreeGpus:
    """Return the GPUs that the placement leaves free."""
    free = FreeGpus(problem.nodes, problem.spanned_nodes)
    for i, cell, _ in allocated.assignments(problem):
        job = problem.jobs[i]
        free.take(placement.nodes[job.job_id], cell.shape.gpus_per_node, job.needs)
    return free


def _bad(problem: Problem, allocated: Allocation, placement: Placement) -> int:
    """Return the number of bad nodes that jobs come to, counted once for each job."""
    bad = {node.name for node in problem.nodes if node.penalty > 0}
    if not bad:
        return 0
    jobs = [problem.jobs[i] for i, _, stays in allocated.assignments(problem) if not stays]
    return sum(len(bad.intersection(placement.nodes[job.job_id]) - set(job.nodes)) for job in jobs)


def _idle(problem: Problem, allocated: Allocation) -> Counter[str]:
    """Return the number of GPUs that the allocation leaves free, by type."""
    idle: Counter[str] = Counter(problem.capacity())
    for _, cell, _ in allocated.assignments(problem):
        idle[cell.shape.gpu_type] -= cell.shape.gpus
    return idle


def _place(problem: Problem, choices: list[int | None], moved: frozenset[int]) -> tuple[Allocation, Placement] | None:
    """Return the allocation of `choices` with its placement, or None where it exceeds a limit or can't be placed."""
    trial = within_limits(problem, allocation_of(problem, choices, moved))
    if trial.choice != tuple(choices):
        return None
    placement = place(problem.nodes, make_placement_requests(problem, trial), problem.spanned_nodes)
    return None if placement.unplaced_reasons else (trial, placement)


def expected_trial_goodput(goodput: float, sigma: float, fallback: float) -> float:
    """Return E[max(X, fallback)] of log-normal X of mean `goodput` and one sigma `sigma` of its logarithm."""
    if sigma <= 0:
        return max(goodput, fallback)
    ratio = math.log(goodput / fallback)
    return goodput * _normal(ratio / sigma + sigma / 2) + fallback * _normal(sigma / 2 - ratio / sigma)


def trial_reason(problem: Problem, allocated: Allocation, index: int) -> Reason:
    """Return why jobs[index] changes its size."""
    job, choice = problem.jobs[index], allocated.choice[index]
    now, then = job.cells[job.current or 0], job.cells[choice or 0]
    sizes = {"size": format_size(then.shape, then.plan), "old_size": format_shape(now.shape)}
    goodputs = {"goodput": then.goodput, "old_goodput": now.goodput, "uncertainty": then.uncertainty}
    return Reason("tries", {**sizes, **goodputs})


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _trials(job: JobRequest, current: int, idle: Counter[str]) -> dict[int, float]:
    """Return the logarithm of the gain of each Cell worth a trial, by the Cell's index."""
    now = job.cells[current]
    if job.needed_goodput or now.goodput <= 0 or job.discount <= 0:
        return {}
    index_of, gpu_type = CellIndex.build(job.cells), now.shape.gpu_type
    most = min(now.shape.gpus + idle[gpu_type], _REACH * now.shape.gpus)
    gains: dict[int, float] = {}
    for gpus, _ in index_of.by_size[gpu_type]:
        if not now.shape.gpus < gpus <= most:
            continue
        index = index_of.by_gpus[gpu_type, gpus]
        cell = job.cells[index]
        if index in job.banned_cells or cell.goodput <= 0 or cell.uncertainty <= MEASURED:
            continue
        # an error that both share moves both
        sigma = math.sqrt(max(cell.uncertainty**2 - now.uncertainty**2, 0.0))
        factor = restart_factor(job, index)
        if factor <= 0:
            continue
        # back by a restart, and after an epoch at the tried size, which may be as slow as a restart
        worth = factor * expected_trial_goodput(cell.goodput, sigma, factor**2 * now.goodput)
        if worth > _GAIN * now.goodput:
            gains[index] = math.log(worth / now.goodput) * job.weight
    return gains
