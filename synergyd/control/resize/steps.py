"""The moves that a job's resize is made of: a life in another state, and the instructions that go with it."""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize.events import Observed
from synergyd.control.resize.instructions import (
    AskCheckpoint,
    Instruction,
    Park,
    Release,
    Requeue,
    Restart,
    Target,
    Update,
)
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, ResizeTimes, Step, settles_s
from synergyd.control.resize.start_refusal import Rung, names_limit, waits_its_turn
from synergyd.records import Plan
from synergyd.words import size_words

REQUEUE_AGAIN_S = 2.0  # a requeue that was put off is asked for again
PATIENCE = 6  # doublings of the time after which a job that does not answer is asked again to make way


def awaited(life: JobLifecycle, limits: ResizeTimes) -> tuple[Instruction, ...]:
    """The instruction whose answer moves `life` on."""
    match life.state:
        case ResizeState.CHECKPOINTING:
            return (AskCheckpoint(life.job_id, life.restarts),)
        case ResizeState.REQUEUING:
            return (requeue(life),)
        case ResizeState.RESTARTING if life.target is not None and life.target.plan is not None:
            return (Restart(life.job_id, life.restarts, life.orders, life.target.plan),)
        case ResizeState.HELD if life.target is not None:
            return (update(life, life.target, limits),)
        case ResizeState.RESIZED:
            return (Release(life.job_id, life.comes_first),)
        case _:
            return ()


def update(life: JobLifecycle, target: Target, limits: ResizeTimes) -> Update:
    return Update(life.job_id, target, limits.park_s, life.walltime.grant)


def requeue(life: JobLifecycle) -> Requeue:
    target = None if life.must_leave else life.target
    return Requeue(life.job_id, life.restarts, shield=life.shielded, may_stay=not life.must_leave, target=target)


def to(
    life: JobLifecycle, state: ResizeState, now_s: float, text: str, instructions: tuple[Instruction, ...] = ()
) -> Step:
    sent_s = now_s if instructions else life.sent_s
    return Step(replace(life, state=state, since_s=now_s, sent_s=sent_s), instructions, (text,))


def runs(life: JobLifecycle, event: Observed, now_s: float, plan: Plan | None, text: str) -> Step:
    left = "" if waits_its_turn(life.left) or names_limit(life.left) else life.left
    now = replace(life, restarts=event.restarts, target=None, origin=None, plan=plan, attempts=0, stopping=False)
    now = replace(now, stays=False, rung=Rung.AS_DECIDED, left=left, missed=0, must_leave=False)
    return to(now, ResizeState.RUNNING, now_s, text)


def to_restarting(life: JobLifecycle, plan: Plan, now_s: float) -> Step:
    told = replace(life, attempts=0, orders=life.orders + 1)
    order = Restart(life.job_id, life.restarts, told.orders, plan)
    return to(told, ResizeState.RESTARTING, now_s, "checkpoint acknowledged: it is restarted in place", (order,))


def to_requeuing(life: JobLifecycle, now_s: float, text: str, *, must_leave: bool = False) -> Step:
    nodes: tuple[str, ...] = ()
    if life.target is not None:
        nodes = life.target.nodes or (life.origin.nodes if life.origin is not None else ())
    leaving = replace(life, attempts=0, stays=False, shielded=nodes, must_leave=life.must_leave or must_leave)
    leaving = replace(leaving, comes_first=life.comes_first or life.target is not None)
    return to(leaving, ResizeState.REQUEUING, now_s, text, (requeue(leaving),))


def to_held(life: JobLifecycle, now_s: float, limits: ResizeTimes, text: str) -> Step:
    if life.target is None:
        # kept from starting by itself before those that it made way for
        park = (Park(life.job_id, limits.park_s, life.walltime.grant),) if life.stopping else ()
        return to(replace(life, stopping=False, plan=None), ResizeState.QUEUED, now_s, text, park)
    return to(replace(life, attempts=0), ResizeState.HELD, now_s, text, (update(life, life.target, limits),))


def to_unchanged(life: JobLifecycle, now_s: float, limits: ResizeTimes, why: str) -> Step:
    """Nothing better is known than Slurm's own view of the job: it is released with that. No target, so no plan of ours."""
    freed = replace(life, target=None, attempts=0)
    return to_resized(freed, now_s, limits, f"{why}: released as Slurm has it")


def to_resized(life: JobLifecycle, now_s: float, limits: ResizeTimes, text: str) -> Step:
    """The job may start now, or (a tick then releases it) when its last incarnation has been over for long enough."""
    if settled(life, now_s, limits):
        return to(life, ResizeState.RESIZED, now_s, text, (Release(life.job_id, life.comes_first),))
    return to(replace(life, sent_s=0.0), ResizeState.RESIZED, now_s, text)


def longest_retry_s(life: JobLifecycle, limits: ResizeTimes) -> float:
    """How long a job is left alone at the most after a resize that failed, seconds."""
    return limits.retry_s * 2.0 ** min(max(0, life.unanswered - 1), PATIENCE)


def settled(life: JobLifecycle, now_s: float, limits: ResizeTimes) -> bool:
    return not life.ended_s <= now_s < settles_s(life, limits)  # a clock set back must not keep it waiting


def words(target: Target) -> str:
    return size_words(target.shape, target.plan, target.nodes)
