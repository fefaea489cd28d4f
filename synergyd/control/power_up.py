"""How long powered-down nodes take until they can be had, as far as epochs have seen them power up. Pure.

Slurm gives a node ResumeTimeout from the request; a node that takes longer is DOWN. ResumeTimeout is expected of a node
until one power-up of it was seen from its beginning to its end, which then counts (seen once an epoch: rounded up by
that).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from synergy_core.records import Cluster, Decision, Node

from synergyd.control.resize.events import CarriedOut, Refused
from synergyd.control.resize.instructions import Wake
from synergyd.control.tracked import Output, Remember, TrackedJob

# Slurm's default of ResumeTimeout (slurm.conf(5))
RESUME_TIMEOUT_S = 60.0
# After a power-up that failed: as long as Slurm's default gives ten of them, doubled with each further one of the node
AGAIN_S = 600.0
_DOUBLINGS = 4


@dataclass
class PowerUps:
    """The power-ups of nodes, by node name. `see` is called once an epoch."""

    #: when it was first seen to power up, and whether it was seen asleep before
    _first_seen: dict[str, tuple[float, bool]] = field(default_factory=dict)
    _asleep: set[str] = field(default_factory=set)
    _took_s: dict[str, float] = field(default_factory=dict)
    #: when Slurm took the request for it, until it is seen to power up
    _asked_s: dict[str, float] = field(default_factory=dict)
    #: (failed in a row, not taken again before)
    _failures: dict[str, tuple[int, float]] = field(default_factory=dict)

    def see(self, cluster: Cluster, now_s: float) -> Cluster:
        """Return the cluster with what is expected of each node that sleeps.

        `wake_s` is the node's ResumeTimeout before; it becomes infinite for a node that failed to power up lately.
        """
        if not (self._first_seen or self._asleep or any(n.wakeable for n in cluster.nodes)):
            return cluster
        nodes = tuple(self._see(node, now_s) for node in cluster.nodes)
        self._asleep = {n.name for n in cluster.nodes if n.wakeable and not n.waking}
        self._first_seen = {name: since for name, since in self._first_seen.items() if name in cluster.by_name}
        self._asked_s = {name: at_s for name, at_s in self._asked_s.items() if name in cluster.by_name}
        return Cluster(nodes)

    def note_answer(
        self, wake: Wake, answer: CarriedOut | Refused, tracked: TrackedJob | None, now_s: float
    ) -> list[Output]:
        """Return the outcome of `wake` for the job's story. Nodes that this daemon may not power up are not asked for again for a while."""
        text = f"{', '.join(wake.nodes)} powered up for it to grow onto"
        if isinstance(answer, Refused) and answer.transient:
            return []
        if isinstance(answer, Refused):
            text = f"{', '.join(wake.nodes)} can't be powered up for it: {answer.error}"
            for name in wake.nodes:
                self._fail(name, now_s)
        else:
            self._asked_s |= {name: now_s for name in wake.nodes if name not in self._asked_s}
        return [] if tracked is None else [Remember(tracked.lifecycle, tracked.lifecycle.state, "Wake", (text,))]

    def set_clock(self, by_s: float) -> None:
        """Shift all times by `by_s` seconds, by which somebody has set the clock."""
        self._first_seen = {name: (at_s + by_s, whole) for name, (at_s, whole) in self._first_seen.items()}
        self._asked_s = {name: at_s + by_s for name, at_s in self._asked_s.items()}
        self._failures = {name: (count, at_s + by_s) for name, (count, at_s) in self._failures.items()}

    def _see(self, node: Node, now_s: float) -> Node:
        name = node.name
        if node.waking:
            self._asked_s.pop(name, None)
            self._first_seen.setdefault(name, (now_s, name in self._asleep))
        elif name in self._first_seen:
            since_s, whole = self._first_seen.pop(name)
            if node.up:
                self._failures.pop(name, None)
                if whole:
                    self._took_s[name] = max(0.0, now_s - since_s)
            else:  # DOWN after ResumeTimeout, or called off; one that Slurm does not show any more counts as asleep
                self._fail(name, now_s)
        elif name in self._asked_s and not (node.wakeable and now_s < self._asked_s[name] + node.wake_s):
            del self._asked_s[name]
            if not node.up:  # never begun within ResumeTimeout, or DOWN before anybody saw it begin
                self._fail(name, now_s)
        if not node.wakeable:
            return node
        if now_s < self._failures.get(name, (0, -math.inf))[1] and not node.waking:
            return replace(node, wake_s=math.inf)
        expected_s = self._took_s.get(name, node.wake_s)
        began_s = self._first_seen[name][0] if node.waking else self._asked_s.get(name, now_s)
        left_s = max(0.0, expected_s - max(0.0, now_s - began_s))
        # one that was asked for is not asked for again
        return replace(node, waking=node.waking or name in self._asked_s, wake_s=left_s)

    def _fail(self, name: str, now_s: float) -> None:
        count = self._failures.get(name, (0, 0.0))[0] + 1
        self._failures[name] = count, now_s + AGAIN_S * 2.0 ** min(count - 1, _DOUBLINGS)


def find_power_ups(decision: Decision, cluster: Cluster) -> list[Wake]:
    """Return what has to be powered up before the decision can be carried out: nothing is stopped for it before that."""
    nodes = (cluster.by_name[name] for name in decision.node_names if name in cluster.by_name)
    asleep = tuple(node.name for node in nodes if node.wakeable and not node.waking)
    return [Wake(decision.job_id, asleep)] if asleep else []
