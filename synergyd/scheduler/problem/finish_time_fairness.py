"""Finish-time fairness: how a job fares against an equal share of the cluster.

Equal shares are the GPUs over the users whose jobs ask for some, a user's part over the user's own jobs. If they were the GPUs over
the jobs, one user's many small jobs would make everybody's share small, and with it everybody's wait by FairnessBound long
(waiting_bound.py). GPUs that a user's jobs can't use, all of them on their largest size, are shared by the other users.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from synergy_core.records import Cell

from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import JobRequest, Progress


def job_parts(jobs: Sequence[JobRequest], capacity: Mapping[str, int]) -> dict[int, float]:
    """Return by uid the number of parts into which the GPUs go, of which each of that user's jobs has one.

    `capacity`: GPUs by type.
    """
    total = sum(capacity.values())
    count, most = Counter(job.uid for job in jobs), Counter[int]()
    for job in jobs:
        most[job.uid] += CellIndex.build(job.cells).sizes[1]
    parts: dict[int, float] = {}
    remaining_gpus, users = float(total), len(count)
    for uid in sorted(count, key=lambda uid: (most[uid], uid)) if total > 0 else ():
        own = remaining_gpus / users
        # from here on nobody can use less than `own`: all have the same
        parts[uid] = count[uid] * (total / own)
        remaining_gpus, users = remaining_gpus - min(own, most[uid]), users - 1
    return parts


def equal_share(cells: Sequence[Cell], capacity: Mapping[str, int], parts: float) -> float:
    """Return the goodput (sequences/s) on an equal share, which is, for each GPU type, all GPUs / `parts` of them.

    Between sizes it is interpolated, below the smallest one it falls to 0 in proportion (time sharing), above the
    largest it stays. A type that the job can't use counts with that part gone to the types it can.
    """
    total = sum(capacity.values())
    if total <= 0 or parts <= 0 or not cells:
        return 0.0
    gpus = total / parts
    best = CellIndex.build(cells).by_size
    usable = {t: capacity.get(t, 0) for t in best}
    usable_gpus = sum(usable.values())
    if usable_gpus <= 0:
        return 0.0
    return sum(share / usable_gpus * _interpolate_goodput(best[t], gpus) for t, share in usable.items())


def finish_time_fairness(age_s: float, progress: Progress, goodput: float, share: float) -> float | None:
    """Return rho = time to finish as it goes / time to finish on an equal share from the start (Themis, NSDI'20, section 3.1).

    `age_s` seconds have passed, `goodput` is what the job gets from now on and `share` that of an equal share
    (sequences/s). Above 1: worse off than with an equal share. Where the work left is not known, as if the job ended
    now; None where the work done is not known, or where it waits for ever.
    """
    if progress.trained_sequences is None or share <= 0:
        return None
    remaining = progress.remaining or 0.0
    if remaining > 0 and goodput <= 0:
        return None
    alone_s = (progress.trained_sequences + remaining) / share
    rho = (age_s + (remaining / goodput if remaining else 0.0)) / alone_s if alone_s > 0 else math.inf
    return rho if math.isfinite(rho) else None


def _interpolate_goodput(goodputs: Sequence[tuple[int, float]], gpus: float) -> float:
    """Return the goodput at `gpus` GPUs, between the sizes that are known (ascending, never falling)."""
    at = bisect_left(goodputs, gpus, key=lambda size: size[0])
    if at == len(goodputs):
        return goodputs[-1][1]
    below = goodputs[at - 1] if at else (0, 0.0)
    above = goodputs[at]
    return below[1] + (above[1] - below[1]) * (gpus - below[0]) / (above[0] - below[0])
