"""How far each job has come, as its reports and the clock tell."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from synergyd.job_report import Report
from synergyd.records import Job
from synergyd.scheduler.problem.records import Progress
from synergyd.task.likely_lengths import LearntLengths


def progress_of(
    jobs: Iterable[Job],
    reports: Mapping[int, Report],
    attained_gpu_s: Mapping[int, float],
    refuted: Container[int] = frozenset(),
) -> dict[int, Progress]:
    """By job id. What a job says of its own end is believed as far as it makes sense: done examples of more in all; and not
    of those whose steps have `refuted` it (credibility.py)."""
    found = {}
    for job in jobs:
        report = reports.get(job.job_id)
        done, left = None, None
        if job.job_id in refuted:
            found[job.job_id] = Progress(attained_gpu_s.get(job.job_id, 0.0), refuted=True)
            continue
        if report is not None and report.done is not None:
            done = float(round(report.done))  # whole examples: a stranger's denormal divides by nothing
            if report.total is not None and report.total >= done:
                left = float(round(report.total - done))
        found[job.job_id] = Progress(attained_gpu_s.get(job.job_id, 0.0), left, done)
    return found


def with_likely(found: Mapping[int, Progress], jobs: Iterable[Job], lengths: LearntLengths) -> dict[int, Progress]:
    """`found`, by job id; for those that do not tell what is left, how much it likely is."""
    likely = dict(found)
    for job in jobs:
        one = found[job.job_id]
        if one.remaining is None and not one.refuted and job.directive is not None:
            index = lengths.index_gpu_s(job, one.attained_gpu_s)
            likely[job.job_id] = one if index is None else replace(one, likely_gpu_s=index)
    return likely
