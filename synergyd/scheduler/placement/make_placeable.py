"""From what a policy would like to what can be laid on the nodes: the last step of the policies that count GPUs only."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from synergyd.scheduler.placement.place import Placement, place, requests_of
from synergyd.scheduler.problem.records import Allocation, Problem
from synergyd.scheduler.problem.utility import allocation

_ROUNDS = 8  # of moving jobs out of the way


def make_placeable(problem: Problem, choice: Sequence[int | None], moved: Collection[int] = ()) -> Allocation:
    """`choice` with as few changes as make `place` name nodes for every job in it.

    Jobs that keep their Cell keep their nodes if that works out; else those of `moved` (indices) may go elsewhere, then
    small jobs that stand where a bigger piece needs a node. What still fits nowhere does not start, or runs on as it is.
    """
    found = allocation(problem, choice)
    placed = place(problem.rooms, requests_of(problem, found))
    if not placed.failed:
        return found
    away = {i for i in moved if choice[i] is not None and choice[i] == problem.asks[i].current}
    for _ in range(_ROUNDS):
        found = allocation(problem, choice, frozenset(away))
        placed = place(problem.rooms, requests_of(problem, found))
        more = _in_the_way(problem, found, placed)
        if not placed.failed or not more:
            break
        away |= more
    kept = list(choice)
    while placed.failed:
        # Each turn takes a job that can't be laid out of those to be laid, so this ends.
        for i, ask in enumerate(problem.asks):
            if ask.job_id in placed.failed:
                kept[i] = ask.current
                away.discard(i)
        found = allocation(problem, kept, frozenset(away))
        placed = place(problem.rooms, requests_of(problem, found))
    if away:
        # Those who made way for a job that could not start after all need not.
        still = allocation(problem, kept)
        if not place(problem.rooms, requests_of(problem, still)).failed:
            return still
    return found


def _in_the_way(problem: Problem, found: Allocation, placed: Placement) -> set[int]:
    """For each job that was not placed: those that stay on the node where fewest GPUs have to move for it."""
    standing: dict[str, list[tuple[int, int]]] = {}  # node -> (GPUs, index) of jobs that could go elsewhere
    for i, cell, stays in found.taken(problem):
        ask = problem.asks[i]
        if stays and cell.shape.nodes == 1 and ask.discount > 0 and ask.current not in ask.banned:
            for name in ask.nodes:
                standing.setdefault(name, []).append((cell.shape.gpus_per_node, i))
    gone: set[int] = set()
    cleared: set[str] = set()
    for i, cell, _ in found.taken(problem):
        ask, piece = problem.asks[i], cell.shape.gpus_per_node
        if ask.job_id not in placed.failed:
            continue
        best: tuple[int, int, str, set[int]] | None = None
        for order, room in enumerate(problem.rooms):
            usable = room.gpu_type == cell.shape.gpu_type and room.admits(ask.partition) and room.free >= piece
            if not usable or room.name in cleared:
                continue
            free, go = placed.left[room.name], set()
            for gpus, j in sorted(standing.get(room.name, [])):
                if free < piece and gpus < piece:
                    free += gpus
                    go.add(j)
            cost = free - placed.left[room.name]
            if free >= piece and go and (best is None or (cost, order) < best[:2]):
                best = (cost, order, room.name, go)
        if best is not None:
            cleared.add(best[2])
            gone |= best[3]
    return gone
