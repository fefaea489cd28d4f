"""How many GPUs a job may start on while nobody has measured its like. Pure.

Then all that is known of larger sizes are the hardware's figures, and what its user asked for is evidence. A start far beyond that
takes GPUs from others, and the job waits for them, for a speed that may not come. Its first reports tell; after them it may grow.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.scheduler.problem.cell_index import MEASURED, CellIndex
from synergyd.scheduler.problem.records import JobRequest, Objective

# FirstStart is 4 by default. Pollux grows to twice the most that a job has had (OSDI'21, section 4.1), by an epoch each; where a change
# costs a restart, two such steps at once save one. Half of Pollux's workload 1, without names or lengths: 1000 s with 2, 995 with 4,
# 1053 with 8, 1144 without a bound.


def within_reach(job: JobRequest, terms: Objective) -> JobRequest:
    """A waiting job with those Cells `banned` that it may not start on. One with a deadline may need them."""
    beyond = _beyond(job, terms)
    return replace(job, banned=job.banned | beyond) if beyond else job


def beyond_reach(job: JobRequest, index: int, terms: Objective) -> str:
    """Why a waiting job may not start on cells[index]; "" where it may."""
    if index not in _beyond(job, terms):
        return ""
    most = f"{terms.first_start:g} times the GPUs asked for"
    return f"it starts on at most {most} until its speed, or that of its like, was measured (FirstStart)"


def _beyond(job: JobRequest, terms: Objective) -> frozenset[int]:
    if job.current is not None or job.deadline_s is not None or job.asked is None or terms.first_start <= 0:
        return frozenset()
    if job.cells[job.asked].uncertainty <= MEASURED:
        return frozenset()
    return CellIndex.of(job.cells).guessed_above(int(terms.first_start * job.cells[job.asked].shape.gpus))
