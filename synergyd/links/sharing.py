"""The links that jobs share in an epoch's placement, and their slowdowns: the forecast of slowdown.py over Cells and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from synergy_core.formatting import format_jobs
from synergy_core.reasons import Reason, Reasons
from synergy_core.records import Action, Cell, Decision
from synergy_core.shared_links import SharedLink, Sharing

from synergyd.links.model import Topology
from synergyd.links.slowdown import Traffic, slowdowns

_LEAST_SHOWN = 1.005  # smaller slowdowns are not shown


def make_traffic(job_id: int, cell: Cell, nodes: tuple[str, ...], topology: Topology) -> Traffic | None:
    """Return the job's traffic on these nodes, or None if nothing crosses a link: its sync_s as MB at a node's own rate."""
    if len(nodes) < 2 or cell.sync_s <= 0 or cell.step_s <= 0:
        return None
    sync_s = min(cell.sync_s, cell.step_s)
    return Traffic(job_id, nodes, cell.step_s - sync_s, sync_s * 1000.0 / topology.nic.per_mb)


def sharings(jobs: Sequence[Traffic], topology: Topology) -> dict[int, Sharing]:
    """Return by job id the sharing of those that share a link."""
    users: dict[str, list[int]] = {}
    links_of = {job.job_id: topology.links_crossed(job.nodes) for job in jobs}
    for job_id, names in links_of.items():
        for link in names:
            users.setdefault(link, []).append(job_id)
    sharing_of = {}
    for job_id, forecast in slowdowns(jobs, topology).items():
        if forecast.others:
            links = tuple(
                SharedLink(link, tuple(sorted(set(users[link]) - {job_id})))
                for link in links_of[job_id]
                if len(users[link]) > 1
            )
            sharing_of[job_id] = Sharing(forecast.slowdown, forecast.link, links)
    return sharing_of


def find_slowdowns(decisions: Iterable[Decision]) -> dict[int, float]:
    """Return by job id, for the jobs that share links, the divisor of their reported step times.

    Only jobs that keep their Cell beside neighbours that do are included: a change that has only been decided slows no job down
    yet.
    """
    decisions = tuple(decisions)
    kept_ids = {d.job_id for d in decisions if d.action is Action.KEEP}
    return {
        d.job_id: d.sharing.slowdown
        for d in decisions
        if d.sharing is not None
        and d.job_id in kept_ids
        and all(other in kept_ids for link in d.sharing.links for other in link.jobs)
    }


def format_link(link: str) -> str:
    """Return the link in words: `nic:n3` -> `the network of n3`; `leaf:l0` -> `the uplink of leaf switch l0`."""
    kind, _, name = link.partition(":")
    return f"the uplink of leaf switch {name}" if kind == "leaf" else f"the network of {name}"


def lines(sharing: Sharing, goodput: float) -> list[str]:
    """Return the lines for `explain`: one for each set of neighbours with the links shared with them, then what all of it costs.

    `goodput` is in sequences/s with its links to itself (0: not known).
    """
    with_whom: dict[tuple[int, ...], list[str]] = {}
    for crossing in sharing.links:
        with_whom.setdefault(crossing.jobs, []).append(format_link(crossing.link))
    lines_of_jobs = [f"shares {', '.join(links)} with {format_jobs(jobs)}" for jobs, links in with_whom.items()]
    cost = f"steps take {sharing.slowdown:.2f} times as long"
    if goodput > 0:
        cost += f": goodput {goodput / sharing.slowdown:.3g} in place of {goodput:.3g} sequences/s"
    return [*lines_of_jobs, f"{cost}; it waits most for {format_link(sharing.worst)}"]


def sharing_reasons(sharing: Sharing | None) -> Reasons:
    """Return what a decision says of shared links; nothing where the slowdown is not worth showing."""
    if sharing is None or sharing.slowdown < _LEAST_SHOWN:
        return ()
    others = sorted({job for crossing in sharing.links for job in crossing.jobs})
    count = len(sharing.links)
    where = format_link(sharing.worst) + (f" and {count - 1} more link{'s' * (count > 2)}" if count > 1 else "")
    return (Reason("shares-links", {"where": where, "jobs": others, "slowdown": sharing.slowdown}),)


def busy_share(job: Traffic, topology: Topology) -> float:
    """Return the share of its step in which a job sends, with its links to itself."""
    links = topology.links_crossed(job.nodes)
    sends = job.message_mb * max((topology.figures(x).per_mb for x in links), default=0.0) / 1000.0
    return sends / (job.compute_s + sends) if sends > 0 else 0.0


def expected_slowdown(job: Traffic, load: Mapping[str, float], topology: Topology) -> float:
    """Return the slowdown of one job beside others that load its links so (itself left out).

    It is the first round of slowdown.py's fixed point.
    """
    links = topology.links_crossed(job.nodes)
    alone = max((topology.figures(x).per_mb for x in links), default=0.0)
    cost = alone
    for x in links:
        figures = topology.figures(x)
        cost = max(cost, figures.per_mb + (figures.per_mb + figures.penalty) * load.get(x, 0.0))
    quiet = job.compute_s + job.message_mb * alone / 1000.0
    return (job.compute_s + job.message_mb * cost / 1000.0) / quiet if quiet > 0 else 1.0
