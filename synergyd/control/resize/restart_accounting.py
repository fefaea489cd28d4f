"""The account of a job's restarts: what each phase took by its transitions and reports, and what those that Synergy chose took together.

Pure: the only times are those of the events, of Slurm's own start time, and what a report says has passed since.
"""

from __future__ import annotations

from dataclasses import replace

from synergy_core.job_report import Report
from synergy_core.restarts import RestartTimes

from synergyd.control.resize.events import Acknowledged, Observed, PlanFailed, RestartedInPlace, Wanted
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, Step
from synergyd.control.resize.restart_history import RestartHistory, RestartInProgress
from synergyd.control.resize.transition import Occurrence

RUNNING, CHECKPOINTING, REQUEUING = ResizeState.RUNNING, ResizeState.CHECKPOINTING, ResizeState.REQUEUING
RESTARTING, QUEUED = ResizeState.RESTARTING, ResizeState.QUEUED
_RESIZES = (CHECKPOINTING, REQUEUING, RESTARTING)


def account_restart(step: Step, what: Occurrence) -> Step:
    """Return `step` with the account of the job's restarts after its transition (a hook of machine.py)."""
    history = _history(what.former_lifecycle, step.life, what)
    if history is what.former_lifecycle.restart_history:
        return step
    return replace(step, life=replace(step.life, restart_history=history))


def _history(before: JobLifecycle, after: JobLifecycle, what: Occurrence) -> RestartHistory:
    """Return the history of a job that went from `before` to `after`."""
    history, event, now_s = before.restart_history, what.event, what.now_s
    was, now, same = before.state, after.state, before.incarnation == after.incarnation
    if was is now and same:
        return history
    one = history.under_way
    if was in (RUNNING, ResizeState.JOINING) and now in (CHECKPOINTING, REQUEUING, QUEUED):
        is_chosen = now is CHECKPOINTING and not (isinstance(event, Wanted) and event.is_due)
        closed = history.with_restart_closed(now_s)
        begun = RestartInProgress(begun_s=now_s, chosen=is_chosen, waited=now is QUEUED)
        return replace(closed, chosen=closed.chosen + is_chosen, under_way=begun)
    if was is CHECKPOINTING and now in (REQUEUING, RESTARTING) and one is not None:
        if isinstance(event, PlanFailed):
            return replace(history, under_way=replace(one, saved_s=now_s))
        took_s = _checkpoint_s(one, before.incarnation, what)
        history = replace(history, bytes_per_writer=bytes_per_writer(what.report) or history.bytes_per_writer)
        return replace(history, under_way=replace(one, saved_s=now_s, checkpoint_s=took_s))
    if was is RESTARTING and one is not None:
        if isinstance(event, RestartedInPlace):
            begun = replace(one, in_place=True, started_s=one.saved_s or now_s, saved_s=0.0)
            return replace(history, under_way=begun)
        if now not in (RUNNING, ResizeState.RETURNING):
            history = _after_failed_restart_in_place(history, one, now_s)
            one = history.under_way
    if was in _RESIZES and now is RUNNING and same:
        return history.with_restart_closed(now_s)  # given up
    if now is RUNNING and isinstance(event, Observed):
        return _after_start(history, event, was, now_s)
    if now is QUEUED and one is not None:
        return replace(history, under_way=replace(one, waited=True))
    return history


def _after_failed_restart_in_place(history: RestartHistory, one: RestartInProgress, now_s: float) -> RestartHistory:
    """Return the history of a job that was not restarted in place.

    The time of that attempt is no part of the requeue that follows.
    """
    tried_s = max(0.0, now_s - (one.saved_s or now_s))
    lost_s = history.lost_s + (tried_s if one.chosen else 0.0)
    return replace(history, lost_s=lost_s, under_way=replace(one, begun_s=one.begun_s + tried_s, saved_s=now_s))


def _checkpoint_s(one: RestartInProgress, incarnation: int, what: Occurrence) -> float | None:
    """Return for how long the checkpoint held training up: as the job says, else since it was asked for.

    Return None if there was none.
    """
    if not isinstance(what.event, Acknowledged):
        return None
    most_s = max(0.0, what.now_s - one.begun_s)
    said_s = what.report.checkpoint_s if what.report is not None and what.report.restarts == incarnation else None
    return most_s if said_s is None else min(said_s, most_s)


def _after_start(history: RestartHistory, event: Observed, was: ResizeState, now_s: float) -> RestartHistory:
    """Return the history of a job that runs again."""
    started_s = now_s if event.started_s is None else min(event.started_s, now_s)
    one = history.under_way
    if one is None or one.started_s or was in (ResizeState.JOINING, CHECKPOINTING, RESTARTING, RUNNING):
        # it ended and began again outside of Synergy
        history = history.with_restart_closed(now_s) if one is not None and one.started_s else history
        one = RestartInProgress(begun_s=started_s, waited=True)
    return replace(history, first_s=history.first_s or started_s, under_way=replace(one, started_s=started_s))


def measure(life: JobLifecycle, report: Report, began_step: int, now_s: float) -> tuple[RestartHistory, RestartTimes]:
    """Return the history and the restart's times once the job trains at its usual pace, by the `report` that has just come.

    Until then return both as they are (no phase measured). `began_step`: the step of the first report of this
    incarnation.
    """
    history, one = life.restart_history, life.restart_history.under_way
    nothing = history, RestartTimes(job_id=life.job_id, restarts=life.incarnation)
    if one is None or not one.started_s or life.state is not RUNNING or report.restarts != life.incarnation:
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
        restarts=life.incarnation,
        checkpoint_s=one.checkpoint_s,
        requeue_s=None if one.waited or not one.saved_s else max(0.0, one.started_s - one.saved_s),
        start_s=start_s,
        bytes_per_writer=history.bytes_per_writer if one.checkpoint_s is not None else None,
    )
    lost_s = history.lost_s + (times.total_s if one.chosen else 0.0)
    return replace(history, lost_s=lost_s, under_way=None), times


def bytes_per_writer(report: Report | None) -> float | None:
    """Return the bytes of the job's newest checkpoint on each of its GPUs, or None if it has not told."""
    if report is None or not report.checkpoint_bytes or report.plan is None or report.plan.gpus < 1:
        return None
    return report.checkpoint_bytes / report.plan.gpus


def restart_message(times: RestartTimes) -> str:
    """Return `a restart took 41 s: checkpoint 8 s, requeue 3 s, start 30 s`."""
    phases = (("checkpoint", times.checkpoint_s), ("requeue", times.requeue_s), ("start", times.start_s))
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases if seconds is not None)
    return f"a restart took {times.total_s:.1f} s: {parts}"
