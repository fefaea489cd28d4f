"""The jobs that the link arbiter may hear: the running jobs of a snapshot, and how long each still trains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from synergy_core.job_report import Report
from synergy_core.records import Job, JobState

from synergyd.daemon.links.arbiter import Member


def find_members(jobs: Iterable[Job], reports: Mapping[int, Report]) -> dict[int, Member]:
    """Return the running jobs on several nodes, by id."""
    return {
        job.job_id: Member(job.uid, job.restarts, job.node_names, job.shape.gpus, left_s(job, reports.get(job.job_id)))
        for job in jobs
        if job.state is JobState.RUNNING and len(job.node_names) > 1
    }


def left_s(job: Job, report: Report | None) -> float:
    """Return the seconds of training left at the pace that the job reports: (total - done) examples, a global batch a step.

    Return inf if it does not tell, which puts it behind those that do.
    """
    if report is None or report.restarts != job.restarts or report.plan is None:
        return math.inf
    if report.step_s is None or report.done is None or report.total is None:
        return math.inf
    return max(0.0, report.total - report.done) / report.plan.global_batch * report.step_s
