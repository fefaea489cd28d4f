"""The starter of a pending job: Slurm, as it was submitted, or Synergy, which keeps it from starting by itself until then. Pure."""

from __future__ import annotations

from synergy_core.records import Job, JobState

from synergyd.control.resize.instructions import Park
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.control.tracked import Output, ParkAgain, TrackedJob


def is_slurms_to_start(tracked: TrackedJob, job: Job) -> bool:
    """Return whether there is nothing to decide about a pending job: it keeps its size, and nothing keeps it from nodes.

    It waits in Slurm's queue like a job without a directive. A job that keeps its size because no agent has spoken
    is Synergy's to start: its launcher is told at the start where to report.
    """
    life = tracked.lifecycle
    keeps_size = job.directive is not None and (_is_fixed_for_good(tracked, job) or not job.directive.resize)
    untouched = not (job.held or job.paused or tracked.requeuing or job.begin_s is not None)
    chooses_nodes = (
        job.avoid
        or job.shun
        or job.lost
        or life.left_to_slurm_reason
        or life.refusals
        or life.walltime.grant is not None
    )
    pending = job.state is JobState.PENDING and life.state is ResizeState.QUEUED
    return pending and keeps_size and untouched and not chooses_nodes


def _is_fixed_for_good(tracked: TrackedJob, job: Job) -> bool:
    """Return whether the job keeps its size for another reason than that no agent of its program has spoken."""
    return bool(job.fixed) and not tracked.at_asked_size


def is_put_off(tracked: TrackedJob, now_s: float) -> bool:
    """Return whether a start time that Synergy wrote keeps the pending job from starting."""
    written, eligible_s = tracked.lifecycle.written_start, tracked.eligible_s
    if written is None or not written.high_s or eligible_s is None or tracked.job is None:
        return False
    return written.restarts == tracked.job.restarts and eligible_s > now_s + 1 and written.is_ours(eligible_s)


def park_if_waiting(tracked: TrackedJob, job: Job, now_s: float, park_s: float, epoch_s: float) -> list[Output]:
    """Put off the job's start if it might start before the epoch after next; its first parking stamps its own size too."""
    fixed = _is_fixed_for_good(tracked, job)
    if tracked.lifecycle.state is not ResizeState.QUEUED or fixed or job.begin_s is not None:
        return []
    soon_s = now_s + max(30.0, 2 * epoch_s)
    if (
        job.state is not JobState.PENDING
        or tracked.requeuing
        or (tracked.eligible_s is not None and tracked.eligible_s >= soon_s)
    ):
        return []
    again = tracked.parked_incarnation == job.restarts
    grant = tracked.lifecycle.walltime.grant
    return [
        tracked.note_postponed_start(now_s + park_s),
        ParkAgain(job.job_id, park_s) if again else Park(job.job_id, park_s, grant),
    ]


def is_held_back(tracked: TrackedJob, now_s: float) -> bool:
    """Return whether the job is not to start for now, by its user's or an admin's word.

    It then does not wait for GPUs. Nor do an array's further tasks, which no epoch decides about (directive None)
    before they may start.
    """
    job = tracked.job
    if job is None or job.state is not JobState.PENDING or tracked.lifecycle.left_to_slurm_reason:
        return False
    put_off = job.begin_s is not None and job.begin_s > now_s
    return job.held or put_off or job.directive is None or job.reason.startswith("Dependency")


def count_held_back_time(tracked: TrackedJob, passed_s: float, now_s: float) -> None:
    """Count the seconds since the last look in which the job was held back.

    One that has never started, and is held back as this daemon sees it first, was so before.
    """
    is_held = is_held_back(tracked, now_s)
    if is_held and not tracked.is_seen and tracked.job is not None and not tracked.job.restarts:
        tracked.kept_s = max(0.0, now_s - tracked.lifecycle.submit_s)
    elif is_held:
        tracked.kept_s += max(0.0, passed_s)
    tracked.is_seen = tracked.job is not None
