"""Which steps of jobs are notices: a job runs on another size, was stopped, can't start, does nothing, or has a plan that failed. Pure."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from synergy_core.formatting import format_duration
from synergy_core.notice import IDLE_WEEK, Notice
from synergy_core.records import Cell, Job
from synergy_core.usage import Usage, clip_usage

from synergyd.control.controller import Controller
from synergyd.control.fault_monitor import IDLE
from synergyd.control.resize.failed_starts import DIED
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.control.tracked import Remember


class CellSource(Protocol):
    """A source of the sizes and plans that a job could have."""

    @property
    def cells(self) -> Sequence[Cell]: ...


_LEAST_WEEK_GPU_S = 3600.0  # of idle time, below which a week is worth no mail: one GPU for an hour
_JOBS = 5  # named in a week's mail
DEADLINE = "Deadline"  # the event in the story
_BACK = (ResizeState.RELEASED, ResizeState.RESIZED, ResizeState.RESTARTING, ResizeState.RETURNING)


def make_notice(step: Remember, job: Job | None, now_s: float) -> Notice | None:
    """Return the notice of a step that is about to be remembered, or None for most steps. `job`: as it was last seen."""
    life = step.lifecycle
    if step.event == DEADLINE and job is not None and job.directive is not None:
        number = f"{job.directive.deadline_s or 0:.0f}"
        return _notice("deadline", step.story[0], step, job, now_s, number)
    if step.event == "Warning" and step.story and step.story[0].endswith(IDLE):
        return _notice("idle", step.story[0], step, job, now_s, f"{life.incarnation}")
    if step.event == "Failed" and step.story and step.story[0].startswith("its plan ("):
        return _notice("ban", f"{step.story[0]}; it is not taken again", step, job, now_s, f"{life.failure}")
    if life.state is ResizeState.RUNNING and step.was in _BACK and step.story and (life.incarnation or life.orders):
        return _notice("resize", f"runs again: {life.cause}", step, job, now_s, f"{life.incarnation}.{life.orders}")
    if step.event == "Preempted" and life.state is ResizeState.CHECKPOINTING and step.was is ResizeState.RUNNING:
        return _notice(
            "hold", f"is stopped at a checkpoint and waits: {life.cause}", step, job, now_s, f"{life.since_s:.0f}"
        )
    for text in step.story:
        if DIED in text:
            return _notice("ban", text, step, job, now_s, f"script.{life.incarnation}")
        if "held by Slurm until" in text:
            return _notice("hold", text, step, job, now_s, f"failed.{life.failures.restarts}")
    return None


def _notice(event: str, text: str, step: Remember, job: Job | None, now_s: float, number: str) -> Notice:
    """Build a notice. `number` tells it from other notices of the job: a daemon that comes back makes the same key for the same event."""
    life = step.lifecycle
    directive = job.directive if job is not None else None
    return Notice(
        key=f"{event}.{life.job_id}.{life.submit_s:.0f}.{number}"[:96],
        event=event,
        job_id=life.job_id,
        slurm_name=life.slurm_name,
        name=job.name if job is not None else "",
        user=job.user if job is not None else "",
        account=job.account if job is not None else "",
        at_s=now_s,
        text=text,
        notify=directive.notify if directive is not None else (),
    )


def idle_week_notices(parts: Iterable[Usage], from_s: float, to_s: float, dates: str) -> list[Notice]:
    """Return a notice for each user whose GPUs did nothing for more than an hour in all, within a week that has ended.

    `parts`: all usage that touches the week. `dates`: the week in words. A notice has the same key whenever it is made.
    """
    gpu_s_by_user, idle = Count[str](), dict[str, Count[int]]()
    for whole in parts:
        if (part := clip_usage(whole, from_s, to_s)) is None:
            continue
        gpu_s_by_user[part.user] += part.gpus * part.held_s  # type: ignore[assignment]
        idle.setdefault(part.user, Count())[part.of_job or part.job_id] += part.gpus * part.idle_s  # type: ignore[assignment]
    notices = []
    for user, jobs in idle.items():
        if (whole_gpu_s := sum(jobs.values())) < _LEAST_WEEK_GPU_S:
            continue
        job_list = ", ".join(
            f"job {job_id} {seconds / 3600:.1f}" for job_id, seconds in jobs.most_common(_JOBS) if seconds >= 360.0
        )
        text = f"{whole_gpu_s / 3600:.1f} of your {gpu_s_by_user[user] / 3600:.1f} GPU hours {dates} did nothing: {job_list}"
        notices.append(
            Notice(
                key=f"{IDLE_WEEK}.{from_s:.0f}.{user}"[:96], event=IDLE_WEEK, job_id=0, user=user, at_s=to_s, text=text
            )
        )
    return notices


def late_deadlines(controller: Controller, cells: Mapping[int, CellSource], now_s: float) -> Iterator[Remember]:
    """Yield a line of the story for each job whose deadline is now out of reach, once for each deadline. `cells`: by job id."""
    due = {
        i: t.job
        for i, t in controller.jobs.items()
        if t.job is not None and _until_s(t.job) not in (None, t.lifecycle.late_deadline)
    }
    progress = controller.progress(due.values()) if due else {}
    for job_id, job in due.items():
        until_s, tracked = _until_s(job) or 0.0, controller.jobs[job_id]
        offered = cells[job_id].cells if job_id in cells else ()
        if why := deadline_obstacle(until_s, progress[job_id].remaining, offered, now_s):
            tracked.lifecycle = replace(tracked.lifecycle, late_deadline=until_s)
            yield Remember(tracked.lifecycle, tracked.lifecycle.state, DEADLINE, (why,))


def _until_s(job: Job) -> float | None:
    return job.directive.deadline_s if job.directive is not None else None


def deadline_obstacle(until_s: float, remaining: float | None, cells: Sequence[Cell], now_s: float) -> str:
    """Return why the deadline can't be met, or "" if it may be. `remaining`: sequences at the smallest batch; None: not known."""
    if until_s <= now_s:
        return "its deadline can't be met: it has passed" if remaining is None or remaining > 0 else ""
    best = max((cell.goodput for cell in cells), default=0.0)
    if remaining is None or best <= 0 or remaining / best <= until_s - now_s:
        return ""
    return (
        f"its deadline can't be met: what is left takes {format_duration(remaining / best)} on the best of its sizes, "
        f"and the deadline is in {format_duration(until_s - now_s)}"
    )
