"""A job as an epoch may decide about it: pure."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.formatting import format_duration
from synergy_core.job_report import MAX_RETURNS, is_by_agent
from synergy_core.records import Job, JobState

from synergyd.control.failed_plans import NO_BANS, Bans
from synergyd.control.fault_monitor import idle_seconds
from synergyd.control.resize.lifecycle import JobLifecycle
from synergyd.control.resize.start_refusal import is_waiting_its_turn
from synergyd.control.state.node_health import MARKS_OF_FAULTS
from synergyd.control.state.node_paces import SLOW
from synergyd.control.state.size_changes import REASONS, CanChangeSize
from synergyd.control.tracked import TrackedJob

MOST_SLOWED = 10.0  # the most that a report may say
# A job keeps its size until it was measured there, for so long after its start at most: its first steps, compiled and with cold caches,
# may take minutes, and what was guessed before them is no reason to load it twice.
UNMEASURED_S = 600.0
# At its first start for less, three epochs of a minute: nothing is lost yet, and others may wait for its GPUs.
FIRST_UNMEASURED_S = 180.0


def decidable_job(
    job: Job,
    tracked: TrackedJob | None,
    now_s: float,
    bans: Bans = NO_BANS,
    size: CanChangeSize = CanChangeSize.YES,
) -> Job:
    """Return the job as an epoch may decide about it.

    It is not touched if Slurm refused all that Synergy could choose for it. It is not started before its user's
    start time, nor if a start has just failed or a node was lost. It is not resized if nothing says that it can be
    (`size`), if it can't be asked for a checkpoint, if a resize has failed lately, if Slurm has refused it other
    nodes lately, or before it was measured at the size of its last resize.
    """
    if tracked is None:
        return job
    lifecycle, tracked.form, tracked.at_asked_size = tracked.lifecycle, job.fixed, False
    if job.directive is not None and size is not CanChangeSize.YES and not tracked.keeps_size:
        job = _at_asked_size(job, tracked, size)
    if now_s < lifecycle.failures.until_s:
        job = replace(job, avoid=tuple(n for n in lifecycle.failures.nodes if n not in job.node_names))
    job = _with_nodes_to_avoid(job, tracked, now_s)
    if job.state is JobState.PENDING:
        job = _with_loss(replace(job, begin_s=tracked.begin_s), tracked)
        if lifecycle.left_to_slurm_reason and job.directive is not None:
            return replace(job, directive=None, directive_error=_left_to_slurm_message(lifecycle))
    if job.directive is None:
        return job
    if job.idle_s is not None and not job.fixed:
        return replace(
            job,
            fixed=f"it has used no CPU time and no GPU for {format_duration(job.idle_s)}, and made no step meanwhile",
        )
    if lifecycle.returns >= MAX_RETURNS and not job.fixed:
        return replace(job, fixed=f"{MAX_RETURNS} of the plans that Synergy chose for it failed")
    if bans.script and not job.fixed:
        return replace(job, fixed="a script of this program ended before its training began again after a resize")
    if tracked.keeps_size and not job.fixed:
        return replace(job, fixed="its reports say that it can go on at this size alone")
    if job.state is JobState.PENDING and tracked.out_of_plans and not job.fixed:
        return replace(job, fixed="all plans that fit have failed for this program")
    if job.state is not JobState.RUNNING or job.fixed:
        return job
    if lifecycle.left_to_slurm_reason:
        return replace(job, fixed=_left_to_slurm_message(lifecycle))
    if tracked.report is None or tracked.report.restarts != job.restarts or not is_by_agent(tracked.report):
        return replace(job, fixed="its agent has not reported yet, so nobody could be asked for a checkpoint")
    if tracked.is_training_over:
        return replace(job, fixed="its training has ended, and what its script still does is left alone")
    again_s = lifecycle.retry_after_s - now_s
    if again_s > 0:
        return replace(job, fixed=f"its last resize failed; tried again in {again_s:.0f} s")
    if lifecycle.refusals:
        last = lifecycle.refusals[-1]
        words = f"Slurm did not start it on {', '.join(last.nodes)} (its reason: {last.reason or 'none'})"
        return replace(job, fixed=f"{words}; tried again when these nodes have changed")
    if _is_unmeasured(job, tracked, now_s):
        return replace(job, fixed=f"it has not been measured since its {'restart' if job.restarts else 'start'}")
    return job


def _at_asked_size(job: Job, tracked: TrackedJob, size: CanChangeSize) -> Job:
    """Return the job with the size that it asked for and its script's own plan, whatever it has been given before."""
    job = replace(job, own_plan=True, shape=job.asked if job.state is JobState.PENDING else job.shape)
    if job.directive is not None and job.directive.resize and not job.fixed:
        job = replace(job, fixed=REASONS[size])
        tracked.at_asked_size = True
    tracked.form = job.fixed
    return job


def _is_unmeasured(job: Job, tracked: TrackedJob, now_s: float) -> bool:
    """Return whether the job started lately and has made no measured step since.

    Return False if it has to change: what the epoch adds to the job only later is taken as the latest snapshot had
    it.
    """
    most_s = UNMEASURED_S if job.restarts else FIRST_UNMEASURED_S
    if job.start_s is None or not 0 <= now_s - job.start_s < most_s:
        return False
    if job.restarts and (tracked.profile is None or not tracked.profile.samples):
        return False  # its reports may never say how long a step takes: they did not at its first start
    if tracked.report is None or tracked.report.step_s is not None:
        return False
    versions = [job] if tracked.job is None else [job, tracked.job]
    return not any(j.gives_back or (j.cut_s is not None and j.cut_s - now_s <= most_s) for j in versions)


def _with_loss(job: Job, tracked: TrackedJob) -> Job:
    """Return the job with the shape and nodes that it ran on, if it waits because it has lost a node."""
    if tracked.node_loss is None or job.restarts != tracked.node_loss[0].restarts + 1:
        return job
    ran_on, names = tracked.node_loss
    return replace(job, lost=names, lost_shape=ran_on.shape)


def _with_nodes_to_avoid(job: Job, tracked: TrackedJob, now_s: float) -> Job:
    """Return the job with the nodes that it takes last.

    These are those that it has already, those where it hung or lost a GPU or a link before, and those that hold its other nodes up.
    """
    report, hangs = tracked.report, tracked.lifecycle.hangs
    shun = {*job.shun, *(hangs.nodes if now_s < hangs.until_s else ())}
    if tracked.last_fault is not None and tracked.last_fault[0] < job.restarts:
        shun |= {fault.node for fault in (tracked.last_fault[1],) if fault.kind in MARKS_OF_FAULTS and fault.node}
    if report is not None and report.restarts == job.restarts and len(job.node_names) > 1:
        times = dict(zip(report.slow_nodes, report.slow_times, strict=False))
        slow = {name: times.get(name, SLOW) for name in report.slow_nodes if name in job.node_names}
        if slow:
            shun |= slow.keys()
            job = replace(job, slowed=min(MOST_SLOWED, max(1.0, *slow.values())))
    idle_s = idle_seconds(tracked, job, now_s)
    return replace(job, shun=tuple(sorted(shun)), idle_s=idle_s) if shun or idle_s is not None else job


def _left_to_slurm_message(lifecycle: JobLifecycle) -> str:
    reason = lifecycle.left_to_slurm_reason
    if is_waiting_its_turn(reason):
        return f"it waits in Slurm's queue as it was submitted (Slurm's reason: {reason})"
    return f"left to Slurm, which did not start it with any size or nodes that Synergy chose (Slurm's reason: {reason})"
