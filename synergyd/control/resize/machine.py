"""The resize of one job as a pure state machine: events in, instructions out.

    QUEUED --decided--> PARKED --updated--> RESIZED --released--> RELEASED --runs--> RUNNING
    RUNNING --decided--> CHECKPOINTING --acknowledged or time-out--> REQUEUING --pending--> PARKED ...
    RUNNING --decided: nodes join it--> JOINING --joined--> CHECKPOINTING --acknowledged--> RESTARTING --reported--> RUNNING
    RUNNING --decided: another plan for the same GPUs--> CHECKPOINTING --acknowledged--> RESTARTING --reported--> RUNNING
    RUNNING --decided: some of its nodes leave--> CHECKPOINTING --> RESTARTING --reported--> RETURNING --given back--> RUNNING
    RUNNING --goes on without a lost node--> RETURNING --given back--> RUNNING
    RUNNING --preempted--> CHECKPOINTING --acknowledged--> REQUEUING --pending--> QUEUED
    RUNNING --hung--> REQUEUING --pending--> QUEUED

`TRANSITIONS` has every way from one state to another, and docs/concepts/resize.md is generated from it. `advance` follows the first
row that fits the event. Entering a state sends the instruction that the job's mechanism (mechanism.py) has for it, unless the row has
its own. Hooks (hooks.py) keep account of what an event shows and of what a transition means: time limits, start times, the job's place
in the queue, restarts.

PARKED is not Slurm's hold: the job waits behind a start time in the future, which passes by itself. So a daemon that dies here costs a
delay, and the job then runs as a plain Slurm job; nothing is ever held for ever.

Every instruction may be sent again: `Requeue` names the incarnation (restart count) it is meant for and the actuator checks it; all
others say what should be, not what to change. A lost answer, or a daemon killed between an instruction and its answer, is mended by
sending it again after `resend_s`.
"""

from __future__ import annotations

from dataclasses import replace

from synergy_core.job_report import Report

from synergyd.control.resize import failed_starts as failed
from synergyd.control.resize import joining, lost_nodes, pending, running
from synergyd.control.resize.events import ResizeEvent
from synergyd.control.resize.hooks import (
    account_walltime,
    drop_joined_nodes,
    keep_place,
    record_start,
    record_start_times,
)
from synergyd.control.resize.lifecycle import STARTING, JobLifecycle, ResizeState, ResizeTimes, Step
from synergyd.control.resize.mechanism import RESTART, ResizeMechanism
from synergyd.control.resize.restart_accounting import account_restart
from synergyd.control.resize.transition import (
    Occurrence,
    OnEvent,
    OnStep,
    Situation,
    Transition,
    Trigger,
    find_triggers,
    mechanism_leads_to,
    stay,
)

QUEUED, RUNNING, JOINING = ResizeState.QUEUED, ResizeState.RUNNING, ResizeState.JOINING
CHECKPOINTING = ResizeState.CHECKPOINTING
REQUEUING, RESTARTING, PARKED = ResizeState.REQUEUING, ResizeState.RESTARTING, ResizeState.PARKED
RETURNING = ResizeState.RETURNING
RESIZED, RELEASED, GONE = ResizeState.RESIZED, ResizeState.RELEASED, ResizeState.GONE
T, row = Trigger, Transition
OUTSIDE, NOT_STARTED = "restarted outside Synergy", "not started by Slurm"

