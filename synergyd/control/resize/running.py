"""Transitions of a job on its nodes: RUNNING, CHECKPOINTING, RESTARTING, and REQUEUING until it is pending again. Pure."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.records import Plan

from synergyd.control.resize.events import (
    Acknowledged,
    CarriedOut,
    Hung,
    Observed,
    PlanFailed,
    Preempted,
    Refused,
    RestartedInPlace,
    Tick,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.hangs import SHUN_S
from synergyd.control.resize.instructions import Park, format_target
from synergyd.control.resize.launch_failure import LastStart
from synergyd.control.resize.lifecycle import (
    JobLifecycle,
    ResizeState,
    Step,
    longest_retry_s,
    nodes_to_join,
    nodes_to_return,
    wait_ends_s,
)
from synergyd.control.resize.start_refusal import StartAttempt, is_waiting_its_turn, names_limit
from synergyd.control.resize.transition import Situation

REQUEUE_AGAIN_S = 2.0  # a requeue that was put off is asked for again

_RESTARTED_OUTSIDE = {
    ResizeState.RUNNING: "(restart {})",
    ResizeState.JOINING: "while nodes were to join it",
    ResizeState.CHECKPOINTING: "while its checkpoint was awaited",
    ResizeState.RESTARTING: "before it could be restarted in place",
    ResizeState.RETURNING: "before its nodes could be given back",
}


def start_running(life: JobLifecycle, event: Observed, plan: Plan | None, text: str) -> Step:
    """Return the job as it begins incarnation `event.restarts` with `plan`; nothing of a resize is left."""
    reason = life.left_to_slurm_reason
    now = replace(
        life,
        incarnation=event.restarts,
        target=None,
        origin=None,
        plan=plan,
        attempts=0,
        stopping=False,
        in_place=False,
        start_attempt=StartAttempt.AS_DECIDED,
        left_to_slurm_reason="" if is_waiting_its_turn(reason) or names_limit(reason) else reason,
        lost_races=0,
        must_leave=False,
        join_refusal="",
        failed_joins=0,
    )
    return Step(now, story=(text,))


# -- what Slurm shows ----------------------------------------------------------------------------------------------


def is_newer(life: JobLifecycle, event: Observed, _at: Situation) -> bool:
    """Return whether Slurm shows a later incarnation than was known."""
    return event.restarts > life.incarnation


def is_other_incarnation(life: JobLifecycle, event: Observed, _at: Situation) -> bool:
    """Return whether Slurm shows another incarnation than was known."""
    return event.restarts != life.incarnation


def is_known_incarnation(life: JobLifecycle, event: Observed, _at: Situation) -> bool:
    """Return whether Slurm shows no later incarnation than was known."""
    return event.restarts <= life.incarnation


def accept_outside_restart(life: JobLifecycle, event: Observed, _at: Situation) -> Step:
    """Take a job that restarted outside Synergy as it runs now."""
    how = _RESTARTED_OUTSIDE[life.state].format(event.restarts)
    return start_running(life, event, life.plan, f"restarted outside Synergy {how}")


def accept_early_start(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Take a job that started again before its resize was complete as a plain one, and leave it alone for a while."""
    text = (
        "started before its new size was complete"
        if life.state is ResizeState.PARKED
        else "started again before it could be resized"
    )
    # after a requeue by Synergy it answers for this start too, such as for one without GPUs
    started = LastStart(restarts=event.restarts) if life.state is ResizeState.REQUEUING else life.last_start
    again = replace(life, retry_after_s=at.now_s + at.times.retry_s, last_start=started)
    return start_running(again, event, None, text)


