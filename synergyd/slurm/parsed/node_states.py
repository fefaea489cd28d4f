"""What Slurm lets jobs do on a node in each of its states. Pure.

`sinfo` prints a base state and flags (`idle+cloud+powered_down`), other readers marks (`idle~`). The words are those of
Slurm 22.05 (slurm_protocol_defs.c: node_state_base_string, node_state_flag_string) and of sinfo's short forms. A word
that is not known here shuts nothing: what Slurm then refuses, the ladder of a start mends.
"""

from __future__ import annotations

from dataclasses import dataclass

_MARKS = "*~#!%$@^-+"  # marks of sinfo's short states, such as `idle~`
_FREE = frozenset(("idle", "mixed", "mix", "allocated", "alloc", "completing", "comp", "planned", "plnd"))
#: no job starts there
_SHUT = frozenset((
    "down", "error", "unknown", "unk", "future", "futr", "invalid", "inval", "invalid_reg", "not_responding", "perfctrs", "npc",
    "drain", "drained", "draining", "drng", "fail", "failed", "failing", "failg", "reboot", "boot", "reboot_issued",
    "reboot_requested", "power_down", "powering_down", "powered_down", "pow_dn", "power_up", "powering_up", "pow_up",
    "planned_down", "blocked", "blkd",
))  # fmt: skip
#: only jobs that name its reservation do
_RESERVED = frozenset(("reserved", "resv", "maint", "maintenance"))
#: with these alone beside a free base a powered-down node is woken for a job. One that powers up does not respond yet
_ASLEEP = frozenset(("cloud", "dynamic_norm", "dynamic_future", "planned", "powered_down", "power_up", "powering_up"))
#: a node's state at slurmctld's start, until it registers or SlurmdTimeout has passed
UNHEARD = "unknown"


@dataclass(frozen=True)
class NodeOffer:
    """The offer of a node to jobs that are to start."""

    #: jobs start there now
    up: bool = False
    #: for the jobs of its reservation alone
    reserved: bool = False
    #: it is powered down or powers up: Slurm lets jobs have it, and they begin when it is up
    wakeable: bool = False
    #: it powers up already
    waking: bool = False


def read_offer(state: str) -> NodeOffer:
    """Return what a node in this state offers. `state` is written as by `rows.node_state`."""
    base, *flags = state.lower().split("+")
    base_state = base.rstrip(_MARKS)
    if base_state != base:  # no reader of ours prints marks: they are not told apart
        return NodeOffer()
    words = frozenset((base, *flags))
    is_reserved = bool(words & _RESERVED)
    free = base in _FREE or base in _RESERVED
    waking = bool(words & {"powering_up", "power_up"})
    silent = frozenset(("not_responding",)) if "powering_up" in words else frozenset[str]()
    asleep = "powered_down" in words or "powering_up" in words
    wakeable = free and asleep and frozenset(flags) <= _ASLEEP | _RESERVED | silent
    return NodeOffer(free and not words & _SHUT, is_reserved, wakeable, wakeable and waking)


def registered_state(state: str, version: str) -> str:
    """Return `state`, or `unknown` for a node that slurmctld calls free but that has not registered with it yet.

    Such a node has no `version` of slurmd. A second slurmctld that takes over shows nodes so for some seconds.
    Slurm 22.05.8 starts jobs there without their GPUs.
    """
    return state if version or not read_offer(state).up else UNHEARD
