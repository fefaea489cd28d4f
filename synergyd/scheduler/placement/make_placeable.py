"""From the Cells that a policy chose to Cells that can be placed: jobs that stay are moved out of the way of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from synergyd.scheduler.placement.place import Placement, make_placement_requests, place
from synergyd.scheduler.problem.records import Allocation, Problem
from synergyd.scheduler.problem.utility import allocation

_ROUNDS = 8  # rounds of moving jobs out of the way
# (rank, cost) of moving a job, by its index and its GPUs a node: on a node the jobs of lowest rank are moved first, and the
# node is cleared whose jobs cost least in all
MoveCost = Callable[[int, int], tuple[float, float]]


def make_placeable(problem: Problem, choice: Sequence[int | None], moved: Collection[int] = ()) -> Allocation:
    """Return `choice` with as few changes as make `place` name nodes for every job in it.

    This is the last step of the policies that count GPUs only.

    Jobs that keep their Cell keep their nodes if that can be placed; else those of `moved` (indices) may go elsewhere, then
    small jobs that stand where a bigger piece needs a node. A job that still fits nowhere does not start, or runs on as it is.
    """
    _, placement = _place(problem, choice, ())
    if not placement.unplaced_reasons:
        return allocation(problem, choice)
    away = {i for i in moved if choice[i] is not None and choice[i] == problem.jobs[i].current}
    away, placement = move_others(problem, choice, away, _ROUNDS)
    result = list(choice)
    while placement.unplaced_reasons:
        # Each turn takes a job that can't be placed out of those to be placed, so this ends.
        for i, job in enumerate(problem.jobs):
            if job.job_id in placement.unplaced_reasons:
                result[i] = job.current
                away.discard(i)
        _, placement = _place(problem, result, away)
    # Jobs that made way for one that could not start may stay after all.
    if away and not _place(problem, result, ())[1].unplaced_reasons:
        return allocation(problem, result)
    return allocation(problem, result, frozenset(away))


def move_others(
    problem: Problem,
    choice: Sequence[int | None],
    moved: Collection[int],
    rounds: int,
    cost: MoveCost = lambda _, gpus: (gpus, gpus),
) -> tuple[set[int], Placement]:
    """Return `moved` and the jobs that have to move besides, with the last placement tried.

    `moved` holds the indices of jobs that keep their Cell and leave their nodes. The others move for the jobs of `choice` that
    could not be placed. `cost`: by default the fewest GPUs move.
    """
    away = set(moved)
    for _ in range(rounds):
        attempt, placement = _place(problem, choice, away)
        in_the_way = _in_the_way(problem, attempt, placement, cost) if placement.unplaced_reasons else set()
        if not in_the_way:
            break
        away |= in_the_way
    return away, placement


def _place(problem: Problem, choice: Sequence[int | None], moved: Collection[int]) -> tuple[Allocation, Placement]:
    attempt = Allocation(tuple(choice), frozenset(moved), 0.0, 0.0, False)  # its value plays no part in placement
    return attempt, place(problem.nodes, make_placement_requests(problem, attempt))


def _in_the_way(problem: Problem, attempt: Allocation, placement: Placement, cost: MoveCost) -> set[int]:
    """Return, for each job that was not placed, the smaller ones that stay on the node that is cleared for it at the least cost."""
    standing: dict[str, list[tuple[float, int, int, float]]] = {}  # node -> (rank, index, GPUs, cost)
    for i, cell, stays in attempt.assignments(problem):
        job, gpus = problem.jobs[i], cell.shape.gpus_per_node
        if stays and cell.shape.nodes == 1 and job.discount > 0 and job.current not in job.banned_cells:
            rank, price = cost(i, gpus)
            for name in job.nodes:
                standing.setdefault(name, []).append((rank, i, gpus, price))
    moved: set[int] = set()
    cleared: set[str] = set()
    for i, cell, _ in attempt.assignments(problem):
        job, piece = problem.jobs[i], cell.shape.gpus_per_node
        if job.job_id not in placement.unplaced_reasons:
            continue
        best: tuple[float, str, set[int]] | None = None
        for node in problem.nodes:
            usable = node.gpu_type == cell.shape.gpu_type and node.admits(job.node_filter) and node.free >= piece
            if not usable or node.name in cleared:
                continue
            free, total, leaving = placement.free_gpus[node.name], 0.0, set()
            for _, j, gpus, price in sorted(standing.get(node.name, [])):
                if free < piece and gpus < piece:
                    free, total = free + gpus, total + price
                    leaving.add(j)
            if free >= piece and leaving and (best is None or total < best[0]):
                best = (total, node.name, leaving)
        if best is not None:
            cleared.add(best[1])
            moved |= best[2]
    return moved
