"""The nodes' free GPUs while jobs are placed one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from synergyd.records import Shape
from synergyd.scheduler.problem.records import NodeCapacity, NodeFilter

_Fit = tuple[
    bool, int, int, int, int
]  # (not the job's own, others that want it, partitions, free GPUs, index of the node)


class FreeGpus:
    """Free GPUs per node; best fit. Jobs placed biggest GPUs-per-node first always fit where the counts allow it,
    if those sizes divide each other (1, 2, 4, 8 and whole nodes do). With `spanned` not None no job that spans
    nodes gets a node on which another does; `spanned` are those that jobs placed elsewhere span."""

    def __init__(self, nodes: Iterable[NodeCapacity], spanned: Collection[str] | None = None) -> None:
        self._spanned: Counter[str] | None = None if spanned is None else Counter(spanned)
        self._nodes = tuple(nodes)
        self._order = {node.name: i for i, node in enumerate(self._nodes)}
        self.free = {node.name: node.free for node in self._nodes}
        self._open: dict[tuple[str, NodeFilter], list[tuple[str, int, int]]] = {}
        self._counts: dict[tuple[str, NodeFilter, int], int] = {}

    def pick(
        self,
        shape: Shape,
        node_filter: NodeFilter,
        own: Collection[str] = (),
        wanted: Mapping[str, int] | None = None,
    ) -> tuple[str, ...] | None:
        """Names of `shape.nodes` nodes that each have `shape.gpus_per_node` GPUs free, or None.

        Inside one leaf switch where that is possible. Nodes in `own` come first, then those that fewest others want
        (`wanted`), those that fewest partitions share, the tightest fit, the first in order.
        """
        wanted = wanted or {}
        free, gpus = self.free, shape.gpus_per_node
        nodes = self._open_to(shape.gpu_type, node_filter)
        fit = [
            (name not in own, wanted.get(name, 0), shared, free[name], i)
            for name, shared, i in nodes
            if free[name] >= gpus and self._may_span(name, shape)
        ]
        if 2 * len(fit) < len(nodes):
            # Full nodes need not be looked at again until GPUs are given back.
            self._open[shape.gpu_type, node_filter] = [entry for entry in nodes if free[entry[0]] > 0]
        if len(fit) < shape.nodes:
            return None
        if shape.nodes == 1:
            return (self._nodes[min(fit)[-1]].name,)
        fit.sort()
        chosen = sorted(i for *_, i in self._near(fit, shape.nodes))
        return tuple(self._nodes[i].name for i in chosen)

    def _near(self, fit: list[_Fit], nodes: int) -> list[_Fit]:
        """The first `nodes` of `fit` inside one leaf switch, else on few: a leaf that has enough comes first, then the one with
        most of the job's own nodes, then the tightest that has enough or the one with most."""
        leaves: dict[str, list[_Fit]] = {}
        for entry in fit:
            leaves.setdefault(self._nodes[entry[-1]].leaf, []).append(entry)
        chosen: list[_Fit] = []
        while len(leaves) > 1 and len(chosen) < nodes:
            need = nodes - len(chosen)

            def rank(leaf: str, need: int = need) -> tuple[bool, int, int, str]:
                some = leaves[leaf]
                own = sum(not entry[0] for entry in some)
                enough = len(some) >= need
                return not enough, -min(own, need), len(some) if enough else -len(some), leaf

            chosen += leaves.pop(min(leaves, key=rank))
        if len(chosen) < nodes and leaves:
            chosen += next(iter(leaves.values()))
        return chosen[:nodes]

    def count(self, shape: Shape, node_filter: NodeFilter, own: Collection[str] = (), back: int = 0) -> int:
        """Nodes that have the shape's GPUs free, `back` GPUs on each node of `own` given back. At least `shape.nodes` of
        them: `pick` would find nodes."""
        free, gpus = self.free, shape.gpus_per_node
        key = shape.gpu_type, node_filter, gpus
        if key not in self._counts:
            nodes = self._open_to(shape.gpu_type, node_filter)
            self._counts[key] = sum(free[name] >= gpus for name, _, _ in nodes)
        fitting = self._counts[key]
        for name in own:
            if name in free and free[name] < gpus:
                node = self._nodes[self._order[name]]
                if node.gpu_type == shape.gpu_type and node.admits(node_filter):
                    fitting += min(node.free, free[name] + back) >= gpus
        return fitting

    def fitting(self, shape: Shape, node_filter: NodeFilter) -> list[str]:
        """Names of the nodes that could each take one node's part of the shape."""
        free, gpus = self.free, shape.gpus_per_node
        nodes = self._open_to(shape.gpu_type, node_filter)
        return [name for name, _, _ in nodes if free[name] >= gpus and self._may_span(name, shape)]

    def _may_span(self, name: str, shape: Shape) -> bool:
        return self._spanned is None or shape.nodes == 1 or not self._spanned[name]

    def _open_to(self, gpu_type: str, node_filter: NodeFilter) -> list[tuple[str, int, int]]:
        """(name, partitions that share it, place in the order) of the nodes of a type that a job with this filter may use."""
        key = gpu_type, node_filter
        if key not in self._open:
            self._open[key] = [
                (node.name, len(node.partitions), i)
                for i, node in enumerate(self._nodes)
                if node.gpu_type == gpu_type and node.admits(node_filter)
            ]
        return self._open[key]

    def take(self, names: Iterable[str], gpus: int) -> None:
        """Takes `gpus` on each node. A node that has fewer (it went down under its job) is left with none."""
        self._counts.clear()
        names = tuple(names)
        if self._spanned is not None and len(names) > 1:
            self._spanned.update(names)
        for name in names:
            if name in self.free:
                self.free[name] = max(0, self.free[name] - gpus)

    def give(self, names: Iterable[str], gpus: int) -> None:
        """Gives `gpus` back on each node that can hand out GPUs."""
        self._open.clear()
        self._counts.clear()
        names = tuple(names)
        if self._spanned is not None and len(names) > 1:
            self._spanned.subtract(names)
        for name in names:
            if name in self.free:
                self.free[name] = min(self._nodes[self._order[name]].free, self.free[name] + gpus)
