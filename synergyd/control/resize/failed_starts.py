"""Transitions of starts that failed: Slurm holds the job, it runs without its GPUs, or its script ended before it trained. Pure."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.formatting import format_size

from synergyd.control.resize.events import Observed, Refused
from synergyd.control.resize.instructions import LiftHold, Requeue, Target
from synergyd.control.resize.launch_failure import LIFTS, after_failure
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, Step, has_ended_before_training, last_start
from synergyd.control.resize.transition import Situation

DIED = "its script ended with an error before its training began again"
RERUN_S = 120.0  # for Slurm to take a failed job back

# -- Slurm holds it ------------------------------------------------------------------------------------------------


def is_known_failure(life: JobLifecycle, event: Observed, _at: Situation) -> bool:
    """Return whether this failed start has been seen before."""
    return life.failures.restarts == event.restarts


def retry_lifting_hold(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Lift the hold once more, if that was tried and Slurm still holds the job."""
    due = not life.sent_s or at.now_s >= life.sent_s + at.times.resend_s
    if not (life.failures.lifted and due):
        return Step(life)
    return Step(replace(life, sent_s=at.now_s), (_lift(life, event, at),))


def wait_after_failed_launch(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Let the job wait for a decision after a start that failed, and lift Slurm's hold if the start was Synergy's."""
    started = last_start(life) if life.state is ResizeState.RESIZED else life.last_start
    failures, text = after_failure(life.failures, started, event.restarts, at.now_s, life.job_id)
    back = replace(
        life,
        incarnation=event.restarts,
        target=None,
        origin=None,
        plan=None,
        attempts=0,
        stopping=False,
        ended_s=at.now_s,
        failures=failures,
    )
    return Step(back, (_lift(life, event, at),) if failures.lifted else (), (text,))


def _lift(life: JobLifecycle, event: Observed, at: Situation) -> LiftHold:
    """Return the instruction that ends Slurm's hold."""
    # nobody decides about a job that was left to Slurm: it is not put off
    return LiftHold(life.job_id, event.restarts, 0.0 if life.left_to_slurm_reason else at.times.park_s)


def is_hold_kept(_life: JobLifecycle, event: Refused, _at: Situation) -> bool:
    """Return whether it was the lifting of a hold that failed."""
    return isinstance(event.instruction, LiftHold)


def count_failed_hold_lift(life: JobLifecycle, event: Refused, _at: Situation) -> Step:
    """Count that the hold could not be lifted; the next look tries again."""
    story = (
        () if event.transient or life.attempts else (f"its hold can't be lifted, will be tried again: {event.error}",)
    )
    return Step(replace(life, attempts=life.attempts + (not event.transient)), (), story)


# -- it runs without its GPUs --------------------------------------------------------------------------------------


def can_start_again(life: JobLifecycle, _event: Observed, _at: Situation) -> bool:
    """Return whether so few of the job's starts have failed that it is started once more."""
    return life.failures.count < LIFTS


def requeue_without_gpus(life: JobLifecycle, event: Observed, _at: Situation) -> Step:
    """Requeue a job that Slurm started without its GPUs.

    Slurm 22.05 does so on nodes that have not registered yet with a slurmctld that took over: its steps fail, and then the job.
    """
    failures = replace(life.failures, count=life.failures.count + 1)
    again = replace(
        life,
        incarnation=event.restarts,
        failures=failures,
        attempts=0,
        must_leave=True,
        stopping=life.stopping or life.target is None,  # released as Slurm had it: it waits for a decision then
    )
    text = f"Slurm started it without its GPUs: requeued ({failures.count} of {LIFTS})"
    return Step(again, (Requeue(life.job_id, event.restarts, failed=True),), (text,))


# -- its script ended before it trained ----------------------------------------------------------------------------


def is_lost(life: JobLifecycle, _event: Observed, _at: Situation) -> bool:
    """Return whether the restarted job ended before its training began again."""
    return has_ended_before_training(life)


def can_run_again(life: JobLifecycle, _event: Observed, _at: Situation) -> bool:
    """Return whether that happened for the first time, and a size is known that it ran with."""
    return has_ended_before_training(life) and not life.reruns and _former_size(life) is not None


def rerun_at_last_size(life: JobLifecycle, event: Observed, _at: Situation) -> Step:
    """Run the job once more with the size that it trained with last: its script may mind the new one."""
    target = _former_size(life)
    assert target is not None
    again = replace(
        life,
        incarnation=event.restarts,
        target=target,
        origin=None,
        attempts=0,
        reruns=life.reruns + 1,
        cause="its script ended before its training began",
    )
    text = f"{DIED}: run once more with {format_size(target.shape, target.plan)}, and not resized again"
    return Step(again, (Requeue(life.job_id, event.restarts, failed=True),), (text,))


def _former_size(life: JobLifecycle) -> Target | None:
    """Return what the job trained with last, else what it asked for."""
    return life.ran or life.requested_target


def lose(life: JobLifecycle, _event: Observed, _at: Situation) -> Step:
    """Take in that the job is lost."""
    return Step(
        life, story=(f"{DIED}, with its former size too: it is lost" if life.reruns else f"{DIED}: it is lost",)
    )


def is_rerun_awaited(life: JobLifecycle, _event: Observed, at: Situation) -> bool:
    """Return whether Slurm may still take the failed job back."""
    return bool(life.reruns) and at.now_s < life.since_s + RERUN_S


def retry_requeue_of_failed(life: JobLifecycle, event: Observed, at: Situation) -> Step:
    """Ask again for the requeue of the failed job, if that was long enough ago."""
    if at.now_s < life.sent_s + at.times.resend_s:
        return Step(life)
    return Step(replace(life, sent_s=at.now_s), (Requeue(life.job_id, event.restarts, failed=True),))


def is_rerun(life: JobLifecycle, _event: Observed, _at: Situation) -> bool:
    """Return whether the job was to be run once more."""
    return bool(life.reruns)


def give_up_failed_job(life: JobLifecycle, _event: Observed, _at: Situation) -> Step:
    """Take in that Slurm did not take the failed job back."""
    return Step(life, story=("it could not be requeued: it is lost",))
