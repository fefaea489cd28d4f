"""First come, first served at the size asked for: what users know, and the baseline."""

from __future__ import annotations

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.problem.records import Allocation, Policy, Problem
from synergyd.scheduler.problem.utility import allocation


class FifoPolicy(Policy):
    """Strict order of submission (job id on ties).

    Running jobs stay as they are, and the first waiting job that does not fit holds up those behind it. A job too big
    for the machine even when it is empty is passed over.

    A job gets the Cell of the size it asked for; one that no plan fits at that size is passed over, too.
    """

    sizes_fixed = True
    rule = "first come, first served at the size asked for"

    def allocate(self, problem: Problem) -> Allocation:
        free_gpus = FreeGpus(problem.nodes)
        empty = FreeGpus(problem.nodes)
        choice: list[int | None] = [job.current for job in problem.jobs]
        for job in problem.jobs:
            if job.current is not None:
                free_gpus.take(job.nodes, job.cells[job.current].shape.gpus_per_node, job.needs)
        waiting = [i for i, job in enumerate(problem.jobs) if job.current is None]
        for i in sorted(waiting, key=lambda i: (problem.jobs[i].submit_s, problem.jobs[i].job_id)):
            job = problem.jobs[i]
            requested_cell = job.requested_cell
            if requested_cell is None:
                continue
            shape = job.cells[requested_cell].shape
            if requested_cell in job.banned_cells or empty.pick(shape, job.node_filter, needs=job.needs) is None:
                continue
            names = free_gpus.pick(shape, job.node_filter, needs=job.needs)
            if names is None:
                break
            free_gpus.take(names, shape.gpus_per_node, job.needs)
            choice[i] = requested_cell
        return allocation(problem, choice)
