"""How far each job has come, as its reports and the clock tell."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from synergyd.job_report import Report
from synergyd.records import Job
from synergyd.scheduler.problem.records import Progress


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
