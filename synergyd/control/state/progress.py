"""How far each job has come, as its reports and the clock tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from statistics import median

from synergy_core.job_report import Report
from synergy_core.records import Job

from synergyd.jobmodel.likely_lengths import LearntLengths
from synergyd.scheduler.problem.records import Progress


def compute_progress(
    jobs: Iterable[Job],
    reports: Mapping[int, Report],
    attained_gpu_s: Mapping[int, float],
    refuted: Container[int] = frozenset(),
) -> dict[int, Progress]:
    """Return the progress by job id.

    A job's claim about its own end is believed as far as it makes sense (done examples out of more in all), and not
    for jobs whose steps have `refuted` it (credibility.py).
    """
    progress = {}
    for job in jobs:
        report = reports.get(job.job_id)
        done, remaining = None, None
        if job.job_id in refuted:
            progress[job.job_id] = Progress(attained_gpu_s.get(job.job_id, 0.0), is_claim_refuted=True)
            continue
        if report is not None and report.done is not None:
            done = float(round(report.done))  # whole examples: a stranger's denormal divides by nothing
            if report.total is not None and report.total >= done:
                remaining = float(round(report.total - done))
        progress[job.job_id] = Progress(attained_gpu_s.get(job.job_id, 0.0), remaining, done)
    return progress


def with_likely(progress: Mapping[int, Progress], jobs: Iterable[Job], lengths: LearntLengths) -> dict[int, Progress]:
    """Return `progress`, by job id, with the likely remainder for jobs that do not tell what is left."""
    likely = dict(progress)
    for job in jobs:
        one = progress[job.job_id]
        if one.remaining is None and not one.is_claim_refuted and job.directive is not None:
            index = lengths.index_gpu_s(job, one.attained_gpu_s)
            if index is not None:
                likely[job.job_id] = replace(one, likely_gpu_s=index, likely_evidence=lengths.evidence(job))
    return likely


_REMEMBERED, _FEW = 200, 10


class JobDurations:
    """The seconds that ended jobs trained, at the size asked for: what is typical."""

    def __init__(self) -> None:
        self._ended: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, attained_gpu_s: float, asked_gpus: int) -> None:
        if attained_gpu_s > 0 and asked_gpus > 0:
            self._ended.append(attained_gpu_s / asked_gpus)

    @property
    def typical_s(self) -> float | None:
        """Return the median of the latest durations in seconds, or None while there are too few to tell."""
        return median(self._ended) if len(self._ended) >= _FEW else None
