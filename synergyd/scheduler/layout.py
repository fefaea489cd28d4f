"""The setting Placement: which nodes the jobs that start or change get, once their Cells are chosen and can be placed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from synergyd.scheduler.placement.lwf import place_lwf
from synergyd.scheduler.placement.place import Placement, make_placement_requests
from synergyd.scheduler.problem.from_snapshot import UntouchedJob
from synergyd.scheduler.problem.records import Allocation, Problem


def place_by_rule(
    problem: Problem, allocation: Allocation, packed: Placement, rule: str, outside: Iterable[UntouchedJob]
) -> Placement:
    """Place `allocation` by `rule` where it is `lwf-K` (placement/lwf.py).

    `packed` stays for `pack`, and where LWF leaves a job without nodes. Sizes stay as they are, and jobs that keep their Cell keep
    their nodes. `outside`: jobs that hold GPUs and are not part of the problem.
    """
    if not rule.startswith("lwf-"):
        return packed
    requests = make_placement_requests(problem, allocation)
    work = node_work(problem, allocation, outside)
    placement = place_lwf(problem.nodes, requests, int(rule.removeprefix("lwf-")), work, problem.spanned_nodes)
    return packed if placement.unplaced_reasons else placement


def node_work(problem: Problem, allocation: Allocation, outside: Iterable[UntouchedJob]) -> dict[str, list[float]]:
    """Return by node the seconds that each of its GPUs has still to work for jobs that stay where they are.

    A job that does not tell counts as the median of those that do (1 where none does).
    """
    loads: list[tuple[tuple[str, ...], int, float | None]] = []
    for i, cell, stays in allocation.assignments(problem):
        if stays:
            job, remaining = problem.jobs[i], problem.jobs[i].progress.remaining
            remaining_s = None if remaining is None or cell.goodput <= 0 else remaining / cell.goodput
            loads.append((job.nodes, cell.shape.gpus_per_node, remaining_s))
    loads += [(x.nodes, x.cell.shape.gpus_per_node, None) for x in outside if x.cell is not None]
    typical = statistics.median([remaining_s for _, _, remaining_s in loads if remaining_s is not None] or [1.0])
    work: dict[str, list[float]] = {}
    for names, gpus, remaining_s in loads:
        for name in names:
            work.setdefault(name, []).extend([typical if remaining_s is None else remaining_s] * gpus)
    return work
