"""Equal shares of the cluster: the GPUs over the users whose jobs ask for some, a user's part over the user's own jobs. Pure.

Were they the GPUs over the jobs, one user's many small jobs would make everybody's share small, and with it everybody's wait by
FairnessBound long (waiting_bound.py). What a user's jobs can't use, all of them on their largest size, is shared by the other users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import JobRequest


def job_parts(jobs: Sequence[JobRequest], capacity: Mapping[str, int]) -> dict[int, float]:
    """By uid: into how many parts the GPUs go, of which each of that user's jobs has one. `capacity`: GPUs by type."""
    total = sum(capacity.values())
    count, most = Counter(job.uid for job in jobs), Counter[int]()
    for job in jobs:
        most[job.uid] += CellIndex.of(job.cells).sizes[1]
    parts: dict[int, float] = {}
    left, users = float(total), len(count)
    for uid in sorted(count, key=lambda uid: (most[uid], uid)) if total > 0 else ():
        own = left / users
        # from here on nobody can use less than `own`: all have the same
        parts[uid] = count[uid] * (total / own)
        left, users = left - min(own, most[uid]), users - 1
    return parts
