"""Nodes that delay the others: each rank's own time for a step, compared with its peers' on other nodes.

A rank's own time is what it takes before it meets the others in a collective (the forward passes); the whole step takes
equally long on all of them, and shows nothing. Peers are the ranks that do the same work: those of one pipeline stage.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from synergy_launch.agent.collectives import Collectives

WINDOW = 20  # steps between two comparisons, the same on all ranks
SLOW = 1.2  # times the median of its peers, twice in a row
_TWICE = 2


@dataclass(frozen=True)
class Place:
    """The node where a rank runs, and whose peer it is."""

    node: str
    peers: int


def node_name() -> str:
    """Return Slurm's name of this node, else its own."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def slow_places(places: Sequence[Place], own_s: Sequence[float]) -> dict[str, float]:
    """Return {node: times the others' median} of nodes that are slow, by each rank's own seconds.

    One node alone is never slow. A node's figure is the median over its ranks of (own time / median of the rank's peers on all nodes).
    """
    peers: dict[int, list[float]] = {}
    for place, seconds in zip(places, own_s, strict=True):
        peers.setdefault(place.peers, []).append(seconds)
    usual = {key: statistics.median_low(values) for key, values in peers.items()}
    ratios: dict[str, list[float]] = {}
    for place, seconds in zip(places, own_s, strict=True):
        if usual[place.peers] > 0:
            ratios.setdefault(place.node, []).append(seconds / usual[place.peers])
    if len(ratios) < 2:
        return {}
    medians = {node: statistics.median(values) for node, values in ratios.items()}
    return {node: ratio for node, ratio in medians.items() if ratio >= SLOW}


def format_slow_nodes(slow: Mapping[str, float]) -> str:
    """Return the slow nodes as text, for `explain`; "" where none is slow."""
    texts = [f"{node} takes {ratio:.2f} times as long as its peers" for node, ratio in sorted(slow.items())]
    return f"slow: {', '.join(texts)}" if texts else ""


class Stragglers:
    """One rank's part in finding slow nodes; every rank calls `add` at the same steps. `slow` is the same on all of them."""

    def __init__(self, ranks: Collectives, peers: int, node: str = "") -> None:
        self._ranks = ranks
        self._places = [Place(*entry) for entry in ranks.gather((node or node_name(), peers))]
        self._recent: list[float] = []
        self._times: dict[str, int] = {}
        self.slow: dict[str, float] = {}

    def add(self, own_s: float) -> bool:
        """Add this rank's own seconds for a step. Return whether `slow` was compared anew."""
        self._recent.append(own_s)
        if len(self._recent) < WINDOW:
            return False
        mine = [0.0] * self._ranks.world
        mine[self._ranks.rank] = statistics.median(self._recent)
        self._recent.clear()
        slow = slow_places(self._places, self._ranks.total(mine))
        self._times = {node: self._times.get(node, 0) + 1 for node in slow}
        self.slow = {node: ratio for node, ratio in slow.items() if self._times[node] >= _TWICE}
        return True
