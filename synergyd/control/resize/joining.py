"""Transitions of a job whose launchers bring in nodes that it does not have, while it runs: JOINING. Pure."""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.resize.events import NodesJoined, Refused, Tick, Wanted
from synergyd.control.resize.lifecycle import JobLifecycle, Step, nodes_to_join
from synergyd.control.resize.running import ask_before_resize, is_accepted, is_restart_in_place
from synergyd.control.resize.start_refusal import with_refusal_of
from synergyd.control.resize.transition import Situation

#: once may be a race for the nodes, or one bad node; a site that does not let jobs submit refuses again
MOST_JOINS = 2


def is_growth_accepted(life: JobLifecycle, event: Wanted, at: Situation) -> bool:
    """Return whether the running job may be resized now, by nodes that join it while it runs."""
    next_life = replace(life, target=event.target, origin=event.present, in_place=is_restart_in_place(life, event))
    return is_accepted(life, event, at) and bool(nodes_to_join(next_life))


def ask_for_nodes(life: JobLifecycle, event: Wanted, at: Situation) -> Step:
    """Order the job's launchers to bring in the nodes that it lacks; the checkpoint is asked for once they are there."""
    next_life = ask_before_resize(life, event, at).life
    names = nodes_to_join(next_life)
    joined = tuple(dict.fromkeys((*life.joined_nodes, *names)))
    text = f"live resize decided: {event.cause}; {', '.join(names)} asked for"
    return Step(replace(next_life, orders=life.orders + 1, joined_nodes=joined), story=(text,))


def ask_with_joined_nodes(life: JobLifecycle, _event: NodesJoined, at: Situation) -> Step:
    """Ask the running job for a checkpoint: the nodes that it is to grow to are there."""
    return Step(
        replace(life, attempts=0, asked_s=0.0),
        story=(f"{', '.join(nodes_to_join(life))} joined; checkpoint asked for",),
    )


def has_lost_joined_nodes(life: JobLifecycle, event: NodesJoined, _at: Situation) -> bool:
    """Return whether the nodes that the job was to grow to had joined, and have gone before its checkpoint."""
    return bool(nodes_to_join(life)) and (event.restarts, event.number) == (life.incarnation, life.orders)


def continue_without_new_nodes(life: JobLifecycle, event: NodesJoined | Refused, at: Situation) -> Step:
    """Let the job go on as it is: the nodes can't be had while it runs.

    Nodes that Slurm had granted are not asked for again for a while.
    """
    why = event.error if isinstance(event, Refused) else event.refusal
    next_life = _without_joining(life, why)
    if isinstance(event, NodesJoined) and event.granted and life.target is not None:
        asked = replace(life.target, nodes=nodes_to_join(life))
        next_life = replace(next_life, refusals=with_refusal_of(life.refusals, asked, why, at.now_s))
    return Step(next_life, story=(f"nodes can't be had while it runs, it goes on as it is: {why}",))


def go_on_unanswered_joining(life: JobLifecycle, _event: Tick, at: Situation) -> Step:
    """Let the job go on as it is: its launchers have not answered."""
    why = f"no answer within {at.times.join_s:g} s"
    return Step(_without_joining(life, why), story=(f"nodes asked for, {why}: it goes on as it is",))


def _without_joining(life: JobLifecycle, why: str) -> JobLifecycle:
    """Return the job as it was before nodes were asked for, which it could not get.

    After MOST_JOINS such attempts in a row its next growth is a requeue, unless it is resized before.
    """
    joined, failed = tuple(n for n in life.joined_nodes if n not in nodes_to_join(life)), life.failed_joins + 1
    now = replace(life, joined_nodes=joined, target=None, origin=None, attempts=0, in_place=False)
    return replace(now, failed_joins=failed, join_refusal=why if failed >= MOST_JOINS else "")
