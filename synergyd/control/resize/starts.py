"""What goes around a resize: starts that failed, and the start times that were written. Pure, over resize.advance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from synergyd.control.resize import machine as resize
from synergyd.control.resize.events import CarriedOut, Observed, Refused, ResizeEvent
from synergyd.control.resize.instructions import LiftHold, Park, Release, Requeue, Update
from synergyd.control.resize.launch_failure import LIFTS, Started, after_failure
from synergyd.control.resize.lifecycle import (
    IN_TRANSIT,
    JobLifecycle,
    ResizeState,
    ResizeTimes,
    Step,
)
from synergyd.control.resize.place import with_place
from synergyd.control.resize.start_time import after_seeing, after_writing
from synergyd.control.resize.steps import to
from synergyd.words import size_words

DIED = "its script ended with an error before its training began again"
RERUN_S = 120.0  # for Slurm to take a failed job back

# States in which a job may be found to have failed to start. From RESIZED: only the answer to its release was lost.
_STARTED = frozenset({ResizeState.QUEUED, ResizeState.RESIZED, ResizeState.RELEASED, ResizeState.RUNNING})

# States in which a job may be found to run without its GPUs; REQUEUING: where it was to be requeued for that, and had failed before.
_RELEASED = frozenset({ResizeState.RESIZED, ResizeState.RELEASED, ResizeState.REQUEUING})


def advance(life: JobLifecycle, event: ResizeEvent, now_s: float, limits: ResizeTimes) -> Step:
    """One event. Total: any event in any state gives an answer, and never raises."""
    match event:
        case Observed(state="PENDING", launch_failed=True) if life.state in _STARTED:
            step = _launch_failed(life, event, now_s, limits)
        case Observed(gpuless=True) if life.state in _RELEASED and life.failures.count < LIFTS:
            step = _without_gpus(life, event, now_s)
        case Observed(state="GONE", failed=True) if ended_before_training(life) and not life.reruns:
            step = _run_again(life, event, now_s)
        case Observed(state="GONE", failed=True) if life.reruns and life.state is ResizeState.REQUEUING:
            step = _still_failed(life, event, now_s, limits)
        case Observed(state="GONE", failed=True) if ended_before_training(life):
            step = to(life, ResizeState.GONE, now_s, f"{DIED}, with its former size too: it is lost")
        case Refused(instruction=LiftHold(), error=error, transient=transient):
            told = () if transient or life.attempts else (f"its hold can't be lifted, will be tried again: {error}",)
            step = Step(replace(life, attempts=life.attempts + (not transient)), (), told)
        case CarriedOut(instruction=LiftHold()):
            step = Step(life)
        case _:
            step = resize.advance(life, event, now_s, limits)
    after = _written(step, event, now_s)
    begun = life.state is ResizeState.RESIZED and after.state in (ResizeState.RELEASED, ResizeState.RUNNING)
    step = replace(step, life=replace(after, started=_started(life)) if begun else after)
    return with_place(step, event)


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


def _without_gpus(life: JobLifecycle, event: Observed, now_s: float) -> Step:
    """Slurm 22.05 does so on nodes that have not registered yet with a slurmctld that took over: its steps fail, and then the job."""
    failures = replace(life.failures, count=life.failures.count + 1)
    again = replace(life, restarts=event.restarts, failures=failures, attempts=0, must_leave=True)
    text = f"Slurm started it without its GPUs: requeued ({failures.count} of {LIFTS})"
    return to(again, ResizeState.REQUEUING, now_s, text, (Requeue(life.job_id, event.restarts, failed=True),))


def ended_before_training(life: JobLifecycle) -> bool:
    """Whether Synergy started this incarnation after another one that trained, and no launcher of it was heard."""
    restarted = life.restarts > 0 and life.started is not None and life.started.restarts == life.restarts
    begins = life.state in (ResizeState.RELEASED, ResizeState.RUNNING)
    return begins and restarted and 0 <= life.launched < life.restarts


def ends_matter(lives: Mapping[int, JobLifecycle]) -> list[int]:
    """Return the jobs of which it matters how they leave: those in transit, and those whose training has not begun again since."""
    return [i for i, life in lives.items() if life.state in IN_TRANSIT or ended_before_training(life)]


def _run_again(life: JobLifecycle, event: Observed, now_s: float) -> Step:
    """Its script may mind the new size: it is run once more with the one that it trained with last."""
    target = life.ran or life.asked
    if target is None:
        return to(life, ResizeState.GONE, now_s, f"{DIED}: it is lost")
    again = replace(life, restarts=event.restarts, target=target, origin=None, attempts=0, reruns=life.reruns + 1)
    text = f"{DIED}: run once more with {size_words(target.shape, target.plan)}, and not resized again"
    again = replace(again, cause="its script ended before its training began")
    return to(again, ResizeState.REQUEUING, now_s, text, (Requeue(life.job_id, event.restarts, failed=True),))


def _still_failed(life: JobLifecycle, event: Observed, now_s: float, limits: ResizeTimes) -> Step:
    if now_s >= life.since_s + RERUN_S:
        return to(life, ResizeState.GONE, now_s, "it could not be requeued: it is lost")
    if now_s < life.sent_s + limits.resend_s:
        return Step(life)
    return Step(replace(life, sent_s=now_s), (Requeue(life.job_id, event.restarts, failed=True),))


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
