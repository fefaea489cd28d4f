"""Free GPUs of the nodes of one GPU type: nodes are taken and given back in time that does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: (node, GPUs on it) of a job
Placement = tuple[tuple[int, int], ...]


class NodePool:
    """Nodes by the number of their free GPUs. Nodes are indices into `free`."""

    def __init__(self, free: Sequence[int]) -> None:
        self.free = list(free)
        self.total = sum(self.free)
        self._levels: list[set[int]] = [set() for _ in range(max(self.free, default=0) + 1)]
        for node, gpus in enumerate(self.free):
            self._levels[gpus].add(node)

    def has_room(self, nodes: int, each: int) -> bool:
        """Return whether `nodes` nodes have `each` free GPUs."""
        if nodes * each > self.total:
            return False
        count = 0
        for level in self._levels[each:]:
            count += len(level)
            if count >= nodes:
                return True
        return False

    def take(self, nodes: int, each: int) -> Placement | None:
        """Take `each` GPUs of `nodes` nodes, of those with the fewest free ones; None where there is no room."""
        if not self.has_room(nodes, each):
            return None
        picks: list[int] = []
        for level in self._levels[each:]:
            for node in level:
                if len(picks) == nodes:
                    break
                picks.append(node)
        placement = tuple((node, each) for node in picks)
        self.change(placement, -1)
        return placement

    def change(self, placement: Iterable[tuple[int, int]], sign: int) -> None:
        """Give the GPUs of a placement back (`sign` 1), or take them (-1)."""
        for node, gpus in placement:
            had = self.free[node]
            now = had + sign * gpus
            self._levels[had].remove(node)
            while now >= len(self._levels):
                self._levels.append(set())
            self._levels[now].add(node)
            self.free[node] = now
            self.total += sign * gpus
