"""Transitions of a job in Slurm's queue: QUEUED, PARKED, RESIZED and RELEASED. Pure."""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize.events import CarriedOut, Observed, Refused, Tick, Unwanted, Wanted
from synergyd.control.resize.instructions import Park, Target, format_target
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, Step
from synergyd.control.resize.running import is_over, is_refused_for_good, start_running, with_refusal
from synergyd.control.resize.start_refusal import (
    STALE_REASON_S,
    UNSEEN_S,
    StartAttempt,
    is_as_asked,
    is_refusal,
    is_unseen,
    is_waiting_its_turn,
    next_try,
    with_refusal_of,
)
from synergyd.control.resize.transition import Situation

# -- what Slurm shows ----------------------------------------------------------------------------------------------


def run_as_plain(life: JobLifecycle, event: Observed, _at: Situation) -> Step:
    """Take a job that Slurm started by itself as it runs."""
    return start_running(life, event, None, "started by Slurm as a plain job")


def run_with_new_size(life: JobLifecycle, event: Observed, _at: Situation) -> Step:
    """Take the job as it runs with its new size. From RESIZED: the release took effect, and only its answer was lost."""
    size = "its new size" if life.target else "the size Slurm had for it"
    return start_running(life, event, life.target.plan if life.target else None, f"started with {size}")


