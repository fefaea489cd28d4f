"""What a job goes on with after the loss of nodes, and which end of a run on several nodes was the first cause. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from synergy_core.records import Plan
from synergy_core.wire.report import FAULTS

from synergy_launch.launcher.commands.start import fit_plan

#: exit codes of a run that ended well, or as it was asked to (SIGINT, SIGTERM)
ENDED_AS_ASKED = (0, 130, 143)
KILLED_CODE = 128 + 9  # the exit code of a process that SIGKILL ended, in a shell's terms


def largest_fit(
    nodes: Sequence[str], lost_nodes: Collection[str], plan: Plan | None, processes: int
) -> tuple[tuple[str, ...], Plan] | None:
    """Return the nodes and plan to go on with, or None where the first of `nodes` is lost or no number of the others fits.

    `plan`: the run's; with another data-parallel degree it is for as many of the remaining nodes as possible. `processes`: on each node.
    """
    remaining_nodes = tuple(name for name in nodes if name not in lost_nodes)
    if plan is None or not nodes or nodes[0] in lost_nodes:
        return None
    for count in range(len(remaining_nodes), 0, -1):
        fits = fit_plan(plan, processes * count)[0]
        if fits is not None:
            return remaining_nodes[:count], fits
    return None


def first_cause(
    code: int, own: bool, ends: Mapping[int, tuple[int, str]], own_rank: int, *, knows: bool = False
) -> tuple[int, str, int | None]:
    """Return (exit code, kind, rank of the node) of the end that the others followed from; kind "" and rank None: not known elsewhere.

    `own`: this node's processes ended by themselves, with `code`. `knows`: this node knows the cause of that beyond the code. `ends`: (exit
    code, kind) of the other nodes, in the order in which they came. A killed process or a fault explains the errors of all others; another
    node's error counts before this one's where it says more.
    """
    failed = [(rank, other, kind) for rank, (other, kind) in ends.items() if other not in ENDED_AS_ASKED]
    killed = [end for end in failed if end[2] in ("killed", *FAULTS)]
    if own and (code == KILLED_CODE or knows):
        return code, "", own_rank
    for rank, other, kind in (*killed, *failed):
        if kind != "exit" or not own:
            return other, kind, rank
    return code, "", own_rank if own else None
