"""What goes around a resize: starts that failed, and the start times that were written. Pure, over resize.advance."""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize import machine as resize
from synergyd.control.resize.events import CarriedOut, Observed, Refused, ResizeEvent
from synergyd.control.resize.instructions import LiftHold, Park, Release, Update
from synergyd.control.resize.launch_failure import Started, after_failure
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    ResizeTimes,
    Step,
)
from synergyd.control.resize.start_time import after_seeing, after_writing

# States in which a job may be found to have failed to start. From RESIZED: only the answer to its release was lost.
_STARTED = frozenset({ResizeState.QUEUED, ResizeState.RESIZED, ResizeState.RELEASED, ResizeState.RUNNING})


def advance(life: JobLifecycle, event: ResizeEvent, now_s: float, limits: ResizeTimes) -> Step:
    """One event. Total: any event in any state gives an answer, and never raises."""
    match event:
        case Observed(state="PENDING", launch_failed=True) if life.state in _STARTED:
            step = _launch_failed(life, event, now_s, limits)
        case Refused(instruction=LiftHold(), error=error, transient=transient):
            told = () if transient or life.attempts else (f"its hold can't be lifted, will be tried again: {error}",)
            step = Step(replace(life, attempts=life.attempts + (not transient)), (), told)
        case CarriedOut(instruction=LiftHold()):
            step = Step(life)
        case _:
            step = resize.advance(life, event, now_s, limits)
    after = _written(step, event, now_s)
    begun = life.state is ResizeState.RESIZED and after.state in (ResizeState.RELEASED, ResizeState.RUNNING)
    return replace(step, life=replace(after, started=_started(life)) if begun else after)


def _launch_failed(life: JobLifecycle, event: Observed, now_s: float, limits: ResizeTimes) -> Step:
    # nobody decides about a job that was left to Slurm: it is not put off
    lift = LiftHold(life.job_id, event.restarts, 0.0 if life.left else limits.park_s)
    if life.failures.restarts == event.restarts and life.state is ResizeState.QUEUED:
        again = life.failures.lifted and (not life.sent_s or now_s >= life.sent_s + limits.resend_s)
        return Step(replace(life, sent_s=now_s), (lift,)) if again else Step(life)
    started = _started(life) if life.state is ResizeState.RESIZED else life.started
    failures, text = after_failure(life.failures, started, event.restarts, now_s, life.job_id)
    back = replace(
        life,
        state=ResizeState.QUEUED,
        since_s=now_s,
        restarts=event.restarts,
        target=None,
        origin=None,
        plan=None,
        attempts=0,
        stopping=False,
        ended_s=now_s,
        failures=failures,
    )
    return Step(replace(back, sent_s=now_s), (lift,), (text,)) if failures.lifted else Step(back, (), (text,))


def _started(life: JobLifecycle) -> Started:
    return Started(restarts=life.restarts, nodes=life.target.nodes if life.target else ())


def _written(step: Step, event: ResizeEvent, now_s: float) -> JobLifecycle:
    """The life after `step`, with the start times that were seen and are about to be written."""
    life = step.life
    if isinstance(event, Observed) and event.state == "PENDING" and life.state is not ResizeState.GONE:
        life = replace(life, written=after_seeing(life.written, event.restarts, event.eligible_s))
    for instruction in step.instructions:
        if isinstance(instruction, Park | Update | LiftHold):
            life = replace(life, written=after_writing(life.written, life.restarts, now_s + instruction.park_s))
        elif isinstance(instruction, Release):
            life = replace(life, written=after_writing(life.written, life.restarts, now_s))
    return life
