"""Jobs served one after another in an order, each at one size: what list-scheduling policies have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.make_placeable import make_placeable
from synergyd.scheduler.problem.records import Allocation, JobRequest, Problem


def serve_in_order(problem: Problem, order: Iterable[int], wants: Sequence[int]) -> Allocation:
    """Each job of `order` (indices of asks) gets the Cell wants[i] if it still fits; those that do not are passed over.

    A running job stays on its nodes where nobody before it took them, else it may go on elsewhere; one that finds no
    room at all is stopped. Jobs that are not in `order` get nothing.
    """
    free_gpus = FreeGpus(problem.rooms)
    room = {r.name: r.free for r in problem.rooms}
    homes = Counter(name for ask in problem.asks for name in ask.nodes)
    choice: list[int | None] = [None] * len(problem.asks)
    moved: set[int] = set()
    for i in order:
        ask = problem.asks[i]
        homes.subtract(ask.nodes)
        for cell in dict.fromkeys((wants[i], ask.current)):
            if cell is None:
                continue
            gpus = ask.cells[cell].shape.gpus_per_node
            if cell == ask.current and _undisturbed(free_gpus, room, ask, gpus):
                free_gpus.take(ask.nodes, gpus)
                choice[i] = cell
                break
            if cell in ask.banned:
                continue
            names = free_gpus.pick(ask.cells[cell].shape, ask.node_filter, ask.nodes, homes)
            if names is not None:
                free_gpus.take(names, gpus)
                choice[i] = cell
                moved |= {i} if cell == ask.current else set()
                break
    return make_placeable(problem, choice, moved)


def _undisturbed(free_gpus: FreeGpus, room: dict[str, int], ask: JobRequest, gpus: int) -> bool:
    """Are the job's own GPUs still there? On a node that hands out none (it is down) nobody can have taken them."""
    return all(not room.get(name) or free_gpus.free[name] >= gpus for name in ask.nodes)
