"""Restarts of a job's processes inside its allocation: what its reports say of them. Pure."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.job_report import Report
from synergy_core.records import Cluster, JobState

from synergyd.control.resize.events import NodesJoined, NodesLost, RestartedInPlace, Unwanted
from synergyd.control.resize.instructions import Target
from synergyd.control.tracked import KeepReport, Remember, TrackedJob

#: seconds after which Slurm shows a dead node as not responding: it asks each node at a third of SlurmdTimeout (300 s by default), so
#: this holds for time-outs up to 600 s
ANSWERS_S = 300.0


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
    joined = report.in_place
    return NodesJoined(report.restarts, joined.joined, joined.join_refusal, joined.join_granted)


def note_lost_nodes(tracked: TrackedJob, report: Report, now_s: float) -> None:
    """Remember since when the run has been without each node that its launchers have lost."""
    names = report.in_place.lost_nodes if report.in_place is not None else ()
    tracked.lost_since_s = {name: min(now_s, tracked.lost_since_s.get(name, now_s)) for name in names}


def target_loss_event(tracked: TrackedJob, report: Report) -> Unwanted | None:
    """Return that the job's target is given up since it counts on nodes that the run has lost, or None if it does not.

    A node that is to join the run may be one that it has lost before.
    """
    life = tracked.lifecycle
    if life.target is None or life.origin is None or not life.in_place or report.in_place is None:
        return None
    names = sorted(set(report.in_place.lost_nodes) & set(life.target.nodes) & set(life.origin.nodes))
    return Unwanted(f"the run has lost {', '.join(names)}") if names else None


def has_nodes_to_return(tracked: TrackedJob) -> bool:
    """Return whether the job holds nodes of its own allocation that its run has lost, and that it may give back.

    Until then nothing is decided for it: its launchers can't follow an order that counts on these nodes.
    """
    report, job = tracked.report, tracked.job
    if report is None or report.in_place is None or job is None or report.restarts != job.restarts:
        return False
    return not tracked.lifecycle.live_refusal and bool(_lost_of_own_allocation(tracked, report.in_place.lost_nodes))


def _lost_of_own_allocation(tracked: TrackedJob, names: tuple[str, ...]) -> set[str]:
    held_names = set(tracked.job.node_names[1:]) if tracked.job is not None else set()
    return set(names) & held_names - set(tracked.lifecycle.joined_nodes)


def loss_event(tracked: TrackedJob, cluster: Cluster, now_s: float) -> NodesLost | None:
    """Return which nodes the running job can give back because its run goes on without them, or None if there are none.

    These are nodes of its own allocation that its launchers have lost: at once where Slurm starts no job on the node, since it does not
    hear from it either; after ANSWERS_S where it would, since no other job must start on a dead node. An allocation beside the job's ends
    by itself.
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
    lost_names = _lost_of_own_allocation(tracked, report.in_place.lost_nodes)
    up_names = {node.name for node in cluster.nodes if node.up} if lost_names else set()
    lost_names -= {name for name in up_names if now_s < tracked.lost_since_s.get(name, now_s) + ANSWERS_S}
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
