"""How many GPUs a job may start on while nobody has measured its like. Pure.

Until then only the hardware's figures are known of larger sizes, and the size that the user asked for is evidence. A start far
beyond that takes GPUs from others, and the job waits for them, for a speed that may not come. After its first reports the job
may grow.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.scheduler.problem.cell_index import MEASURED, CellIndex
from synergyd.scheduler.problem.records import JobRequest, Objective

# FirstStart is 4 by default. Pollux grows to twice the most that a job has had (OSDI'21, section 4.1), by an epoch each; where a change
# costs a restart, two such steps at once save one. Half of Pollux's workload 1, without names or lengths: 1000 s with 2, 995 with 4,
# 1053 with 8, 1144 without a bound.


def within_reach(job: JobRequest, terms: Objective) -> JobRequest:
    """Return a waiting job with those Cells `banned` that it may not start on. A job with a deadline may need them."""
    beyond = _oversized_cells(job, terms)
    return replace(job, banned_cells=job.banned_cells | beyond) if beyond else job


def reach_obstacle(job: JobRequest, index: int, terms: Objective) -> str:
    """Return why a waiting job may not start on cells[index], or "" where it may."""
    if index not in _oversized_cells(job, terms):
        return ""
    most = f"{terms.first_start:g} times the GPUs asked for"
    return f"it starts on at most {most} until its speed, or that of its like, was measured (FirstStart)"


def _oversized_cells(job: JobRequest, terms: Objective) -> frozenset[int]:
    if job.current is not None or job.deadline_s is not None or job.requested_cell is None or terms.first_start <= 0:
        return frozenset()
    if job.cells[job.requested_cell].uncertainty <= MEASURED:
        return frozenset()
    return CellIndex.build(job.cells).unmeasured_indices_above(
        int(terms.first_start * job.cells[job.requested_cell].shape.gpus)
    )
