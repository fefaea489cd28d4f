"""Transitions of a job that has lost a node, and whose run goes on without it: the node is given back. Pure.

Slurm ends a job when it finds one of its nodes down, SlurmdTimeout after the loss (300 s unless an admin sets it), but not for a node that
the job has given back before.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize.events import NodesLost
from synergyd.control.resize.instructions import Target
from synergyd.control.resize.lifecycle import JobLifecycle, Step, nodes_to_return
from synergyd.control.resize.transition import Situation


def can_return_lost_nodes(life: JobLifecycle, event: NodesLost, _at: Situation) -> bool:
    """Return whether the nodes that the job's run goes on without can be given back while it runs."""
    return event.restarts == life.incarnation and not life.live_refusal


def return_lost_nodes(life: JobLifecycle, event: NodesLost, _at: Situation) -> Step:
    """Give the lost nodes back before Slurm finds them down, which would end the job."""
    shape = replace(event.present.shape, nodes=len(event.kept_nodes))
    target = Target(shape, event.kept_nodes, event.plan)
    now = replace(
        life, target=target, origin=event.present, plan=event.plan, attempts=0, in_place=True, cause="nodes were lost"
    )
    return Step(now, story=(f"runs on {', '.join(target.nodes)}: {', '.join(nodes_to_return(now))}, lost, given back",))
