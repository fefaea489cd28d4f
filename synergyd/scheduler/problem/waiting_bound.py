"""How long a job may be without GPUs: the setting FairnessBound. Pure.

Alone on an equal share of the GPUs (finish_time_fairness.py) a job would take start + whole. Started now it takes, from its
submission to its end, age + start + left, where `left` is at the requested size, or on an equal share if that is slower. It is due once

    age + start + left >= FairnessBound x (start + whole)        and it has been there for `floor_s`

All of these are seconds. A length that is not told counts as the time that like jobs have taken (Gittins' index), else as
typical.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import JobRequest

# For a job of which nothing is known where few have ended: the median run time of a cluster's jobs is 13 min (Jeon et al., ATC 2019)
_TYPICAL_S = 780.0


def with_due(
    jobs: Sequence[JobRequest],
    bound: float,
    typical_s: float | None,
    floor_s: float,
    share_of: Callable[[JobRequest], float],
) -> tuple[JobRequest, ...]:
    """Return the jobs, each with `overdue_s` and `holds_s`. `share_of`: a job's goodput on an equal share, sequences/s."""
    result = []
    for job in jobs:
        left_s, whole_s = _lengths_s(job, share_of(job), typical_s)
        allowed_s = max(floor_s, _allowed_s(job, bound, left_s, whole_s))
        result.append(replace(job, overdue_s=job.age_s - allowed_s, holds_s=left_s))
    return tuple(result)


def _allowed_s(job: JobRequest, bound: float, left_s: float, whole_s: float) -> float:
    start_s = job.restart.cost.mean_s
    return bound * (start_s + whole_s) - (start_s + left_s)


def _lengths_s(job: JobRequest, share: float, typical_s: float | None) -> tuple[float, float]:
    """Return the job's time left and its whole time, in seconds.

    The first is what is left at the size asked for or on an equal share, whichever is slower; the second is the whole job on an
    equal share.
    """
    cells, progress = CellIndex.build(job.cells), job.progress
    at = cells.smallest if job.requested_cell is None else job.requested_cell
    asked_goodput, gpus = cells[at].goodput, cells[at].shape.gpus
    share = share if share > 0 else asked_goodput
    slower = min(asked_goodput, share) or 1.0
    if progress.remaining is not None and not progress.is_claim_refuted and share > 0:
        return progress.remaining / slower, ((progress.trained_sequences or 0.0) + progress.remaining) / share
    had_s = progress.attained_gpu_s / gpus
    left_s = _TYPICAL_S if typical_s is None else typical_s
    if progress.likely_gpu_s is not None:
        left_s = progress.likely_gpu_s / gpus
    # a job that has had more than that is taken to last as long again
    left_s = max(left_s, had_s) if progress.likely_gpu_s is None or progress.is_claim_refuted else left_s
    return left_s * asked_goodput / slower if asked_goodput > 0 else left_s, (had_s + left_s) * (
        asked_goodput / share if share > 0 else 1.0
    )
