"""The links that jobs share in an epoch's placement, and their slowdowns: the forecast of slowdown.py over Cells and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from synergyd.links.model import Topology
from synergyd.links.slowdown import Traffic, slowdowns
from synergyd.records import Action, Cell, Decision
from synergyd.shared_links import SharedLink, Sharing
from synergyd.words import job_words

_LEAST_SHOWN = 1.005  # smaller slowdowns are not shown


def traffic_of(job_id: int, cell: Cell, nodes: tuple[str, ...], topology: Topology) -> Traffic | None:
    """The job's traffic on these nodes, None if nothing crosses a link: its sync_s as MB at a node's own rate."""
    if len(nodes) < 2 or cell.sync_s <= 0 or cell.step_s <= 0:
        return None
    sync_s = min(cell.sync_s, cell.step_s)
    return Traffic(job_id, nodes, cell.step_s - sync_s, sync_s * 1000.0 / topology.nic.per_mb)


def sharings(jobs: Sequence[Traffic], topology: Topology) -> dict[int, Sharing]:
    """By job id, of those that share a link."""
    users: dict[str, list[int]] = {}
    crossed = {job.job_id: topology.crossed(job.nodes) for job in jobs}
    for job_id, names in crossed.items():
        for link in names:
            users.setdefault(link, []).append(job_id)
    sharing_of = {}
    for job_id, forecast in slowdowns(jobs, topology).items():
        if forecast.others:
            links = tuple(
                SharedLink(link, tuple(sorted(set(users[link]) - {job_id})))
                for link in crossed[job_id]
                if len(users[link]) > 1
            )
            sharing_of[job_id] = Sharing(forecast.slowdown, forecast.link, links)
    return sharing_of


def slowdowns_of(decisions: Iterable[Decision]) -> dict[int, float]:
    """By job id, of the jobs that share links: the divisor of their reported step times. Only of jobs that keep their Cell beside
    neighbours that do: a change that has only been decided slows no job down yet."""
    decisions = tuple(decisions)
    kept = {d.job_id for d in decisions if d.action is Action.KEEP}
    return {
        d.job_id: d.sharing.slowdown
        for d in decisions
        if d.sharing is not None
        and d.job_id in kept
        and all(other in kept for link in d.sharing.links for other in link.jobs)
    }


def link_words(link: str) -> str:
    """`nic:n3` -> `the network of n3`; `leaf:l0` -> `the uplink of leaf switch l0`."""
    kind, _, name = link.partition(":")
    return f"the uplink of leaf switch {name}" if kind == "leaf" else f"the network of {name}"


def lines(sharing: Sharing, goodput: float) -> list[str]:
    """For `explain`: a line for each set of neighbours with the links shared with them, then what all of it costs. `goodput`
    sequences/s with its links to itself (0: not known)."""
    with_whom: dict[tuple[int, ...], list[str]] = {}
    for shared in sharing.links:
        with_whom.setdefault(shared.jobs, []).append(link_words(shared.link))
    lines_of_jobs = [f"shares {', '.join(links)} with {job_words(jobs)}" for jobs, links in with_whom.items()]
    cost = f"steps take {sharing.slowdown:.2f} times as long"
    if goodput > 0:
        cost += f": goodput {goodput / sharing.slowdown:.3g} in place of {goodput:.3g} sequences/s"
    return [*lines_of_jobs, f"{cost}; it waits most for {link_words(sharing.worst)}"]


def sentence(sharing: Sharing | None) -> str:
    """For a Decision's why, with a blank before it; "" where the slowdown is not shown."""
    if sharing is None or sharing.slowdown < _LEAST_SHOWN:
        return ""
    others = tuple(sorted({job for shared in sharing.links for job in shared.jobs}))
    count = len(sharing.links)
    where = link_words(sharing.worst) + (f" and {count - 1} more link{'s' * (count > 2)}" if count > 1 else "")
    return f" It shares {where} with {job_words(others)}, so its steps take {sharing.slowdown:.2f} times as long."


def busy_share(job: Traffic, topology: Topology) -> float:
    """Share of its step in which a job sends, with its links to itself."""
    links = topology.crossed(job.nodes)
    sends = job.message_mb * max((topology.figures(x).per_mb for x in links), default=0.0) / 1000.0
    return sends / (job.compute_s + sends) if sends > 0 else 0.0


def expected(job: Traffic, load: Mapping[str, float], topology: Topology) -> float:
    """Slowdown of one job beside others that load its links so (itself left out): the first round of slowdown.py's fixed point."""
    links = topology.crossed(job.nodes)
    alone = max((topology.figures(x).per_mb for x in links), default=0.0)
    cost = alone
    for x in links:
        figures = topology.figures(x)
        cost = max(cost, figures.per_mb + (figures.per_mb + figures.penalty) * load.get(x, 0.0))
    quiet = job.compute_s + job.message_mb * alone / 1000.0
    return (job.compute_s + job.message_mb * cost / 1000.0) / quiet if quiet > 0 else 1.0
