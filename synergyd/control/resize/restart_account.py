"""A job's restarts as its lifecycle and its reports show them: what each phase took, and what those that Synergy chose took together.

Pure: the only times are those of the events, of Slurm's own start time, and what a report says has passed since.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from synergyd.control.resize.events import Acknowledged, Observed, PlanFailed, ResizeEvent, RestartedInPlace, Wanted
from synergyd.job_report import Report
from synergyd.restarts import RestartTimes

if TYPE_CHECKING:
    from synergyd.control.resize.lifecycle import JobLifecycle


@dataclass(frozen=True, kw_only=True)
class Restarting:
    """A restart whose cost is not known yet. Times are seconds since 1970; 0: not yet."""

    #: when its checkpoint was asked for, or its incarnation ended
    begun_s: float
    #: by Synergy's objective, and not by Slurm, a user, a node, a time limit or a plan that failed
    chosen: bool = False
    #: when its checkpoint was written
    saved_s: float = 0.0
    #: for how long that held it up; None: not measured
    checkpoint_s: float | None = None
    #: it has waited for a decision or for Slurm: time that is no cost of a restart
    waited: bool = False
    started_s: float = 0.0
    #: it kept its allocation: no requeue, and no sample of what one costs
    in_place: bool = False

    def spent_s(self, now_s: float) -> float:
        """So far, at the most."""
        since_s = (self.started_s or now_s) if self.waited else self.begun_s
        return (self.checkpoint_s or 0.0) * self.waited + max(0.0, now_s - since_s)


@dataclass(frozen=True, kw_only=True)
class RestartAccount:
    """Of one job."""

    #: when it first ran; 0: not yet
    first_s: float = 0.0
    #: that restarts which Synergy chose have taken, and how many they were
    lost_s: float = 0.0
    chosen: int = 0
    #: of the last checkpoint that it was requeued with; None: not told
    bytes_per_writer: float | None = None
    under_way: Restarting | None = None

    def spent_s(self, now_s: float) -> float:
        """In restarts that Synergy chose, the one that is under way as far as it has come."""
        one = self.under_way
        return self.lost_s + (one.spent_s(now_s) if one is not None and one.chosen else 0.0)

    def life_s(self, now_s: float) -> float:
        """Since it first ran; infinite before."""
        return max(0.0, now_s - self.first_s) if self.first_s else math.inf

    def moved(self, by_s: float) -> RestartAccount:
        """As it would be, had the clock always been set by so much."""
        return self._with_times(lambda time_s: time_s + by_s if time_s else time_s)

    def not_after(self, now_s: float) -> RestartAccount:
        """Without times that lie ahead."""
        return self._with_times(lambda time_s: min(time_s, now_s))

    def _with_times(self, change: Callable[[float], float]) -> RestartAccount:
        one = self.under_way
        if one is not None:
            one = replace(
                one, begun_s=change(one.begun_s), saved_s=change(one.saved_s), started_s=change(one.started_s)
            )
        return replace(self, first_s=change(self.first_s), under_way=one)


NO_RESTARTS = RestartAccount()


def followed(
    before: JobLifecycle, after: JobLifecycle, event: ResizeEvent, now_s: float, report: Report | None
) -> JobLifecycle:
    """`after` with its account as it is once `event` has moved the job's lifecycle on. `report`: its latest."""
    account = _account(before, after, event, now_s, report)
    return after if account is before.restart else replace(after, restart=account)


def _account(
    before: JobLifecycle, after: JobLifecycle, event: ResizeEvent, now_s: float, report: Report | None
) -> RestartAccount:
    account, was, now = before.restart, before.state.value, after.state.value
    if was == now and before.restarts == after.restarts:
        return account
    one = account.under_way
    if was == "RUNNING" and now in ("CHECKPOINTING", "REQUEUING", "QUEUED"):
        chosen = now == "CHECKPOINTING" and not (isinstance(event, Wanted) and event.due)
        closed = _closed(account, now_s)
        begun = Restarting(begun_s=now_s, chosen=chosen, waited=now == "QUEUED")
        return replace(closed, chosen=closed.chosen + chosen, under_way=begun)
    if was == "CHECKPOINTING" and now in ("REQUEUING", "RESTARTING") and one is not None:
        if isinstance(event, PlanFailed):
            return replace(account, under_way=replace(one, saved_s=now_s))
        took_s = _checkpoint_s(one, event, report, before.restarts, now_s)
        account = replace(account, bytes_per_writer=bytes_per_writer(report) or account.bytes_per_writer)
        return replace(account, under_way=replace(one, saved_s=now_s, checkpoint_s=took_s))
    if was == "RESTARTING" and one is not None:
        if isinstance(event, RestartedInPlace):
            begun = replace(one, in_place=True, started_s=one.saved_s or now_s, saved_s=0.0)
            return replace(account, under_way=begun)
        if now != "RUNNING":
            account = _in_vain(account, one, now_s)
            one = account.under_way
    if was in ("CHECKPOINTING", "REQUEUING", "RESTARTING") and now == "RUNNING" and before.restarts == after.restarts:
        return _closed(account, now_s)  # given up
    if now == "RUNNING" and isinstance(event, Observed):
        return _started(account, event, was, now_s)
    if now == "QUEUED" and one is not None:
        return replace(account, under_way=replace(one, waited=True))
    return account


