"""Runs that hang: how long a job may go without a step before it is started again elsewhere, and how often. Pure.

A healthy run may pause for an evaluation. How long is learnt from its reports: a pause that ended is no hang.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from synergy_core.job_report import Report

MAX_HANGS = 3  # hangs of one job: if it hangs once more, its script is at fault
STEPS = 20.0  # twice what its launcher calls a stall
LONGER = 2.0  # times the longest pause that ended
# Taken last for so long: the one in whose place it is started has mostly been seen to by then.
SHUN_S = 3600.0
_FIRST = 2.0  # times the least time, for a run that has no step yet
# Jobs that stall at once are held up by what they share, such as a file system: by both of these.
TOGETHER = 3
TOGETHER_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Hangs:
    """The hangs of one job. `count`: times that it was started again since its steps had stopped."""

    count: int = 0
    #: the nodes of the last hang, not taken again before `until_s` if others are free
    nodes: tuple[str, ...] = ()
    until_s: float = 0.0
    #: the longest pause between two steps that ended, seconds
    pause_s: float = 0.0
    #: the step that the last hang stopped at; -1: there was none
    step: int = -1


NO_HANGS = Hangs()


def longest_healthy_pause_s(hangs: Hangs, report: Report, least_s: float) -> float:
    """Return the longest pause, in seconds, that still counts as healthy: at least `least_s`, doubled before the first step."""
    least_s *= 1.0 if report.step_s else _FIRST
    return max(least_s, STEPS * (report.step_s or 0.0), LONGER * hangs.pause_s)


def after_report(hangs: Hangs, before: Report | None, heard_s: float, now: Report, now_s: float) -> Hangs:
    """Return what is known of pauses after the report `now`, which followed `before`, heard at `heard_s`."""
    if before is None or before.stalled_s is None or before.restarts != now.restarts:
        return hangs
    if now.stalled_s is not None or now.step <= before.step:
        return hangs
    return replace(hangs, pause_s=max(hangs.pause_s, before.stalled_s + max(0.0, now_s - heard_s)))


def hung_s(hangs: Hangs, report: Report, least_s: float) -> float | None:
    """Return the seconds without a step if the run hangs, else None.

    Only what the launcher has said counts: its silence may be the network's.
    """
    if not least_s or report.stalled_s is None:
        return None
    return report.stalled_s if report.stalled_s >= longest_healthy_pause_s(hangs, report, least_s) else None


def is_common_stall(reports: Iterable[Report]) -> bool:
    """Return whether so many running jobs stall that the fault is none of theirs.

    `reports`: the latest of each job that reports.
    """
    stalls = [report.stalled_s is not None for report in reports]
    return sum(stalls) >= max(TOGETHER, TOGETHER_SHARE * len(stalls))