# From, on, to (None: it stays), change, guard, words. Of the rows of one state and trigger the first whose guard holds is followed
TRANSITIONS: tuple[Transition, ...] = (
    # QUEUED: waits in Slurm's queue for a decision
    row(QUEUED, T.LAUNCH_FAILED, None, failed.retry_lifting_hold, failed.is_known_failure),
    row(QUEUED, T.LAUNCH_FAILED, QUEUED, failed.wait_after_failed_launch),
    row(QUEUED, T.SEEN_RUNNING, RUNNING, pending.run_as_plain),
    row(QUEUED, T.SEEN_PENDING, None, pending.note_incarnation),
    row(QUEUED, T.DECIDED, PARKED, pending.size_pending_job, pending.is_start_accepted),
    # RUNNING: runs
    row(RUNNING, T.LAUNCH_FAILED, QUEUED, failed.wait_after_failed_launch),
    row(RUNNING, T.SCRIPT_FAILED, REQUEUING, failed.rerun_at_last_size, failed.can_run_again),
    row(RUNNING, T.SCRIPT_FAILED, GONE, failed.lose, failed.is_lost),
    row(RUNNING, T.SEEN_PENDING, QUEUED, running.wait_after_requeue_by_others),
    row(RUNNING, T.SEEN_RUNNING, RUNNING, running.accept_outside_restart, running.is_other_incarnation, OUTSIDE),
    row(RUNNING, T.DECIDED, JOINING, joining.ask_for_nodes, joining.is_growth_accepted),
    row(RUNNING, T.DECIDED, CHECKPOINTING, running.ask_before_resize, running.is_accepted),
    row(RUNNING, T.NODES_LOST, RETURNING, lost_nodes.return_lost_nodes, lost_nodes.can_return_lost_nodes),
    row(RUNNING, T.PREEMPTED, CHECKPOINTING, running.ask_before_preemption, running.is_retry_allowed),
    row(RUNNING, T.PLAN_FAILED, REQUEUING, running.requeue_failed_plan),
    row(RUNNING, T.HUNG, REQUEUING, running.requeue_hung),
    # JOINING: runs, and its launchers bring in nodes that it does not have
    row(JOINING, T.JOINED, CHECKPOINTING, joining.ask_with_joined_nodes, mechanism_leads_to(CHECKPOINTING)),
    row(JOINING, T.NOT_JOINED, RUNNING, joining.continue_without_new_nodes, mechanism_leads_to(CHECKPOINTING)),
    row(JOINING, T.CARRIED_OUT, None, stay, mechanism_leads_to(JOINING)),
    row(JOINING, T.REFUSED, RUNNING, joining.continue_without_new_nodes, running.is_question_refused, "can't be asked"),
    row(JOINING, T.REFUSED, None, running.note_refusal, running.is_awaited),
    row(JOINING, T.SEEN_SUSPENDED, RUNNING, running.cancel_for_suspension, running.is_known_incarnation),
    row(JOINING, T.SEEN_RUNNING, RUNNING, running.accept_outside_restart, running.is_newer, OUTSIDE),
    row(JOINING, T.SEEN_PENDING, PARKED, running.take_size_after_requeue),
    row(JOINING, T.GIVEN_UP, RUNNING, running.give_up_target),
    row(JOINING, T.PLAN_FAILED, REQUEUING, running.requeue_failed_plan),
    row(JOINING, T.TIME_PASSED, RUNNING, joining.go_on_unanswered_joining, running.is_over),
    row(JOINING, T.TIME_PASSED, None, running.resend_instruction, running.is_due_again),
    # CHECKPOINTING: runs, and has been asked for a checkpoint
    row(CHECKPOINTING, T.ACKNOWLEDGED, RESTARTING, running.restart_with_checkpoint, mechanism_leads_to(RESTARTING)),
    row(CHECKPOINTING, T.ACKNOWLEDGED, REQUEUING, running.requeue_with_checkpoint, mechanism_leads_to(REQUEUING)),
    row(CHECKPOINTING, T.NOT_JOINED, RUNNING, joining.continue_without_new_nodes, joining.has_lost_joined_nodes),
    row(CHECKPOINTING, T.CARRIED_OUT, None, running.record_checkpoint_request, mechanism_leads_to(CHECKPOINTING)),
    row(
        CHECKPOINTING,
        T.REFUSED,
        RUNNING,
        running.continue_after_failed_request,
        running.is_question_refused,
        "can't be asked",
    ),
    row(CHECKPOINTING, T.REFUSED, None, running.note_refusal, running.is_awaited),
    row(CHECKPOINTING, T.SEEN_SUSPENDED, RUNNING, running.cancel_for_suspension, running.is_known_incarnation),
    row(CHECKPOINTING, T.SEEN_RUNNING, RUNNING, running.accept_outside_restart, running.is_newer, OUTSIDE),
    row(CHECKPOINTING, T.SEEN_PENDING, PARKED, running.take_size_after_requeue, running.has_target),
    row(CHECKPOINTING, T.SEEN_PENDING, QUEUED, running.make_way_after_requeue),
    row(CHECKPOINTING, T.GIVEN_UP, RUNNING, running.give_up_target),
    row(CHECKPOINTING, T.PLAN_FAILED, REQUEUING, running.requeue_failed_checkpoint),
    row(CHECKPOINTING, T.TIME_PASSED, RUNNING, running.continue_after_no_answer, running.is_way_not_made),
    row(CHECKPOINTING, T.TIME_PASSED, REQUEUING, running.requeue_after_no_answer, running.is_answer_overdue),
    row(CHECKPOINTING, T.TIME_PASSED, RUNNING, running.continue_without_request, running.is_over),
    row(CHECKPOINTING, T.TIME_PASSED, None, running.resend_instruction, running.is_due_again),
    # REQUEUING: is being put back into the queue
    row(REQUEUING, T.NO_GPUS, REQUEUING, failed.requeue_without_gpus, failed.can_start_again),
    row(REQUEUING, T.SCRIPT_FAILED, None, failed.retry_requeue_of_failed, failed.is_rerun_awaited),
    row(REQUEUING, T.SCRIPT_FAILED, GONE, failed.give_up_failed_job, failed.is_rerun),
    row(REQUEUING, T.SEEN_RUNNING, RUNNING, running.accept_early_start, running.is_newer),
    row(REQUEUING, T.SEEN_PENDING, PARKED, running.take_size_after_requeue, running.has_target),
    row(REQUEUING, T.SEEN_PENDING, QUEUED, running.make_way_after_requeue),
    row(REQUEUING, T.CARRIED_OUT, None, running.record_requeue, mechanism_leads_to(REQUEUING)),
    row(
        REQUEUING,
        T.REFUSED,
        RUNNING,
        running.continue_after_failed_requeue,
        running.is_refused_for_good,
        "requeue refused",
    ),
    row(REQUEUING, T.REFUSED, None, running.put_off_requeue, running.is_requeue_put_off),
    row(REQUEUING, T.REFUSED, None, running.note_refusal, running.is_awaited),
    row(REQUEUING, T.TIME_PASSED, None, running.resend_instruction, running.is_due_again),
    # RESTARTING: has its allocation; its processes are started again with another plan
    row(RESTARTING, T.RESTARTED_IN_PLACE, RUNNING, running.go_on_in_place, mechanism_leads_to(RUNNING)),
    row(RESTARTING, T.RESTARTED_IN_PLACE, RETURNING, running.go_on_with_fewer_nodes, mechanism_leads_to(RETURNING)),
    row(RESTARTING, T.SEEN_SUSPENDED, None, running.restart_wait_while_suspended, running.is_known_incarnation),
    row(RESTARTING, T.SEEN_RUNNING, RUNNING, running.accept_outside_restart, running.is_newer, OUTSIDE),
    row(RESTARTING, T.SEEN_PENDING, PARKED, running.take_size_after_requeue),
    row(RESTARTING, T.GIVEN_UP, RUNNING, running.give_up_target),
    row(RESTARTING, T.PLAN_FAILED, REQUEUING, running.requeue_failed_plan),
    row(RESTARTING, T.REFUSED, REQUEUING, running.requeue_untold, running.is_refused_for_good, "can't be told"),
    row(RESTARTING, T.REFUSED, None, running.note_refusal, running.is_awaited),
    row(RESTARTING, T.TIME_PASSED, REQUEUING, running.requeue_unheard, running.is_over),
    row(RESTARTING, T.TIME_PASSED, None, running.resend_instruction, running.is_due_again),
    # RETURNING: runs on fewer nodes than it has; the others are being given back
    row(RETURNING, T.CARRIED_OUT, RUNNING, running.go_on_resized_live, mechanism_leads_to(RUNNING), "nodes given back"),
    row(RETURNING, T.SEEN_SUSPENDED, None, running.restart_wait_while_suspended, running.is_known_incarnation),
    row(RETURNING, T.SEEN_RUNNING, RUNNING, running.accept_outside_restart, running.is_newer, OUTSIDE),
    row(RETURNING, T.SEEN_PENDING, PARKED, running.take_size_after_requeue),
    row(RETURNING, T.PLAN_FAILED, REQUEUING, running.requeue_failed_plan),
    row(
        RETURNING,
        T.REFUSED,
        REQUEUING,
        running.requeue_after_refused_return,
        running.is_refused_for_good,
        "can't be given back",
    ),
    row(RETURNING, T.REFUSED, None, running.note_refusal, running.is_awaited),
    row(RETURNING, T.TIME_PASSED, None, running.resend_instruction, running.is_due_again),
    # PARKED: is pending, parked behind a start time, while its size is set
    row(PARKED, T.CARRIED_OUT, RESIZED, pending.record_new_size, mechanism_leads_to(RESIZED), "size set and read back"),
    row(PARKED, T.REFUSED, PARKED, pending.take_former_size, pending.is_former_size_left, "update refused"),
    row(PARKED, T.REFUSED, RESIZED, pending.release_at_old_size, running.is_refused_for_good, "update refused"),
    row(PARKED, T.REFUSED, None, running.note_refusal, running.is_awaited),
    row(PARKED, T.SEEN_RUNNING, RUNNING, running.accept_early_start),
    row(PARKED, T.SEEN_PENDING, None, pending.park_again, pending.is_parking_over_soon),
    row(PARKED, T.SEEN_PENDING, None, pending.note_incarnation),
    row(PARKED, T.TIME_PASSED, RESIZED, pending.release_after_no_answer, running.is_over),
    row(PARKED, T.TIME_PASSED, None, running.resend_instruction, running.is_due_again),
    # RESIZED: has its new size, and is about to be released
    row(RESIZED, T.CARRIED_OUT, RELEASED, pending.note_release, mechanism_leads_to(RELEASED), "released"),
    row(RESIZED, T.REFUSED, RELEASED, pending.wait_for_start_time, running.is_refused_for_good, "release refused"),
    row(RESIZED, T.REFUSED, None, running.note_refusal, running.is_awaited),
    row(RESIZED, T.SEEN_PENDING, RELEASED, pending.record_release, pending.is_eligible),
    row(RESIZED, T.TIME_PASSED, None, running.resend_instruction, running.is_due_again),
    # RELEASED: may start
    row(RELEASED, T.SCRIPT_FAILED, REQUEUING, failed.rerun_at_last_size, failed.can_run_again),
    row(RELEASED, T.SCRIPT_FAILED, GONE, failed.lose, failed.is_lost),
    row(RELEASED, T.DECIDED, PARKED, pending.resize_released_job, pending.is_other_start_accepted),
    row(RELEASED, T.SEEN_PENDING, PARKED, pending.try_next_choice, pending.is_start_refused_with_choice, NOT_STARTED),
    row(RELEASED, T.SEEN_PENDING, QUEUED, pending.leave_to_slurm, pending.is_start_refused, NOT_STARTED),
    row(RELEASED, T.TIME_PASSED, PARKED, pending.take_any_nodes, pending.is_contested, "others took its GPUs"),
    row(RELEASED, T.TIME_PASSED, None, stay, pending.is_unseen_by_slurm),
    row(RELEASED, T.TIME_PASSED, PARKED, pending.try_next_choice, pending.is_start_missing_with_choice, NOT_STARTED),
    row(RELEASED, T.TIME_PASSED, QUEUED, pending.leave_to_slurm, pending.is_start_missing, NOT_STARTED),
    row(RELEASED, T.TIME_PASSED, QUEUED, pending.wait_as_plain, pending.is_waiting_as_plain, "waits as submitted"),
    row(RELEASED, T.TIME_PASSED, QUEUED, pending.wait_after_missed_start, running.is_over),
    # RESIZED too: the release took effect, and only its answer was lost
    *(row(state, T.LAUNCH_FAILED, QUEUED, failed.wait_after_failed_launch) for state in (RESIZED, RELEASED)),
    *(
        row(state, T.NO_GPUS, REQUEUING, failed.requeue_without_gpus, failed.can_start_again)
        for state in (RESIZED, RELEASED)
    ),
    *(row(state, T.SEEN_RUNNING, RUNNING, pending.run_with_new_size) for state in (RESIZED, RELEASED)),
    *(row(state, T.SEEN_PENDING, None, pending.note_incarnation) for state in (RESIZED, RELEASED)),
    # several states
    *(row(state, T.GIVEN_UP, QUEUED, pending.wait_for_decision) for state in sorted(STARTING)),
    *(
        row(state, T.REFUSED, None, failed.count_failed_hold_lift, failed.is_hold_kept)
        for state in ResizeState
        if state is not GONE
    ),
    *(row(state, T.LEFT_QUEUE, GONE, running.note_end) for state in ResizeState if state is not GONE),
)
_TABLE: dict[tuple[ResizeState, Trigger], tuple[Transition, ...]] = {
    (state, trigger): tuple(r for r in TRANSITIONS if (r.source, r.trigger) == (state, trigger))
    for state in ResizeState
    for trigger in Trigger
}