def _closed(account: RestartAccount, now_s: float) -> RestartAccount:
    """What is under way comes to an end without having been measured."""
    return replace(account, lost_s=account.spent_s(now_s), under_way=None)


def _in_vain(account: RestartAccount, one: Restarting, now_s: float) -> RestartAccount:
    """It was not restarted in place: the time of that is spent, and no part of the requeue that follows."""
    tried_s = max(0.0, now_s - (one.saved_s or now_s))
    lost_s = account.lost_s + (tried_s if one.chosen else 0.0)
    return replace(account, lost_s=lost_s, under_way=replace(one, begun_s=one.begun_s + tried_s, saved_s=now_s))


def _checkpoint_s(
    one: Restarting, event: ResizeEvent, report: Report | None, restarts: int, now_s: float
) -> float | None:
    """For how long the checkpoint held training up: as the job says, else since it was asked for. None: there was none."""
    if not isinstance(event, Acknowledged):
        return None
    most_s = max(0.0, now_s - one.begun_s)
    told_s = report.checkpoint_s if report is not None and report.restarts == restarts else None
    return most_s if told_s is None else min(told_s, most_s)


def _started(account: RestartAccount, event: Observed, was: str, now_s: float) -> RestartAccount:
    started_s = now_s if event.started_s is None else min(event.started_s, now_s)
    one = account.under_way
    if one is None or one.started_s or was in ("CHECKPOINTING", "RESTARTING", "RUNNING"):
        # it ended and began again outside of Synergy
        account = _closed(account, now_s) if one is not None and one.started_s else account
        one = Restarting(begun_s=started_s, waited=True)
    return replace(account, first_s=account.first_s or started_s, under_way=replace(one, started_s=started_s))


def measured(life: JobLifecycle, report: Report, began_step: int, now_s: float) -> tuple[RestartAccount, RestartTimes]:
    """The account and the restart's times once the job trains at its usual pace, by its `report` that has just come; both as
    they are until then (no phase measured). `began_step`: of the first report of this incarnation."""
    account, one = life.restart, life.restart.under_way
    nothing = account, RestartTimes(job_id=life.job_id, restarts=life.restarts)
    if one is None or not one.started_s or life.state.value != "RUNNING" or report.restarts != life.restarts:
        return nothing
    trained_s, first_s = report.trained_s, report.first_step_s
    if trained_s is None and report.step_s is not None:  # an agent that does not tell: by its steps
        trained_s = report.step_s * max(0, report.step - began_step)
    if trained_s is None or (first_s is not None and report.step_s is None):
        return nothing
    start_s = max(0.0, now_s - trained_s - one.started_s)
    if first_s is not None and report.step_s is not None:
        start_s += max(0.0, first_s - report.step_s)
    times = RestartTimes(
        job_id=life.job_id,
        restarts=life.restarts,
        checkpoint_s=one.checkpoint_s,
        requeue_s=None if one.waited or not one.saved_s else max(0.0, one.started_s - one.saved_s),
        start_s=start_s,
        bytes_per_writer=account.bytes_per_writer if one.checkpoint_s is not None else None,
    )
    lost_s = account.lost_s + (times.total_s if one.chosen else 0.0)
    return replace(account, lost_s=lost_s, under_way=None), times


def bytes_per_writer(report: Report | None) -> float | None:
    """Of its newest checkpoint, on each of its GPUs; None where it has not told."""
    if report is None or not report.checkpoint_bytes or report.plan is None or report.plan.gpus < 1:
        return None
    return report.checkpoint_bytes / report.plan.gpus


def words(times: RestartTimes) -> str:
    """`a restart took 41 s: checkpoint 8 s, requeue 3 s, start 30 s`."""
    named = (("checkpoint", times.checkpoint_s), ("requeue", times.requeue_s), ("start", times.start_s))
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in named if seconds is not None)
    return f"a restart took {times.total_s:.1f} s: {parts}"
