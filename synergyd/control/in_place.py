"""Restarts of a job's processes inside its allocation: what its reports say of them. Pure."""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize.events import RestartedInPlace
from synergyd.control.tracked import Learnt, Remember, Tracked
from synergyd.job_report import Report


def can_restart(tracked: Tracked) -> bool:
    """Have the job's launchers said that they can start another plan on the GPUs that it has?"""
    report, job = tracked.report, tracked.job
    return report is not None and report.in_place is not None and job is not None and report.restarts == job.restarts


def restarted(report: Report) -> RestartedInPlace | None:
    """Which order the reporting run was begun at."""
    if report.in_place is None or not report.in_place.order:
        return None
    return RestartedInPlace(report.restarts, report.in_place.order)


def begins_unheard(tracked: Tracked, now_s: float) -> list[Learnt]:
    """A run with another plan has begun, and has said nothing yet: how fast the one before was, or stood still, is not of it."""
    if tracked.report is None:
        return []
    tracked.report = replace(tracked.report, plan=tracked.lifecycle.plan, step_s=None, stalled_s=None)
    tracked.heard_s = now_s
    return [Learnt(tracked.report, now_s, {})]


def tell_crash(tracked: Tracked, before: Report | None) -> list[Remember]:
    """A line for the job's story where its newest report tells of a crash that `before` did not."""
    report, life = tracked.report, tracked.lifecycle
    known = (
        before.in_place.crashes if before and before.in_place and report and before.restarts == report.restarts else 0
    )
    if report is None or report.in_place is None or report.in_place.crashes <= known:
        return []
    crash = report.in_place
    why = f"ended with exit code {crash.code}" if crash.code else "lost a node"
    text = f"{why} at step {crash.step}: started again in place from its last checkpoint"
    return [Remember(life, life.state, "Crashed", (text,))]


def run_of(report: Report) -> tuple[int, int]:
    """(incarnation, which of its runs) that the report is of."""
    if report.in_place is not None:
        return report.restarts, report.in_place.number
    failure = report.failure
    return report.restarts, failure.number if failure is not None and failure.goes_on else 0
