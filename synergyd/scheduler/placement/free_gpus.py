"""The nodes' free GPUs, CPUs and memory while jobs are placed one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from synergy_core.node_needs import GPUS_ONLY, NodeNeeds, Room
from synergy_core.records import Shape

from synergyd.scheduler.problem.records import NodeCapacity, NodeFilter

# (0: the job's first node, 1: another one of its own, 2: no own one; others that want it; partitions; free GPUs; index of the node)
_Fit = tuple[int, int, int, int, int]
_Check = Callable[[int], bool]


class FreeGpus:
    """The free GPUs of each node, and what else jobs take of the nodes; best fit.

    Jobs placed biggest GPUs-per-node first always fit where the counts allow it, if those sizes divide each other (1, 2, 4, 8
    and whole nodes do) and CPUs and memory are plenty. With `spanned` not None no job that spans nodes gets a node on which
    another does; `spanned` are those that jobs placed elsewhere span.
    """

    def __init__(self, nodes: Iterable[NodeCapacity], spanned: Collection[str] | None = None) -> None:
        self._spanned: Counter[str] | None = None if spanned is None else Counter(spanned)
        self._nodes = tuple(nodes)
        self._order = {node.name: i for i, node in enumerate(self._nodes)}
        self.free = {node.name: node.free for node in self._nodes}
        self._bad = {node.name: node.penalty for node in self._nodes if node.penalty > 0}
        # keyed by the node's own name: its types of GPUs share it. Negative where a job that stays has more than was to give
        self._room = {node.host or node.name: node.room for node in self._nodes if node.room is not None}
        self._allowed: dict[tuple[str, NodeFilter], list[tuple[str, int, int]]] = {}
        self._open: dict[tuple[str, NodeFilter], list[tuple[str, int, int]]] = {}  # less those that were full lately
        self._counts: dict[tuple[str, NodeFilter, NodeNeeds, int], int] = {}

    def pick(
        self,
        shape: Shape,
        node_filter: NodeFilter,
        own: Collection[str] = (),
        demand: Mapping[str, int] | None = None,
        needs: NodeNeeds = GPUS_ONLY,
        shun: Collection[str] = (),
        first: str = "",
    ) -> tuple[str, ...] | None:
        """Return the names of `shape.nodes` nodes that each have `shape.gpus_per_node` GPUs free, or None.

        Each node also has what a job needs beside the GPUs.

        All are of one partition, the filter's required nodes among them, inside one leaf switch where that is possible. Nodes
        in `own` come first, `first` before all: a running job can give any other node back without a restart. Then come those
        that fewest others want (`demand`), those that fewest partitions share, the tightest fit, the first in order. Nodes of
        `shun` and those with a penalty are taken only where the others are too few.
        """
        if shape.nodes > 1 and "," in node_filter.partition:
            each = [node_filter._replace(partition=p) for p in node_filter.partition.split(",")]
            options = [
                names for f in each if (names := self.pick(shape, f, own, demand, needs, shun, first)) is not None
            ]
            return max(
                options, key=lambda names: (-self._badness(names, shun), sum(n in own for n in names)), default=None
            )
        demand = demand or {}
        free, gpus, has_room = self.free, shape.gpus_per_node, self._check(needs, shape.gpus_per_node)
        nodes = self._usable_nodes(shape.gpu_type, node_filter)
        fit = [
            (0 if name == first else 1 if name in own else 2, demand.get(name, 0), shared, free[name], i)
            for name, shared, i in nodes
            if free[name] >= gpus and self._may_span(name, shape) and (has_room is None or has_room(i))
        ]
        if 2 * len(fit) < len(nodes):
            # Full nodes need not be looked at again until GPUs are given back.
            self._open[shape.gpu_type, node_filter] = [entry for entry in nodes if free[entry[0]] > 0]
        if len(fit) < shape.nodes:
            return None
        must: list[_Fit] = []
        if node_filter.required_nodes:
            must = [entry for entry in fit if self._host(entry[-1]) in node_filter.required_nodes]
            if not len(node_filter.required_nodes) == len(must) <= shape.nodes:
                return None
            fit = [entry for entry in fit if entry not in must]
        if self._bad or shun:
            fit = self._better(fit, shape.nodes - len(must), shun)
        if shape.nodes == 1:
            return (self._nodes[min(must or fit)[-1]].name,)
        fit.sort()
        indices = sorted(i for *_, i in [*must, *self._choose_near_nodes(fit, shape.nodes - len(must))])
        return tuple(self._nodes[i].name for i in indices)

    def _better(self, fit: list[_Fit], nodes: int, shun: Collection[str]) -> list[_Fit]:
        """Return the nodes of `fit` that are no bad nodes, with the least bad ones added if the others are fewer than `nodes`."""
        bad = {entry: badness for entry in fit if (badness := self._badness((self._nodes[entry[-1]].name,), shun))}
        good = [entry for entry in fit if entry not in bad]
        return good + sorted(bad, key=lambda entry: (bad[entry], entry))[: max(0, nodes - len(good))]

    def better(self, names: list[str], nodes: int, shun: Collection[str]) -> list[str]:
        """Return the nodes of `names` that are no bad nodes, or all of them if those are fewer than `nodes`."""
        good = [name for name in names if not self._badness((name,), shun)] if self._bad or shun else names
        return good if len(good) >= nodes else names

    def _badness(self, names: Iterable[str], shun: Collection[str]) -> float:
        return sum(self._bad.get(name, 0.0) + (name.partition(":")[0] in shun) for name in names)

    def _host(self, i: int) -> str:
        return self._nodes[i].host or self._nodes[i].name

    def _check(self, needs: NodeNeeds, gpus: int) -> _Check | None:
        """Return a check of whether a node (by index) has what a job needs beside so many GPUs, or None if every node has."""
        if needs is GPUS_ONLY or not self._room or needs == GPUS_ONLY:
            return None
        room_by_node_kind: dict[tuple[int, int], Room] = {}

        def has_room(i: int) -> bool:
            node = self._nodes[i]
            if node.room is None:
                return True
            room = self._room[node.host or node.name]
            if needs.whole_nodes and not (
                node.is_untouched and room == node.room and self.free[node.name] == node.free
            ):
                return False
            key = node.threads, node.total.memory_mib if needs.whole_memory else 0
            if key not in room_by_node_kind:
                room_by_node_kind[key] = needs.room_for(gpus, *key)
            return room.has_room_for(room_by_node_kind[key])

        return has_room

    def _choose_near_nodes(self, fit: list[_Fit], nodes: int) -> list[_Fit]:
        """Return the first `nodes` of `fit` inside one leaf switch, else on few.

        A leaf that has enough comes first, then the one with most of the job's own nodes, then the tightest that has enough or
        the one with most.
        """
        leaves: dict[str, list[_Fit]] = {}
        for entry in fit:
            leaves.setdefault(self._nodes[entry[-1]].leaf, []).append(entry)
        picks: list[_Fit] = []
        while len(leaves) > 1 and len(picks) < nodes:
            need = nodes - len(picks)

            def rank(leaf: str, need: int = need) -> tuple[bool, int, int, str]:
                some = leaves[leaf]
                own = sum(entry[0] < 2 for entry in some)
                enough = len(some) >= need
                return not enough, -min(own, need), len(some) if enough else -len(some), leaf

            picks += leaves.pop(min(leaves, key=rank))
        if len(picks) < nodes and leaves:
            picks += next(iter(leaves.values()))
        return picks[:nodes]

    def count(
        self,
        shape: Shape,
        node_filter: NodeFilter,
        own: Collection[str] = (),
        back: int = 0,
        needs: NodeNeeds = GPUS_ONLY,
    ) -> int:
        """Return the number of nodes that have the shape's GPUs free and what a job needs beside them.

        The count is taken with `back` GPUs on each node of `own` given back with what belongs to them. If it is at least
        `shape.nodes`, `pick` would find nodes.
        """
        if shape.nodes > 1 and "," in node_filter.partition:
            each = [node_filter._replace(partition=p) for p in node_filter.partition.split(",")]
            return max(self.count(shape, f, own, back, needs) for f in each)
        if len(node_filter.required_nodes) > shape.nodes:
            return 0
        free, gpus, has_room = self.free, shape.gpus_per_node, self._check(needs, shape.gpus_per_node)
        key = shape.gpu_type, node_filter, needs, gpus
        if key not in self._counts:
            nodes = self._usable_nodes(shape.gpu_type, node_filter)
            fit = [i for name, _, i in nodes if free[name] >= gpus and (has_room is None or has_room(i))]
            there = {self._host(i) for i in fit} if node_filter.required_nodes else set()
            self._counts[key] = len(fit) if there.union(own).issuperset(node_filter.required_nodes) else 0
        fitting = self._counts[key]
        for name in own:
            i = self._order.get(name)
            if i is None or (free[name] >= gpus and (has_room is None or has_room(i))):
                continue
            node = self._nodes[i]
            if (
                node.gpu_type == shape.gpu_type
                and node.admits(node_filter)
                and min(node.free, free[name] + back) >= gpus
            ):
                fitting += has_room is None or self._room_after_return(node, back, needs).has_room_for(
                    self._room_needed(node, gpus, needs)
                )
        return fitting

    def _room_needed(self, node: NodeCapacity, gpus: int, needs: NodeNeeds) -> Room:
        whole = node.room if needs.whole_nodes else None
        return whole or needs.room_for(gpus, node.threads, node.total.memory_mib)

    def _room_after_return(self, node: NodeCapacity, back: int, needs: NodeNeeds) -> Room:
        """Return the room that there would be with what belongs to `back` of the job's GPUs given back."""
        if node.room is None:
            return self._room_needed(node, back, needs)
        return self._room[node.host or node.name].plus(self._room_needed(node, back, needs))

    def fitting(self, shape: Shape, node_filter: NodeFilter, needs: NodeNeeds = GPUS_ONLY) -> list[str]:
        """Return the names of the nodes that could each take one node's part of the shape."""
        free, gpus, has_room = self.free, shape.gpus_per_node, self._check(needs, shape.gpus_per_node)
        nodes = self._usable_nodes(shape.gpu_type, node_filter)
        return [
            name
            for name, _, i in nodes
            if free[name] >= gpus and self._may_span(name, shape) and (has_room is None or has_room(i))
        ]

    def format_other_needs(self, needs: NodeNeeds) -> str:
        """Return what is asked beside GPUs, for a sentence on why no node was found."""
        return (
            "" if self._check(needs, 0) is None else ", with the CPUs, memory and the like that it asks for beside them"
        )

    def _may_span(self, name: str, shape: Shape) -> bool:
        return self._spanned is None or shape.nodes == 1 or not self._spanned[name]

    def _usable_nodes(self, gpu_type: str, node_filter: NodeFilter) -> list[tuple[str, int, int]]:
        """Return (name, partitions that share it, place in the order) of the nodes of a type that a job with this filter may use.

        Full nodes may be left out.
        """
        key = gpu_type, node_filter
        if key not in self._allowed:
            self._allowed[key] = [
                (node.name, len(node.partitions), i)
                for i, node in enumerate(self._nodes)
                if node.gpu_type == gpu_type and node.admits(node_filter)
            ]
        return self._open.get(key, self._allowed[key])

    def take(self, names: Iterable[str], gpus: int, needs: NodeNeeds = GPUS_ONLY) -> None:
        """Take `gpus` on each node, and what belongs to them.

        A node that has fewer (it went down under its job) is left with none.
        """
        self._counts.clear()
        names = tuple(names)
        if self._spanned is not None and len(names) > 1:
            self._spanned.update(names)
        for name in names:
            if name in self.free:
                self.free[name] = 0 if needs.whole_nodes else max(0, self.free[name] - gpus)
        self._change_room(names, gpus, needs, -1)

    def give(self, names: Iterable[str], gpus: int, needs: NodeNeeds = GPUS_ONLY) -> None:
        """Give `gpus` back on each node that can hand out GPUs, and what belongs to them."""
        self._open.clear()
        self._counts.clear()
        names = tuple(names)
        if self._spanned is not None and len(names) > 1:
            self._spanned.subtract(names)
        for name in names:
            if name in self.free:
                most = self._nodes[self._order[name]].free
                self.free[name] = most if needs.whole_nodes else min(most, self.free[name] + gpus)
        self._change_room(names, gpus, needs, 1)

    def _change_room(self, names: Iterable[str], gpus: int, needs: NodeNeeds, sign: int) -> None:
        if not self._room or needs is GPUS_ONLY or needs == GPUS_ONLY:
            return
        for name in names:
            node = self._nodes[self._order[name]] if name in self._order else None
            if node is not None and node.room is not None:
                host = node.host or name
                self._room[host] = self._room[host].plus(self._room_needed(node, gpus, needs), sign)