def note_incarnation(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Take in that another incarnation ended in between, if Slurm shows so."""
    return Step(_with_incarnation(life, event, at))


def _with_incarnation(life: JobLifecycle, event: Observed, at: Situation) -> JobLifecycle:
    """Return the job as the incarnation that Slurm shows pending."""
    newer = event.restarts > life.incarnation
    return replace(life, incarnation=event.restarts, ended_s=at.now_s) if newer else life


def is_parking_over_soon(_life: JobLifecycle, event: Observed, at: Situation) -> bool:
    """Return whether the parked job might start by itself soon."""
    soon_s = at.now_s + min(30.0, at.times.park_s / 3)
    return event.eligible_s is not None and event.eligible_s < soon_s


def park_again(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Park the job for longer."""
    return Step(_with_incarnation(life, event, at), (Park(life.job_id, at.times.park_s),))


def is_eligible(_life: JobLifecycle, event: Observed, at: Situation) -> bool:
    """Return whether Slurm may start the job."""
    return event.eligible_s is not None and event.eligible_s <= at.now_s


def record_release(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Take in that the release took effect, though its answer was lost."""
    return Step(_with_incarnation(life, event, at), story=("released",))


# -- decisions -----------------------------------------------------------------------------------------------------


def is_start_accepted(life: JobLifecycle, event: Wanted, at: Situation) -> bool:
    """Return whether the pending job may be given the size that was decided, and its mechanism begins by giving it."""
    spared = at.now_s < life.retry_after_s or bool(life.left_to_slurm_reason)
    return (event.is_due or not spared) and at.mechanism.first_step(life) is ResizeState.PARKED


def is_other_start_accepted(life: JobLifecycle, event: Wanted, at: Situation) -> bool:
    """Return whether the released job may be given another size or other nodes than it has."""
    return is_start_accepted(life, event, at) and _with_target(life, event).target != life.target


def size_pending_job(life: JobLifecycle, event: Wanted, _at: Situation) -> Step:
    """Give the pending job the size that was decided."""
    return Step(replace(_with_target(life, event), origin=event.present), story=(f"start decided: {event.cause}",))


def resize_released_job(life: JobLifecycle, event: Wanted, _at: Situation) -> Step:
    """Give the job, which was released and did not start, the size that was decided since."""
    return Step(_with_target(life, event), story=(f"new decision before it started: {event.cause}",))


def _with_target(life: JobLifecycle, event: Wanted) -> JobLifecycle:
    """Return the job with the decision's target, but on any nodes if Slurm refused it these, or gave others them before."""
    target, start_attempt = event.target, StartAttempt.AS_DECIDED
    refused = bool(life.left_to_slurm_reason) or any(set(r.nodes) == set(target.nodes) for r in life.refusals)
    lost_before = life.state is ResizeState.QUEUED and life.lost_races and event.any_nodes and target.nodes
    if refused or lost_before:
        target, start_attempt = replace(target, nodes=()), StartAttempt.ANY_NODES
    requested_target = event.requested_target or life.requested_target
    return replace(
        life,
        target=target,
        cause=event.cause,
        attempts=0,
        start_attempt=start_attempt,
        requested_target=requested_target,
    )


def wait_for_decision(life: JobLifecycle, event: Unwanted, _at: Situation) -> Step:
    """Let the job, whose target can't be reached any more, wait for a new decision."""
    # a refusal from before the nodes changed is no reason to let it wait
    back = replace(life, target=None, origin=None, attempts=0, retry_after_s=0.0)
    return Step(back, story=(f"waits for a new decision: {event.cause}",))


# -- answers -------------------------------------------------------------------------------------------------------


def record_new_size(life: JobLifecycle, _event: CarriedOut, _at: Situation) -> Step:
    """Take in that the job has its new size."""
    assert life.target is not None
    return Step(replace(life, attempts=0), story=(f"size set and read back: {format_target(life.target)}",))


def note_release(life: JobLifecycle, _event: CarriedOut, _at: Situation) -> Step:
    """Take in that the job was released."""
    return Step(life, story=("released",))


def is_former_size_left(life: JobLifecycle, event: Refused, at: Situation) -> bool:
    """Return whether the new size was refused for good, and the one that the job had before is another."""
    former = _former_target(life)
    return is_refused_for_good(life, event, at) and former is not None and former != life.target


def take_former_size(life: JobLifecycle, event: Refused, at: Situation) -> Step:
    """Give the job, whose new size was refused, its former one."""
    former = _former_target(life)
    assert former is not None
    again = replace(with_refusal(life, at), target=former, attempts=0)
    return Step(again, story=(f"new size refused ({event.error}): back to {format_target(former)}",))


def _former_target(life: JobLifecycle) -> Target | None:
    """Return what the job had before; after the first attempt to start it, nodes are Slurm's choice."""
    if life.origin is None or life.start_attempt is StartAttempt.AS_DECIDED:
        return life.origin
    return replace(life.origin, nodes=())


def release_at_old_size(life: JobLifecycle, event: Refused, at: Situation) -> Step:
    """Release the job as Slurm has it, since every update of it was refused."""
    return _as_slurm_has_it(with_refusal(life, at), f"update refused ({event.error})")


def release_after_no_answer(life: JobLifecycle, _event: Tick, at: Situation) -> Step:
    """Release the job as Slurm has it: one whose update never gets an answer must not be parked for ever."""
    return _as_slurm_has_it(replace(life, retry_after_s=at.now_s + at.times.retry_s), "no update was answered")


def _as_slurm_has_it(life: JobLifecycle, why: str) -> Step:
    """Return the job without a target: nothing better is known than Slurm's own view of the job."""
    return Step(replace(life, target=None, attempts=0), story=(f"{why}: released as Slurm has it",))


def wait_for_start_time(life: JobLifecycle, event: Refused, _at: Situation) -> Step:
    """Let the job wait for its start time, since its release was refused."""
    text = f"release refused ({event.error}): it starts by itself when its start time comes"
    return Step(replace(life, attempts=life.attempts + 1), story=(text,))


# -- starts that Slurm does not make -------------------------------------------------------------------------------


def is_start_refused(life: JobLifecycle, event: Observed, at: Situation) -> bool:
    """Return whether Slurm has said, after the release, that it will not start the job as it is."""
    fresh = at.now_s >= life.since_s + STALE_REASON_S
    return life.target is not None and fresh and is_refusal(event.reason)


def is_start_refused_with_choice(life: JobLifecycle, event: Observed, at: Situation) -> bool:
    """Return whether Slurm will not start the job, and something else can be tried."""
    return is_start_refused(life, event, at) and _next_choice(life, event.reason) is not None


def is_start_missing(life: JobLifecycle, event: Tick, at: Situation) -> bool:
    """Return whether the job has not started in time although its GPUs are free."""
    judged = is_refusal(event.reason) or is_waiting_its_turn(event.reason)
    return life.target is not None and event.room and judged and is_over(life, event, at)


def is_start_missing_with_choice(life: JobLifecycle, event: Tick, at: Situation) -> bool:
    """Return whether the job has not started in time, and something else can be tried."""
    return is_start_missing(life, event, at) and _next_choice(life, event.reason) is not None


def _next_choice(life: JobLifecycle, reason: str) -> Target | None:
    """Return what is tried next, or None if nothing is left."""
    assert life.target is not None
    return next_try(life.target, life.start_attempt, life.origin, life.requested_target, reason)[1]


def try_next_choice(life: JobLifecycle, event: Observed | Tick, at: Situation) -> Step:
    """Try the next choice for the job that Slurm does not start: other nodes, or another size."""
    down, text = _with_refused_start(life, event, at)
    assert down.target is not None
    return Step(
        replace(down, attempts=0), story=(f"{text}: {format_target(down.target)} on nodes of Slurm's choice is tried",)
    )


def leave_to_slurm(life: JobLifecycle, event: Observed | Tick, at: Situation) -> Step:
    """Leave the job, which Slurm does not start in any way, to Slurm."""
    down, text = _with_refused_start(life, event, at)
    return Step(
        replace(down, left_to_slurm_reason=event.reason or "None", origin=None), story=(f"{text}: left to Slurm",)
    )


def _with_refused_start(life: JobLifecycle, event: Observed | Tick, at: Situation) -> tuple[JobLifecycle, str]:
    """Return the job with what is tried next as its target, and what to say of the start that was refused."""
    if isinstance(event, Observed):
        life = _with_incarnation(life, event, at)
    refused_target, reason = life.target, event.reason
    assert refused_target is not None
    start_attempt, choice = next_try(refused_target, life.start_attempt, life.origin, life.requested_target, reason)
    refusals = with_refusal_of(life.refusals, refused_target, reason, at.now_s)
    down = replace(
        life, target=choice, start_attempt=start_attempt, refusals=refusals, refused_starts=life.refused_starts + 1
    )
    return down, f"Slurm did not start it with {format_target(refused_target)} (its reason: {reason or 'none'})"


def is_contested(life: JobLifecycle, event: Tick, _at: Situation) -> bool:
    """Return whether others have taken GPUs of the job's named nodes, and there are others that would do."""
    return event.is_contested and life.target is not None and bool(life.target.nodes)


def take_any_nodes(life: JobLifecycle, _event: Tick, _at: Situation) -> Step:
    """Give the job any nodes of its size, since others have taken GPUs of its own."""
    assert life.target is not None
    next_life = replace(
        life,
        target=replace(life.target, nodes=()),
        start_attempt=StartAttempt.ANY_NODES,
        lost_races=life.lost_races + 1,
        attempts=0,
    )
    text = f"others have taken GPUs of {', '.join(life.target.nodes)}: any other nodes of this size will do"
    return Step(next_life, story=(text,))


def is_unseen_by_slurm(life: JobLifecycle, event: Tick, at: Situation) -> bool:
    """Return whether Slurm may not have looked at the job yet: no other choice would start sooner."""
    waits = event.room and is_unseen(event.reason) and at.now_s < life.since_s + UNSEEN_S
    return waits and is_over(life, event, at)


def is_waiting_as_plain(life: JobLifecycle, event: Tick, at: Situation) -> bool:
    """Return whether the job waits in Slurm's queue at the size that it asked for, on nodes of Slurm's choice."""
    target, requested_target = life.target, life.requested_target
    as_asked = (
        target is not None
        and requested_target is not None
        and not target.nodes
        and is_as_asked(requested_target.shape, target.shape)
    )
    return as_asked and is_waiting_its_turn(event.reason) and is_over(life, event, at)


def wait_as_plain(life: JobLifecycle, event: Tick, _at: Situation) -> Step:
    """Leave the job in Slurm's queue, as it would stand there without a directive, until it starts."""
    plain = replace(life, target=None, left_to_slurm_reason=event.reason or "None")
    return Step(plain, story=(f"waits in Slurm's queue as it was submitted ({event.reason})",))


def wait_after_missed_start(life: JobLifecycle, event: Tick, _at: Situation) -> Step:
    """Let the job wait for a new decision: its GPUs went to someone else, or a node is away."""
    looked = is_waiting_its_turn(event.reason) and not is_unseen(event.reason)
    has_lost_race = bool(looked and life.target is not None and life.target.nodes)
    back = replace(life, target=None, lost_races=life.lost_races + has_lost_race)
    return Step(back, story=("did not start in time: waits for a new decision",))
