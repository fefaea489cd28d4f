"""Shared links: what k tasks on a link cost each of them, and which links a job's traffic crosses.

The model is the one fitted on 10 GbE all-reduces in "Communication Contention Aware Scheduling of Multiple Deep Learning
Training Jobs" (arXiv 2002.10105): with k tasks on a link each of them needs k*b + (k-1)*h ms for a MB, so the link as a whole
loses (k-1)*h to contention. A task on several links moves at the pace of its costliest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from synergy_core.errors import UsageError
from synergy_core.link_names import NETWORK_LINKS, parse_link, parse_measured_link


@dataclass(frozen=True)
class Link:
    """One link's figures in ms/MB: `per_mb` (b) alone on it, `penalty` (h) for each further task."""

    per_mb: float
    penalty: float

    def cost(self, sharers: float) -> float:
        """Return the ms/MB that each of `sharers` tasks needs: k*b + (k-1)*h.

        A task that alone takes a part of the rate counts as that part of one; all together up to 1 they fit beside each other.
        """
        return self.per_mb if sharers <= 1.0 else sharers * self.per_mb + (sharers - 1.0) * self.penalty

    def threshold(self) -> float:
        """Return b / (2(b+h)).

        A new message up to this share of what is left of the one on the link had better start at once (the paper's Theorem 2).
        """
        return self.per_mb / (2.0 * (self.per_mb + self.penalty))

    def faster(self, factor: float) -> Link:
        """Return the same kind of link at `factor` times the rate."""
        return Link(self.per_mb / factor, self.penalty / factor)


# Fitted on 10 GbE (the paper's figures). Every other rate is a guess until `synergyctl profiles measure --pairs` has measured it: this
# one scaled by the line rate with h/b kept, which is cautious for InfiniBand, whose credit-based flow control loses less to contention.
TEN_GBE = Link(0.856, 0.235)
LINKS: dict[str, Link] = {
    name: TEN_GBE.faster(link.gbs / NETWORK_LINKS["10gbe"].gbs) for name, link in NETWORK_LINKS.items()
}


def make_link(name: str) -> Link:
    """Return the figures of a link between nodes, `4x10gbe` of four together, `10gbe@B+H` as measured. Raises UsageError."""
    right = f"one of {', '.join(LINKS)}; 4x10gbe for several together; 10gbe@B+H with measured ms/MB"
    try:
        spelling, measured_link = parse_measured_link(name)
    except ValueError:
        raise UsageError("link", f"no figures in {name!r}", right) from None
    count, kind = parse_link(spelling) or (1, "")
    if kind not in LINKS:
        raise UsageError("link", f"no figures for {name!r}", right)
    return Link(*measured_link) if measured_link else LINKS[kind].faster(count)


@dataclass(frozen=True)
class Topology:
    """The links that there are.

    Every node has one to its leaf switch (`nic`, or its own in `nics`); nodes named in `leaf` hang off that leaf, and traffic
    that leaves a leaf crosses the leaf's `uplink` (None: the uplinks are never the bottleneck).
    """

    nic: Link = TEN_GBE
    nics: Mapping[str, Link] = field(default_factory=dict)
    leaf: Mapping[str, str] = field(default_factory=dict)
    uplink: Link | None = None

    def links_crossed(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the links an all-reduce over `nodes` crosses.

        On one node there are none. Otherwise they are every node's, and the uplinks of the leaves where the nodes are on
        several.
        """
        names = tuple(dict.fromkeys(nodes))
        if len(names) < 2:
            return ()
        links = [f"nic:{name}" for name in names]
        leaves = tuple(dict.fromkeys(self.leaf.get(name, "") for name in names))
        if self.uplink is not None and len(leaves) > 1:
            links += [f"leaf:{leaf}" for leaf in leaves]
        return tuple(links)

    def figures(self, link: str) -> Link:
        """Return the figures of a link that `links_crossed` named."""
        kind, _, name = link.partition(":")
        if kind == "leaf" and self.uplink is not None:
            return self.uplink
        return self.nics.get(name, self.nic)


def build_topology(node_link: str, leaf_uplink: str, leaf: Mapping[str, str]) -> Topology:
    """Return the links that the settings NodeLink and LeafUplink name, with each node's leaf switch.

    "" means that the link is never the bottleneck. Raises UsageError.
    """
    return Topology(make_link(node_link), {}, leaf, make_link(leaf_uplink) if leaf_uplink else None)


def pace(links: Sequence[Link], sharers: Sequence[float]) -> float:
    """Return the ms/MB of a task that crosses `links` with so many tasks on each, itself included.

    The costliest link decides. Without links it is 0.
    """
    return max((link.cost(k) for link, k in zip(links, sharers, strict=True)), default=0.0)
