"""How many GPUs a job may start on while nobody has measured its like. Pure.

Then all that is known of larger sizes are the hardware's figures, and what its user asked for is evidence. A start far beyond that
takes GPUs from others, and the job waits for them, for a speed that may not come. Its first reports tell; after them it may grow.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.scheduler.problem.cell_index import MEASURED, CellIndex
from synergyd.scheduler.problem.records import JobRequest

# times the GPUs asked for. Pollux grows to twice the most that a job has had (OSDI'21, section 4.1), by an epoch each; where a change
# costs a restart, three such steps at once save two
REACH = 8


def within_reach(job: JobRequest) -> JobRequest:
    """A waiting job with those Cells `banned` that it may not start on. One with a deadline may need them."""
    beyond = _beyond(job)
    return replace(job, banned=job.banned | beyond) if beyond else job


def beyond_reach(job: JobRequest, index: int) -> str:
    """Why a waiting job may not start on cells[index]; "" where it may."""
    if index not in _beyond(job):
        return ""
    return f"it starts on at most {REACH} times the GPUs asked for until its speed, or that of its like, was measured"


def _beyond(job: JobRequest) -> frozenset[int]:
    if job.current is not None or job.deadline_s is not None or job.asked is None:
        return frozenset()
    if job.cells[job.asked].uncertainty <= MEASURED:
        return frozenset()
    return CellIndex.of(job.cells).guessed_above(REACH * job.cells[job.asked].shape.gpus)
