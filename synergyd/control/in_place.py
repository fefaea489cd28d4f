"""Restarts of a job's processes inside its allocation: what its reports say of them. Pure."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.job_report import Report
from synergy_core.records import Cluster, JobState

from synergyd.control.resize.events import NodesJoined, NodesLost, RestartedInPlace
from synergyd.control.resize.instructions import Target
from synergyd.control.tracked import KeepReport, Remember, TrackedJob


def can_restart(tracked: TrackedJob) -> bool:
    """Return whether the job's launchers have said that they can start another plan on the GPUs that it has."""
    report, job = tracked.report, tracked.job
    return report is not None and report.in_place is not None and job is not None and report.restarts == job.restarts


def can_shrink_live(tracked: TrackedJob) -> bool:
    """Return whether the job's launchers have said that nodes can leave the run at an order."""
    report = tracked.report
    return can_restart(tracked) and report is not None and report.in_place is not None and report.in_place.live


def can_grow_live(tracked: TrackedJob) -> bool:
    """Return whether the job's launchers have said that they can bring in nodes that it does not have."""
    report = tracked.report
    return can_restart(tracked) and report is not None and report.in_place is not None and report.in_place.grows


def join_event(report: Report) -> NodesJoined | None:
    """Return the launchers' answer to the latest order to bring nodes in, or None if they have answered none."""
    if report.in_place is None or not report.in_place.joined:
        return None
    return NodesJoined(report.restarts, report.in_place.joined, report.in_place.join_refusal)


def loss_event(tracked: TrackedJob, cluster: Cluster) -> NodesLost | None:
    """Return which nodes the running job can give back because its run goes on without them, or None if there are none.

    These are nodes of its own allocation that its launchers have lost and on which Slurm starts no job, such as those that it does not hear
    from either. An allocation beside the job's ends by itself.
    """
    report, job = tracked.report, tracked.job
    if (
        report is None
        or report.in_place is None
        or job is None
        or report.restarts != job.restarts
        or report.plan is None
    ):
        return None
    if job.state is not JobState.RUNNING or tracked.is_training_over:
        return None
    lost_names = set(report.in_place.lost_nodes) - set(tracked.lifecycle.joined_nodes)
    lost_names -= {node.name for node in cluster.nodes if node.up} if lost_names else set()
    remaining_names = tuple(name for name in job.node_names if name not in lost_names)
    if remaining_names == job.node_names or remaining_names[:1] != job.node_names[:1]:
        return None
    present = Target(job.shape, job.node_names, tracked.lifecycle.plan)
    return NodesLost(report.restarts, remaining_names, report.plan, present)


def restart_event(report: Report) -> RestartedInPlace | None:
    """Return the order at which the reporting run began, or None if it began at none."""
    if report.in_place is None or not report.in_place.order:
        return None
    return RestartedInPlace(report.restarts, report.in_place.order)


def clear_speed_of_last_report(tracked: TrackedJob, now_s: float) -> list[KeepReport]:
    """Clear the step time and stall of the last report: the job restarted in place with a new plan and has not reported since."""
    if tracked.report is None:
        return []
    tracked.report = replace(tracked.report, plan=tracked.lifecycle.plan, step_s=None, stalled_s=None)
    tracked.heard_s = now_s
    return [KeepReport(tracked.report, now_s, {})]


def tell_crash(tracked: TrackedJob, before: Report | None) -> list[Remember]:
    """Return a line for the job's story if its newest report tells of a crash that `before` did not."""
    report, life = tracked.report, tracked.lifecycle
    known_crashes = (
        before.in_place.crashes if before and before.in_place and report and before.restarts == report.restarts else 0
    )
    if report is None or report.in_place is None or report.in_place.crashes <= known_crashes:
        return []
    text = f"{report.in_place.describe_crash()}: started again in place from its last checkpoint"
    return [Remember(life, life.state, "Crashed", (text,))]


def run_number(report: Report) -> tuple[int, int]:
    """Return the incarnation, and which of its runs, that the report comes from."""
    if report.in_place is not None:
        return report.restarts, report.in_place.number
    failure = report.failure
    return report.restarts, failure.number if failure is not None and failure.goes_on else 0
