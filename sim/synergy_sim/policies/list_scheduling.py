"""Jobs served one after another in an order, each at one size: what list-scheduling policies have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.make_placeable import make_placeable
from synergyd.scheduler.problem.records import Allocation, JobRequest, Problem


def serve_in_order(problem: Problem, order: Iterable[int], wants: Sequence[int | None]) -> Allocation:
    """Give each job of `order` (indices of jobs) the Cell wants[i] if it still fits.

    Jobs that do not fit are passed over, and so are those that want none. A running job stays on its nodes where no job before it took
    them, else it may go on elsewhere; one that fits nowhere is stopped. Jobs that are not in `order` get nothing.
    """
    free_gpus = FreeGpus(problem.nodes)
    gpus_of = {r.name: r.free for r in problem.nodes}
    homes = Counter(name for job in problem.jobs for name in job.nodes)
    choice: list[int | None] = [None] * len(problem.jobs)
    moved: set[int] = set()
    for i in order:
        job = problem.jobs[i]
        homes.subtract(job.nodes)
        for cell in dict.fromkeys((wants[i], job.current)):
            if cell is None:
                continue
            gpus = job.cells[cell].shape.gpus_per_node
            if cell == job.current and _is_undisturbed(free_gpus, gpus_of, job, gpus):
                free_gpus.take(job.nodes, gpus, job.needs)
                choice[i] = cell
                break
            if cell in job.banned_cells:
                continue
            names = free_gpus.pick(job.cells[cell].shape, job.node_filter, job.nodes, homes, job.needs, job.shun)
            if names is not None:
                free_gpus.take(names, gpus, job.needs)
                choice[i] = cell
                moved |= {i} if cell == job.current else set()
                break
    return make_placeable(problem, choice, moved)


def _is_undisturbed(free_gpus: FreeGpus, gpus_of: dict[str, int], job: JobRequest, gpus: int) -> bool:
    """Return whether the job's own GPUs are still there. On a node that hands out none (it is down) no job can have taken them."""
    return all(not gpus_of.get(name) or free_gpus.free[name] >= gpus for name in job.nodes)
