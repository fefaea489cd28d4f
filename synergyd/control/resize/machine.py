"""The resize of one job as a pure state machine: events in, instructions out.

    QUEUED --wanted--> HELD --updated--> RESIZED --released--> RELEASED --runs--> RUNNING
    RUNNING --wanted--> CHECKPOINTING --acknowledged or time-out--> REQUEUING --pending--> HELD ...
    RUNNING --wanted: another plan for the same GPUs--> CHECKPOINTING --acknowledged--> RESTARTING --reported--> RUNNING
    RUNNING --preempted--> CHECKPOINTING --acknowledged--> REQUEUING --pending--> QUEUED
    RUNNING --hung--> REQUEUING --pending--> QUEUED

HELD is not Slurm's hold: the job is parked behind a start time in the future, which passes by itself. So a daemon that
dies here costs a delay, and the job then runs as a plain Slurm job; nothing is ever held for ever.

Every instruction may be sent again: `Requeue` names the incarnation (restart count) it is meant for and the actuator
checks it; all others say what should be, not what to change. A lost answer, or a daemon killed between an instruction and
its answer, is mended by sending it again after `resend_s`.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize.events import (
    Acknowledged,
    CarriedOut,
    Hung,
    Observed,
    PlanFailed,
    Preempted,
    Refused,
    ResizeEvent,
    RestartedInPlace,
    Tick,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.hangs import SHUN_S
from synergyd.control.resize.instructions import AskCheckpoint, Instruction, Park, Release, Requeue, Restart, Update
from synergyd.control.resize.lifecycle import (
    IN_TRANSIT,
    STARTING,
    JobLifecycle,
    ResizeState,
    ResizeTimes,
    Step,
    wait_ends_s,
)
from synergyd.control.resize.start_refusal import (
    STALE_REASON_S,
    UNSEEN_S,
    Rung,
    alike,
    next_try,
    refuses,
    remembered,
    unseen,
    waits_its_turn,
)
from synergyd.control.resize.steps import (
    REQUEUE_AGAIN_S,
    awaited,
    longest_retry_s,
    runs,
    settled,
    to,
    to_held,
    to_requeuing,
    to_resized,
    to_restarting,
    to_unchanged,
    update,
    words,
)

_RUNS = (ResizeState.RUNNING, ResizeState.CHECKPOINTING, ResizeState.RESTARTING)
_SENT_AGAIN = IN_TRANSIT - {ResizeState.RELEASED}


def advance(life: JobLifecycle, event: ResizeEvent, now_s: float, limits: ResizeTimes) -> Step:
    """One event. Total: any event in any state gives an answer, and never raises."""
    if life.state is ResizeState.GONE:
        return Step(life)
    match event:
        case Observed():
            return _observed(_timed(life, event, now_s, limits), event, now_s, limits)
        case Wanted():
            return _wanted(life, event, now_s, limits)
        case Preempted():
            return _preempted(life, event, now_s)
        case Unwanted():
            return _unwanted(life, event, now_s)
        case PlanFailed():
            return _plan_failed(life, event, now_s)
        case Hung():
            return _hung(life, event, now_s)
        case Acknowledged():
            return _acknowledged(life, event, now_s)
        case RestartedInPlace():
            return _restarted(life, event, now_s)
        case CarriedOut():
            return _done(life, event.instruction, now_s, limits)
        case Refused():
            return _refused(life, event, now_s, limits)
        case Tick():
            return _tick(life, event, now_s, limits)


# -- one function an event -----------------------------------------------------------------------------------------


def _observed(life: JobLifecycle, event: Observed, now_s: float, limits: ResizeTimes) -> Step:
    if event.state == "GONE":
        return to(life, ResizeState.GONE, now_s, f"left the queue while {life.state}")
    running = event.state in ("RUNNING", "SUSPENDED")
    newer = event.restarts > life.restarts
    soon_s = now_s + min(30.0, limits.park_s / 3)
    match life.state:
        case ResizeState.QUEUED if running:
            return runs(life, event, now_s, None, "started by Slurm as a plain job")
        case ResizeState.RUNNING if event.state == "PENDING":
            # requeued by Slurm (node failure) or by the user
            # what the incarnation that ended was spared says nothing of the next one's start
            moved = replace(life, restarts=event.restarts, plan=None, ended_s=now_s, retry_after_s=0.0, unanswered=0)
            return to(moved, ResizeState.QUEUED, now_s, "requeued by Slurm or its user")
        case ResizeState.RUNNING if running and event.restarts != life.restarts:
            return runs(life, event, now_s, life.plan, f"restarted outside Synergy (restart {event.restarts})")
        case ResizeState.CHECKPOINTING if newer and running:
            return runs(life, event, now_s, life.plan, "restarted outside Synergy while its checkpoint was awaited")
        case ResizeState.RESTARTING if newer and running:
            return runs(
                life, event, now_s, life.plan, "restarted outside Synergy before it could be restarted in place"
            )
        case ResizeState.CHECKPOINTING | ResizeState.REQUEUING | ResizeState.RESTARTING if event.state == "PENDING":
            back = replace(life, restarts=event.restarts, ended_s=now_s)
            return to_held(back, now_s, limits, f"requeued{life.walltime.words()}")
        case ResizeState.CHECKPOINTING if event.state == "SUSPENDED":
            text = "suspended while its checkpoint was awaited: resize given up"
            return to(replace(life, target=None, stopping=False), ResizeState.RUNNING, now_s, text)
        case ResizeState.RESTARTING if event.state == "SUSPENDED":
            return Step(replace(life, since_s=now_s))  # nothing of it runs, so nothing can report
        case ResizeState.REQUEUING if running and newer:
            again = replace(life, retry_after_s=now_s + limits.retry_s)
            return runs(again, event, now_s, None, "started again before it could be resized")
        case ResizeState.HELD if running:
            again = replace(life, retry_after_s=now_s + limits.retry_s)
            return runs(again, event, now_s, None, "started before its new size was complete")
        case ResizeState.RESIZED | ResizeState.RELEASED if running:
            # from RESIZED: the release took effect, only its answer was lost
            size = "its new size" if life.target else "the size Slurm had for it"
            return runs(life, event, now_s, life.target.plan if life.target else None, f"started with {size}")
        case ResizeState.HELD if (
            event.state == "PENDING" and event.eligible_s is not None and event.eligible_s < soon_s
        ):
            return Step(_pending(life, event, now_s), (Park(life.job_id, limits.park_s),))
        case ResizeState.RESIZED if (
            event.state == "PENDING" and event.eligible_s is not None and event.eligible_s <= now_s
        ):
            return to(_pending(life, event, now_s), ResizeState.RELEASED, now_s, "released")
        case ResizeState.RELEASED if (
            event.state == "PENDING" and refuses(event.reason) and now_s >= life.since_s + STALE_REASON_S
        ):
            return _not_started(_pending(life, event, now_s), event.reason, now_s, limits)
        case _:
            return Step(_pending(life, event, now_s) if event.state == "PENDING" else life)


def _timed(life: JobLifecycle, event: Observed, now_s: float, limits: ResizeTimes) -> JobLifecycle:
    """`life` with what Slurm shows of its time limit."""
    walltime = life.walltime.seen(event.limit_s)
    if event.state in ("RUNNING", "SUSPENDED"):
        walltime = walltime.running(event.ends_s, event.limit_s)
    elif event.state == "PENDING" and life.state is ResizeState.REQUEUING:
        # by Slurm's clock, unless that is not the daemon's
        ended_s = event.queued_s if event.queued_s is not None and life.since_s <= event.queued_s <= now_s else now_s
        walltime = walltime.requeued(ended_s, limits.lead_s)
    elif event.state == "PENDING" and life.state in _RUNS:
        walltime = walltime.lost()
    return life if walltime == life.walltime else replace(life, walltime=walltime)


def _pending(life: JobLifecycle, event: Observed, now_s: float) -> JobLifecycle:
    """A job that is pending: of a later incarnation than was known, if another ended in between."""
    return replace(life, restarts=event.restarts, ended_s=now_s) if event.restarts > life.restarts else life


def _wanted(life: JobLifecycle, event: Wanted, now_s: float, limits: ResizeTimes) -> Step:
    if not event.due and (now_s < life.retry_after_s or life.left):
        return Step(life)
    target, rung = event.target, Rung.AS_DECIDED
    if life.left or any(set(r.nodes) == set(target.nodes) for r in life.refusals):
        if life.state is ResizeState.RUNNING and not event.due:
            return Step(life)
        target, rung = replace(target, nodes=()), Rung.ANY_NODES
    elif life.missed and event.any_nodes and target.nodes and life.state is ResizeState.QUEUED:
        target, rung = replace(target, nodes=()), Rung.ANY_NODES  # whatever is free when Slurm comes to it
    aimed = replace(life, target=target, cause=event.cause, attempts=0, rung=rung, asked=event.asked or life.asked)
    match life.state:
        case ResizeState.QUEUED:
            return to_held(replace(aimed, origin=event.present), now_s, limits, f"start decided: {event.cause}")
        case ResizeState.RELEASED if life.target != target:
            return to_held(aimed, now_s, limits, f"new decision before it started: {event.cause}")
        case ResizeState.RUNNING:
            asked = replace(aimed, asked_s=0.0, acks_before=event.acks, origin=event.present, stays=_stays(event))
            # a checkpoint that is due is the last before its end: it begins anew, or is lost
            asked = replace(asked, must_leave=event.due)
            asked = asked if event.due else replace(asked, moves=life.moves.begun(now_s))
            text = f"{'restart in place' if asked.stays else 'resize'} decided: {event.cause}; checkpoint asked for"
            return to(asked, ResizeState.CHECKPOINTING, now_s, text, (AskCheckpoint(life.job_id, life.restarts),))
        case _:
            return Step(life)


def _stays(event: Wanted) -> bool:
    """Is it another plan for the GPUs that the job has, and can its launchers start it there?"""
    target, present = event.target, event.present
    if not event.in_place or event.due or present is None or target.plan in (None, present.plan):
        return False
    return target.shape == present.shape and set(target.nodes) == set(present.nodes)


def _preempted(life: JobLifecycle, event: Preempted, now_s: float) -> Step:
    if life.state is not ResizeState.RUNNING or now_s < life.retry_after_s:
        return Step(life)
    asked = replace(
        life,
        target=None,
        origin=None,
        stopping=True,
        cause=event.cause,
        attempts=0,
        asked_s=0.0,
        acks_before=event.acks,
        moves=life.moves.begun(now_s),
        stays=False,
        must_leave=False,
    )
    text = f"preemption decided: {event.cause}; checkpoint asked for"
    return to(asked, ResizeState.CHECKPOINTING, now_s, text, (AskCheckpoint(life.job_id, life.restarts),))


def _unwanted(life: JobLifecycle, event: Unwanted, now_s: float) -> Step:
    if life.state is ResizeState.CHECKPOINTING:
        back = replace(life, target=None, stopping=False)
        return to(back, ResizeState.RUNNING, now_s, f"resize given up before it was requeued: {event.cause}")
    if life.state in STARTING:
        # what was refused before the nodes changed is no reason to let it wait
        back = replace(life, target=None, origin=None, attempts=0, retry_after_s=0.0)
        return to(back, ResizeState.QUEUED, now_s, f"waits for a new decision: {event.cause}")
    return Step(life)


def _plan_failed(life: JobLifecycle, event: PlanFailed, now_s: float) -> Step:
    if life.state is ResizeState.CHECKPOINTING:
        return to_requeuing(life, now_s, "it failed while its checkpoint was awaited", must_leave=True)
    if life.state not in (ResizeState.RUNNING, ResizeState.RESTARTING):
        return Step(life)
    back = replace(life, target=event.fallback, origin=None, cause="its plan failed", stopping=False)
    return to_requeuing(back, now_s, event.story, must_leave=True)


def _hung(life: JobLifecycle, event: Hung, now_s: float) -> Step:
    if life.state is not ResizeState.RUNNING:
        return Step(life)  # one whose checkpoint is awaited is requeued without it
    count, until_s = life.hangs.count + 1, now_s + SHUN_S
    hangs = replace(life.hangs, count=count, nodes=event.nodes, until_s=until_s, step=event.step)
    back = replace(life, target=None, origin=None, stopping=True, cause="its steps had stopped", hangs=hangs)
    return to_requeuing(back, now_s, event.story, must_leave=True)


def _acknowledged(life: JobLifecycle, event: Acknowledged, now_s: float) -> Step:
    if life.state is ResizeState.CHECKPOINTING and event.restarts == life.restarts and event.count > life.acks_before:
        moves = replace(life.moves, checkpoint_s=max(0.0, now_s - life.asked_s)) if life.asked_s else life.moves
        answered = replace(life, unanswered=0, moves=moves)
        if life.stays and life.target is not None and life.target.plan is not None:
            return to_restarting(answered, life.target.plan, now_s)
        return to_requeuing(answered, now_s, "checkpoint acknowledged")
    return Step(life)


def _restarted(life: JobLifecycle, event: RestartedInPlace, now_s: float) -> Step:
    if (
        life.state is not ResizeState.RESTARTING
        or life.target is None
        or event.restarts != life.restarts
        or event.number < life.orders
    ):
        return Step(life)
    goes_on = replace(life, plan=life.target.plan, target=None, origin=None, attempts=0, stays=False)
    return to(goes_on, ResizeState.RUNNING, now_s, f"restarted in place: {words(life.target)}")


def _done(life: JobLifecycle, instruction: Instruction, now_s: float, limits: ResizeTimes) -> Step:
    match instruction:
        case Update(target=target) if life.state is ResizeState.HELD and target == life.target:
            text = f"size set and read back: {words(target)}"
            return to_resized(replace(life, attempts=0), now_s, limits, text)
        case Release() if life.state is ResizeState.RESIZED:
            return to(life, ResizeState.RELEASED, now_s, "released")
        case AskCheckpoint(restarts=r) if (
            life.state is ResizeState.CHECKPOINTING and r == life.restarts and not life.asked_s
        ):
            return Step(replace(life, asked_s=now_s))  # from now on it has `checkpoint_timeout_s` to answer
        case _:
            return Step(life)


def _refused(life: JobLifecycle, event: Refused, now_s: float, limits: ResizeTimes) -> Step:
    if event.instruction not in awaited(life, limits):
        return Step(life)  # a late answer, or one that another instruction makes good
    tried = replace(life, attempts=life.attempts + 1)
    # a refusal that is called transient and yet lasts as long as a job may be parked is none
    give_up = now_s >= life.since_s + limits.park_s or (not event.transient and tried.attempts >= limits.attempts)
    back = replace(tried, target=None, stopping=False, retry_after_s=now_s + limits.retry_s)
    # below the first rung nodes are Slurm's choice
    origin = life.origin if life.rung is Rung.AS_DECIDED or life.origin is None else replace(life.origin, nodes=())
    match event.instruction:
        case Update() if give_up and origin is not None and life.target != origin:
            again = replace(back, target=origin, attempts=0)
            text = f"new size refused ({event.error}): back to {words(origin)}"
            return to(again, ResizeState.HELD, now_s, text, (update(life, origin, limits),))
        case Update() if give_up:
            return to_unchanged(back, now_s, limits, f"update refused ({event.error})")
        case Restart() if give_up:
            text = f"it could not be restarted in place: {event.error}"
            return to_requeuing(tried, now_s, text, must_leave=True)
        case Requeue() if give_up or event.final:
            stays = replace(back, must_leave=False)
            return to(stays, ResizeState.RUNNING, now_s, f"requeue refused, it goes on as it is: {event.error}")
        case AskCheckpoint() if give_up or not event.transient:
            return to(back, ResizeState.RUNNING, now_s, f"checkpoint could not be asked for: {event.error}")
        case Release() if give_up:
            text = f"release refused ({event.error}): it starts by itself when its start time comes"
            return to(tried, ResizeState.RELEASED, now_s, text)
        case Requeue() if event.transient:
            # another job restarts there: it works on meanwhile, and that work is lost at the requeue
            soon = replace(tried, sent_s=min(tried.sent_s, now_s + REQUEUE_AGAIN_S - limits.resend_s))
            told = f"Requeue put off: {event.error}"
            return Step(soon, (), (told,) if tried.attempts == 1 else ())
        case _:
            # the story tells of the first one only: a slurmctld that is away for an hour is one line
            told = f"{type(event.instruction).__name__} failed, will be tried again: {event.error}"
            return Step(tried, (), (told,) if tried.attempts == 1 or not event.transient else ())


def _tick(life: JobLifecycle, event: Tick, now_s: float, limits: ResizeTimes) -> Step:
    over = now_s >= wait_ends_s(life, limits)
    sent = replace(life, sent_s=now_s)
    match life.state:
        case ResizeState.CHECKPOINTING if over and life.stopping and life.asked_s:
            # nobody's wait is worth the work that would be lost
            asked = replace(life, unanswered=life.unanswered + 1)
            back = replace(asked, stopping=False, retry_after_s=now_s + longest_retry_s(asked, limits))
            text = f"no checkpoint acknowledged within {limits.checkpoint_timeout_s:g} s: it goes on"
            return to(back, ResizeState.RUNNING, now_s, text)
        case ResizeState.CHECKPOINTING if over and life.asked_s:
            text = f"no checkpoint acknowledged within {limits.checkpoint_timeout_s:g} s: resized from its last one"
            return to_requeuing(life, now_s, text)
        case ResizeState.CHECKPOINTING if over:
            # a job that was never asked must not lose the work since its last checkpoint
            back = replace(life, target=None, stopping=False, retry_after_s=now_s + limits.retry_s)
            return to(
                back, ResizeState.RUNNING, now_s, "its checkpoint could not be asked for in time: resize given up"
            )
        case ResizeState.HELD if over:
            # each update parks the job anew: one that never gets an answer must not hold it for ever
            back = replace(life, target=None, retry_after_s=now_s + limits.retry_s)
            return to_unchanged(back, now_s, limits, "no update was answered")
        case ResizeState.RESIZED if not settled(life, now_s, limits):
            return Step(life)
        case ResizeState.RESTARTING if over:
            text = f"no report of the new plan within {limits.in_place_s:g} s: requeued"
            return to_requeuing(life, now_s, text, must_leave=True)
        case ResizeState.RELEASED if event.contested and life.target is not None and life.target.nodes:
            taken = replace(life, target=replace(life.target, nodes=()), rung=Rung.ANY_NODES, missed=life.missed + 1)
            text = f"others have taken GPUs of {', '.join(life.target.nodes)}: any other nodes of this size will do"
            return to_held(taken, now_s, limits, text)
        case _ if life.state in _SENT_AGAIN and (not life.sent_s or now_s >= life.sent_s + limits.resend_s):
            return Step(sent, awaited(life, limits))
        case ResizeState.RELEASED if over and event.room and unseen(event.reason) and now_s < life.since_s + UNSEEN_S:
            return Step(life)  # no other choice would start sooner
        case ResizeState.RELEASED if over and event.room and (refuses(event.reason) or waits_its_turn(event.reason)):
            return _not_started(life, event.reason, now_s, limits)
        case ResizeState.RELEASED if over and waits_its_turn(event.reason) and _as_plain(life):
            # it stands in Slurm's queue as it would without a directive, and stays there until it starts
            plain = replace(life, target=None, left=event.reason or "None")
            return to(plain, ResizeState.QUEUED, now_s, f"waits in Slurm's queue as it was submitted ({event.reason})")
        case ResizeState.RELEASED if over:
            # its GPUs went to someone else or a node is away: decide anew
            looked = waits_its_turn(event.reason) and not unseen(event.reason)
            missed = life.missed + bool(looked and life.target is not None and life.target.nodes)
            back = replace(life, target=None, missed=missed)
            return to(back, ResizeState.QUEUED, now_s, "did not start in time: waits for a new decision")
        case _:
            return Step(life)


def _as_plain(life: JobLifecycle) -> bool:
    """Was it released at the size asked for, on nodes of Slurm's choice?"""
    return (
        life.target is not None
        and life.asked is not None
        and not life.target.nodes
        and alike(life.asked.shape, life.target.shape)
    )


def _not_started(life: JobLifecycle, reason: str, now_s: float, limits: ResizeTimes) -> Step:
    """Slurm does not start the job as it was released: one rung down."""
    if life.target is None:
        return Step(life)
    rung, choice = next_try(life.target, life.rung, life.origin, life.asked, reason)
    refusals = remembered(life.refusals, life.target, reason, now_s)
    down = replace(life, target=choice, rung=rung, refusals=refusals, refused=life.refused + 1)
    said = f"Slurm did not start it with {words(life.target)} (its reason: {reason or 'none'})"
    if choice is None:
        left = replace(down, left=reason or "None", origin=None)
        return to(left, ResizeState.QUEUED, now_s, f"{said}: left to Slurm")
    return to_held(down, now_s, limits, f"{said}: {words(choice)} on nodes of Slurm's choice is tried")