#: take in what an event shows, before its transition is followed
ON_EVENT: tuple[OnEvent, ...] = (account_walltime,)
#: keep account of what was done, and of the transition
ON_STEP: tuple[OnStep, ...] = (record_start_times, record_start, drop_joined_nodes, keep_place, account_restart)


def advance(
    life: JobLifecycle,
    event: ResizeEvent,
    now_s: float,
    times: ResizeTimes,
    report: Report | None = None,
    mechanism: ResizeMechanism = RESTART,
) -> Step:
    """Return the job after `event` at `now_s` (seconds since 1970), with instructions and lines of its story. `report`: its latest.

    Total: any event in any state has an answer, and never raises.
    """
    if life.state is GONE:
        return Step(life)
    at = Situation(now_s=now_s, times=times, mechanism=mechanism)
    row = find_transition(life, event, at)
    after = life
    for take_in in ON_EVENT:
        after = take_in(after, event, row, at)
    step = Step(after) if row is None else _follow(row, after, event, at)
    occurrence = Occurrence(former_lifecycle=life, event=event, now_s=now_s, report=report)
    for hook in ON_STEP:
        step = hook(step, occurrence)
    return step


def find_transition(life: JobLifecycle, event: ResizeEvent, at: Situation) -> Transition | None:
    """Return the row of the table that `event` follows, or None if nothing comes of it."""
    rows = (row for trigger in find_triggers(event) for row in _TABLE[life.state, trigger])
    return next((row for row in rows if row.when(life, event, at)), None)


def _follow(row: Transition, life: JobLifecycle, event: ResizeEvent, at: Situation) -> Step:
    """Return the job as `row` changes it, in its new state, with what is sent on entering that."""
    step = row.change(life, event, at)
    if row.target is None:
        return step
    entered = replace(step.life, state=row.target, since_s=at.now_s)
    instructions = step.instructions
    awaited = at.mechanism.instruction(entered, at.times)
    if not instructions and awaited is not None:
        if at.mechanism.is_delayed(entered, at.now_s, at.times):
            entered = replace(entered, sent_s=0.0)  # the first tick that may sends it
        else:
            instructions = (awaited,)
    if instructions:
        entered = replace(entered, sent_s=at.now_s)
    return Step(entered, instructions, step.story)
