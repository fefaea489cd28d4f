"""A decision as the event that begins its resize or start."""

from __future__ import annotations

from synergy_core.formatting import format_size
from synergy_core.reasons import reason_codes
from synergy_core.records import Action, Cluster, Decision, Job, JobState

from synergyd.control.in_place import can_grow_live, can_restart, can_shrink_live
from synergyd.control.resize.events import Wanted
from synergyd.control.resize.instructions import Target
from synergyd.control.tracked import TrackedJob


def resize_request(tracked: TrackedJob, decision: Decision, job: Job, cluster: Cluster, *, live: bool = True) -> Wanted:
    """Translate a decision with a Cell into the event that starts or resizes the job, with its cause in words.

    `live`: nodes may leave running jobs without a requeue.
    """
    assert decision.cell is not None
    shape, present_plan = decision.cell.shape, tracked.lifecycle.plan
    # a job that keeps its own size keeps its own degrees as well, and so does one without a known plan at that size
    own = job.state is JobState.PENDING and (job.own_plan or bool(job.fixed) or decision.cell.goodput <= 0)
    plan = None if own else decision.cell.plan
    words = format_size(shape, plan)
    cause = f"{format_size(job.shape, present_plan)} -> {words}" if decision.action is Action.RESIZE else words
    why = reason_codes(decision.reasons)
    cause += f", since {job.cut_why}" if job.cut_why and why & {"leaves-reservation", "left-on-reservation"} else ""
    cause += ", since it was lent as a spare, which a job needs that has lost a node" if "lent-spare" in why else ""
    cause += f", as before it lost {', '.join(job.lost[:3])}" if job.lost and shape == job.lost_shape else ""
    names = ((), ()) if job.placed_by_slurm else (decision.node_names, job.node_names)
    target, present = Target(shape, names[0], plan), Target(job.shape, names[1], present_plan)
    stays, acks = can_restart(tracked), tracked.checkpoints_taken
    typed = bool(job.asked.gpu_type) or len(cluster.gpu_types()) < 2
    any_nodes = typed and not (job.avoid or job.shun or job.barred)
    as_asked = Target(job.shape if tracked.keeps_size else job.asked)
    return Wanted(
        target,
        cause,
        acks,
        present,
        as_asked,
        in_place=stays,
        live=live and can_shrink_live(tracked),
        grows=live and can_grow_live(tracked),
        any_nodes=any_nodes,
    )