def wait_after_requeue_by_others(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Let a job that Slurm (a node failed) or its user requeued wait for a decision."""
    # the waits of the ended incarnation say nothing about the next one's start
    back = replace(
        life, incarnation=event.restarts, plan=None, ended_s=at.now_s, retry_after_s=0.0, unanswered_requests=0
    )
    return Step(back, story=("requeued by Slurm or its user",))


def has_target(life: JobLifecycle, _event: object, _at: Situation) -> bool:
    """Return whether the job is on its way to a size or plan."""
    return life.target is not None


def take_size_after_requeue(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Give the job, which is pending again, its new size."""
    back = replace(life, incarnation=event.restarts, ended_s=at.now_s, attempts=0)
    return Step(back, story=(f"requeued{life.walltime.format_time_left()}",))


def make_way_after_requeue(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Let the job, which is pending again and has no target, wait for a decision."""
    # kept from starting by itself before those that it made way for
    park = (Park(life.job_id, at.times.park_s, life.walltime.grant),) if life.stopping else ()
    back = replace(life, incarnation=event.restarts, ended_s=at.now_s, stopping=False, plan=None)
    return Step(back, park, (f"requeued{life.walltime.format_time_left()}",))


def cancel_for_suspension(life: JobLifecycle, _event: Observed, _at: Situation) -> Step:
    """Give the resize up: a suspended job writes no checkpoint."""
    text = "suspended while its checkpoint was awaited: resize given up"
    return Step(replace(life, target=None, stopping=False), story=(text,))


def restart_wait_while_suspended(life: JobLifecycle, _event: Observed, at: Situation) -> Step:
    """Begin the wait anew: nothing of the suspended job runs, so nothing can report, and Slurm takes none of its nodes back."""
    return Step(replace(life, since_s=at.now_s))


def note_end(life: JobLifecycle, _event: Observed, _at: Situation) -> Step:
    """Take in that the job has left the queue."""
    return Step(life, story=(f"left the queue while {life.state}",))


# -- decisions -----------------------------------------------------------------------------------------------------


def is_accepted(life: JobLifecycle, event: Wanted, at: Situation) -> bool:
    """Return whether the running job may be resized now, and its mechanism begins with a checkpoint."""
    names, present_names = set(event.target.nodes), set(event.present.nodes) if event.present is not None else set()
    refused = any(set(r.nodes) == names or set(r.nodes) <= names - present_names for r in life.refusals)
    spared = at.now_s < life.retry_after_s or bool(life.left_to_slurm_reason) or refused
    return (event.is_due or not spared) and at.mechanism.first_step(life) is ResizeState.CHECKPOINTING


def ask_before_resize(life: JobLifecycle, event: Wanted, at: Situation) -> Step:
    """Ask the running job for the checkpoint that its resize needs."""
    target, start_attempt = event.target, StartAttempt.AS_DECIDED
    if life.left_to_slurm_reason or any(set(r.nodes) == set(target.nodes) for r in life.refusals):
        target, start_attempt = replace(target, nodes=()), StartAttempt.ANY_NODES
    next_life = replace(
        life,
        target=target,
        cause=event.cause,
        attempts=0,
        start_attempt=start_attempt,
        requested_target=event.requested_target or life.requested_target,
        asked_s=0.0,
        acks_at_request=event.acks,
        origin=event.present,
        in_place=is_restart_in_place(life, event),
        # a checkpoint that is due is the last before its end: it begins anew, or is lost
        must_leave=event.is_due,
        moves=life.moves if event.is_due else life.moves.with_change(at.now_s),
    )
    how = "live resize" if nodes_to_return(next_life) else "restart in place" if next_life.in_place else "resize"
    return Step(next_life, story=(f"{how} decided: {event.cause}; checkpoint asked for",))


def is_restart_in_place(life: JobLifecycle, event: Wanted) -> bool:
    """Return whether the job's launchers can reach the target inside its allocation: another plan for its GPUs, or fewer nodes.

    A running job gets and gives back whole nodes, and never leaves its first one, where its script runs.
    """
    target, present = event.target, event.present
    if not event.in_place or event.is_due or present is None or target.plan is None:
        return False
    if target.shape == present.shape and set(target.nodes) == set(present.nodes):
        return target.plan != present.plan
    alike = replace(target.shape, nodes=present.shape.nodes) == present.shape
    keeps_first = bool(target.nodes) and set(present.nodes[:1]) <= set(target.nodes)
    grows, shrinks = set(target.nodes) - set(present.nodes), set(present.nodes) - set(target.nodes)
    able = ((event.grows and not life.join_refusal) or not grows) and (event.live or not shrinks)
    return keeps_first and bool(present.nodes) and alike and able and not life.live_refusal


def is_retry_allowed(life: JobLifecycle, _event: Preempted, at: Situation) -> bool:
    """Return whether the last attempt that failed was long enough ago."""
    return at.now_s >= life.retry_after_s


def ask_before_preemption(life: JobLifecycle, event: Preempted, at: Situation) -> Step:
    """Ask the running job for a checkpoint before it makes way for others."""
    next_life = replace(
        life,
        target=None,
        origin=None,
        stopping=True,
        cause=event.cause,
        attempts=0,
        asked_s=0.0,
        acks_at_request=event.acks,
        moves=life.moves.with_change(at.now_s),
        in_place=False,
        must_leave=False,
    )
    return Step(next_life, story=(f"preemption decided: {event.cause}; checkpoint asked for",))


def give_up_target(life: JobLifecycle, event: Unwanted, _at: Situation) -> Step:
    """Let the job, whose checkpoint is awaited, go on as it is."""
    back = replace(life, target=None, origin=None, stopping=False, in_place=False)
    how = "it goes on as it is" if life.in_place else "resize given up before it was requeued"
    return Step(back, story=(f"{how}: {event.cause}",))


def requeue_failed_checkpoint(life: JobLifecycle, _event: PlanFailed, _at: Situation) -> Step:
    """Requeue a job whose run failed while its checkpoint was awaited."""
    return leave(life, "it failed while its checkpoint was awaited", must_leave=True)


def requeue_failed_plan(life: JobLifecycle, event: PlanFailed, _at: Situation) -> Step:
    """Requeue a job whose plan failed to the size and plan to fall back on."""
    back = replace(life, target=event.fallback, origin=None, cause="its plan failed", stopping=False)
    return leave(back, event.story, must_leave=True)


def requeue_hung(life: JobLifecycle, event: Hung, at: Situation) -> Step:
    """Requeue a job whose steps have stopped, and take its nodes last for a while."""
    hangs = replace(
        life.hangs, count=life.hangs.count + 1, nodes=event.nodes, until_s=at.now_s + SHUN_S, step=event.step
    )
    back = replace(life, target=None, origin=None, stopping=True, cause="its steps had stopped", hangs=hangs)
    return leave(back, event.story, must_leave=True)


def leave(life: JobLifecycle, text: str, *, must_leave: bool = False) -> Step:
    """Return the job on its way back into the queue, with the nodes that are kept for it. `must_leave`: it can't go on as it is."""
    nodes: tuple[str, ...] = ()
    if life.target is not None:
        nodes = life.target.nodes or (life.origin.nodes if life.origin is not None else ())
    leaving = replace(
        life,
        attempts=0,
        in_place=False,
        shielded_nodes=nodes,
        must_leave=life.must_leave or must_leave,
        comes_first=life.comes_first or life.target is not None,
    )
    return Step(leaving, story=(text,))


# -- answers -------------------------------------------------------------------------------------------------------


def record_checkpoint_request(life: JobLifecycle, _event: CarriedOut, at: Situation) -> Step:
    """Take in that the job was asked: from now on it has `checkpoint_timeout_s` to answer."""
    return Step(replace(life, asked_s=at.now_s))


def record_requeue(life: JobLifecycle, _event: CarriedOut, _at: Situation) -> Step:
    """Take in that Slurm has ended the job's processes: a slurmctld that dies now may show it as running, but it can't go on."""
    return Step(replace(life, must_leave=True))


def requeue_with_checkpoint(life: JobLifecycle, _event: Acknowledged, at: Situation) -> Step:
    """Requeue the job, whose checkpoint is complete."""
    return leave(_with_checkpoint_time(life, at), "checkpoint acknowledged")


def restart_with_checkpoint(life: JobLifecycle, _event: Acknowledged, at: Situation) -> Step:
    """Order the job's launchers, whose checkpoint is complete, to start the new plan."""
    saved = _with_checkpoint_time(life, at)
    text = "checkpoint acknowledged: it is restarted in place"
    return Step(replace(saved, attempts=0, orders=life.orders + 1), story=(text,))


def _with_checkpoint_time(life: JobLifecycle, at: Situation) -> JobLifecycle:
    """Return the job with the time that its checkpoint took."""
    took_s = max(0.0, at.now_s - life.asked_s) if life.asked_s else life.moves.checkpoint_s
    return replace(life, unanswered_requests=0, moves=replace(life.moves, checkpoint_s=took_s))


def go_on_in_place(life: JobLifecycle, _event: RestartedInPlace, _at: Situation) -> Step:
    """Take the job as it runs with its new plan on the same GPUs."""
    assert life.target is not None
    how = "resized live" if nodes_to_join(life) else "restarted in place"
    return Step(_at_target(replace(life, plan=life.target.plan)), story=(f"{how}: {format_target(life.target)}",))


def go_on_with_fewer_nodes(life: JobLifecycle, _event: RestartedInPlace, _at: Situation) -> Step:
    """Take the job as it runs with its new plan on the nodes that it keeps; the others are given back."""
    assert life.target is not None
    now = replace(life, plan=life.target.plan, attempts=0)
    return Step(now, story=(f"runs on {', '.join(life.target.nodes)}: {', '.join(nodes_to_return(life))} given back",))


def go_on_resized_live(life: JobLifecycle, _event: CarriedOut, _at: Situation) -> Step:
    """Take the job as it runs on the nodes that it has kept."""
    assert life.target is not None
    joined = tuple(n for n in life.joined_nodes if n in life.target.nodes)
    return Step(_at_target(replace(life, joined_nodes=joined)), story=(f"resized live: {format_target(life.target)}",))


def _at_target(life: JobLifecycle) -> JobLifecycle:
    """Return the job, which has reached its target without a requeue."""
    return replace(life, target=None, origin=None, attempts=0, in_place=False, join_refusal="", failed_joins=0)


def requeue_after_refused_return(life: JobLifecycle, event: Refused, _at: Situation) -> Step:
    """Requeue the job, whose nodes Slurm does not take back while it runs."""
    next_life = replace(life, attempts=life.attempts + 1, live_refusal=event.error)
    return leave(next_life, f"its nodes could not be given back: {event.error}", must_leave=True)


def is_awaited(life: JobLifecycle, event: Refused, at: Situation) -> bool:
    """Return whether the refusal is of the instruction that is awaited, not of a late one, nor of one that another makes good."""
    return event.instruction == at.mechanism.instruction(life, at.times)


def is_refused_for_good(life: JobLifecycle, event: Refused, at: Situation) -> bool:
    """Return whether the awaited instruction is not to be tried again: it was refused for good, too often, or for too long."""
    # a refusal called transient is not one if it lasts as long as a job may be parked
    too_long = at.now_s >= life.since_s + at.times.park_s
    too_often = not event.transient and life.attempts + 1 >= at.times.attempts
    return is_awaited(life, event, at) and (event.final or too_long or too_often)


def is_question_refused(life: JobLifecycle, event: Refused, at: Situation) -> bool:
    """Return whether the job can't be asked for a checkpoint."""
    return is_refused_for_good(life, event, at) or (is_awaited(life, event, at) and not event.transient)


def is_requeue_put_off(life: JobLifecycle, event: Refused, at: Situation) -> bool:
    """Return whether the requeue may work a little later."""
    return is_awaited(life, event, at) and event.transient


def with_refusal(life: JobLifecycle, at: Situation) -> JobLifecycle:
    """Return the job with one more attempt that failed, no target, and no resize for a while."""
    retry_after_s = at.now_s + at.times.retry_s
    return replace(life, attempts=life.attempts + 1, target=None, stopping=False, retry_after_s=retry_after_s)


def continue_after_failed_request(life: JobLifecycle, event: Refused, at: Situation) -> Step:
    """Let the job, which can't be asked for a checkpoint, go on as it is."""
    return Step(with_refusal(life, at), story=(f"checkpoint could not be asked for: {event.error}",))


def continue_after_failed_requeue(life: JobLifecycle, event: Refused, at: Situation) -> Step:
    """Let the job, which can't be requeued, go on as it is."""
    back = replace(with_refusal(life, at), must_leave=False)
    return Step(back, story=(f"requeue refused, it goes on as it is: {event.error}",))


def requeue_untold(life: JobLifecycle, event: Refused, _at: Situation) -> Step:
    """Requeue the job, whose launchers can't be told to start another plan."""
    refusal = event.error if nodes_to_return(life) else life.live_refusal
    next_life = replace(life, attempts=life.attempts + 1, live_refusal=refusal)
    return leave(next_life, f"it could not be restarted in place: {event.error}", must_leave=True)


def put_off_requeue(life: JobLifecycle, event: Refused, at: Situation) -> Step:
    """Ask for the requeue again soon: another job restarts there. This one works on meanwhile, and that work is lost."""
    soon_s = min(life.sent_s, at.now_s + REQUEUE_AGAIN_S - at.times.resend_s)
    must_leave = life.must_leave or event.unsure  # a job whose processes were ended can't go on as it is
    next_life = replace(life, attempts=life.attempts + 1, sent_s=soon_s, must_leave=must_leave)
    return Step(next_life, story=(f"Requeue put off: {event.error}",) if next_life.attempts == 1 else ())


def note_refusal(life: JobLifecycle, event: Refused, _at: Situation) -> Step:
    """Count the refusal of an instruction that will be tried again."""
    next_life = replace(life, attempts=life.attempts + 1)
    # the story tells of the first one only: a slurmctld that is away for an hour is one line
    text = f"{type(event.instruction).__name__} failed, will be tried again: {event.error}"
    return Step(next_life, story=(text,) if next_life.attempts == 1 or not event.transient else ())


# -- time ----------------------------------------------------------------------------------------------------------


def is_over(life: JobLifecycle, _event: Tick, at: Situation) -> bool:
    """Return whether the present state has lasted too long."""
    return at.now_s >= wait_ends_s(life, at.times)


def is_answer_overdue(life: JobLifecycle, event: Tick, at: Situation) -> bool:
    """Return whether the job was asked for a checkpoint too long ago."""
    return is_over(life, event, at) and bool(life.asked_s)


def is_way_not_made(life: JobLifecycle, event: Tick, at: Situation) -> bool:
    """Return whether the job was asked too long ago for a checkpoint after which it was to make way."""
    return is_answer_overdue(life, event, at) and life.stopping


def continue_after_no_answer(life: JobLifecycle, _event: Tick, at: Situation) -> Step:
    """Let the job go on: nobody's wait is worth the work that would be lost. It is asked ever later."""
    next_life = replace(life, unanswered_requests=life.unanswered_requests + 1)
    back = replace(next_life, stopping=False, retry_after_s=at.now_s + longest_retry_s(next_life, at.times))
    return Step(back, story=(f"no checkpoint acknowledged within {at.times.checkpoint_timeout_s:g} s: it goes on",))


def requeue_after_no_answer(life: JobLifecycle, _event: Tick, at: Situation) -> Step:
    """Requeue the job with the checkpoint that it has."""
    limit_s = at.times.checkpoint_timeout_s
    return leave(life, f"no checkpoint acknowledged within {limit_s:g} s: resized from its last one")


def continue_without_request(life: JobLifecycle, _event: Tick, at: Situation) -> Step:
    """Let the job go on: one that was never asked must not lose the work since its last checkpoint."""
    back = replace(life, target=None, stopping=False, retry_after_s=at.now_s + at.times.retry_s)
    return Step(back, story=("its checkpoint could not be asked for in time: resize given up",))


def requeue_unheard(life: JobLifecycle, _event: Tick, at: Situation) -> Step:
    """Requeue the job, since no report came of its new plan."""
    return leave(life, f"no report of the new plan within {at.times.in_place_s:g} s: requeued", must_leave=True)


def is_due_again(life: JobLifecycle, _event: Tick, at: Situation) -> bool:
    """Return whether the awaited instruction is to be sent again."""
    unsent = not life.sent_s or at.now_s >= life.sent_s + at.times.resend_s
    return unsent and not at.mechanism.is_delayed(life, at.now_s, at.times)


def resend_instruction(life: JobLifecycle, _event: Tick, at: Situation) -> Step:
    """Send the awaited instruction again."""
    instruction = at.mechanism.instruction(life, at.times)
    return Step(replace(life, sent_s=at.now_s), () if instruction is None else (instruction,))
