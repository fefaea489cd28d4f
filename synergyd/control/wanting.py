"""A decision as the event that begins its resize or start."""

from __future__ import annotations

from synergyd.control.in_place import can_restart
from synergyd.control.resize.events import Wanted
from synergyd.control.resize.instructions import Target
from synergyd.control.tracked import Tracked
from synergyd.records import Action, Cluster, Decision, Job, JobState
from synergyd.scheduler.spares import lent_words
from synergyd.words import size_words


def wanted(tracked: Tracked, decision: Decision, job: Job, cluster: Cluster) -> Wanted:
    """Of a decision that has a Cell, with its cause in words."""
    assert decision.cell is not None
    shape, present_plan = decision.cell.shape, tracked.lifecycle.plan
    # a job that keeps its own size keeps its own degrees as well, and so does one of which no plan is known at that size
    own = job.state is JobState.PENDING and (job.own_plan or bool(job.fixed) or decision.cell.goodput <= 0)
    plan = None if own else decision.cell.plan
    words = size_words(shape, plan)
    cause = f"{size_words(job.shape, present_plan)} -> {words}" if decision.action is Action.RESIZE else words
    cause += f", since {job.cut_why}" if job.cut_why and job.cut_why in decision.why else ""
    cause += f", since it was {lent}" if (lent := lent_words(decision)) else ""
    cause += f", as before it lost {', '.join(job.lost[:3])}" if job.lost and shape == job.lost_shape else ""
    names = ((), ()) if job.placed_by_slurm else (decision.node_names, job.node_names)
    target, present = Target(shape, names[0], plan), Target(job.shape, names[1], present_plan)
    stays, acks = can_restart(tracked), tracked.checkpoints_taken
    typed = bool(job.asked.gpu_type) or len(cluster.gpu_types()) < 2
    any_nodes = typed and not (job.avoid or job.shun or job.barred)
    as_asked = Target(job.shape if tracked.keeps_size else job.asked)
    return Wanted(target, cause, acks, present, as_asked, in_place=stays, any_nodes=any_nodes)
