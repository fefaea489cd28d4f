"""A start of Synergy's that failed: what is remembered of it, and how often it is tried again. Pure.

Where slurmd refuses a launch (it still runs the incarnation before, its Prolog fails), Slurm requeues the job and holds it:
priority 0, reason `launch_failed_requeued_held`. Nobody asked for that hold, so Synergy lifts it from a job that it started itself,
and has the job start on other nodes meanwhile. A job that fails everywhere is left held: each failed Prolog drains a node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LIFTS = 3  # holds of one job that are lifted: as many as a resize has attempts
# Before its nodes are taken again: twice KillWait's default of 30 s, after which slurmd has killed what it still runs of the job.
AVOID_S = 60.0

# A node that comes back is told once more to end what it ran: slurmctld repeats that until the credential has expired, and it
# would end the job's next incarnation too. AuthInfo's cred_expire is 120 s unless an admin sets it.
RETURN_S = 120.0


@dataclass(frozen=True, kw_only=True)
class LastStart:
    """The start that Synergy made last."""

    #: the incarnation
    restarts: int
    #: its nodes; empty where Slurm chose them
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaunchFailures:
    """The failed starts of one job. `count`: the number of Synergy's own starts among them."""

    count: int = 0
    #: the restart count after the last failure, Synergy's or not
    restarts: int = -1
    #: Synergy lifts the hold that came with it
    lifted: bool = False
    #: nodes of the last failed start, or lost while the job ran: not taken again before `until_s`
    nodes: tuple[str, ...] = ()
    until_s: float = 0.0


NO_FAILURES = LaunchFailures()


def after_loss(before: LaunchFailures, lost_nodes: frozenset[str], now_s: float) -> LaunchFailures:
    """Return what is remembered when Slurm has taken the job off the nodes `lost_nodes`, which can't take jobs any more."""
    known_nodes = frozenset(before.nodes) if now_s < before.until_s else frozenset()
    if not lost_nodes or (lost_nodes <= known_nodes and before.until_s >= now_s + RETURN_S / 2):
        return before
    return replace(before, nodes=tuple(sorted(lost_nodes | known_nodes)), until_s=max(before.until_s, now_s + RETURN_S))


def after_failure(
    before: LaunchFailures, started: LastStart | None, restarts: int, now_s: float, job_id: int
) -> tuple[LaunchFailures, str]:
    """Return what is remembered when Slurm holds the job as incarnation `restarts`, and a line for its story.

    A slurmctld that was killed forgets what it has not saved: its count of restarts may lie one behind.
    """
    release = f"held by Slurm until `scontrol release {job_id}`"
    if started is None or restarts - started.restarts not in (0, 1):
        failures = LaunchFailures(count=before.count, restarts=restarts)
        return failures, f"a start that was not Synergy's failed: {release}"
    count, where = before.count + 1, f" on {', '.join(started.nodes)}" if started.nodes else ""
    if count > LIFTS:
        failures = LaunchFailures(count=count, restarts=restarts)
        return failures, f"its start{where} failed, as {LIFTS} before: {release}"
    avoid_s = AVOID_S * 2 ** (count - 1)
    failures = LaunchFailures(count=count, restarts=restarts, lifted=True, nodes=started.nodes, until_s=now_s + avoid_s)
    elsewhere = f", not{where} for {avoid_s:g} s" if where else ""
    return failures, f"its start{where} failed: tried again ({count} of {LIFTS}){elsewhere}"
