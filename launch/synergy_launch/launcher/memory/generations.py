"""Which memory checkpoints of a job are held where, and which one a run goes on from after a failure. Pure.

The part of each node lies on it and on the next node of the run. A memory checkpoint counts when every part is held so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from synergy_launch.agent.memory_folder import KEPT

#: runs that go on from one memory checkpoint: a second one fails again before its own first checkpoint, perhaps for what it was given
MOST_OFFERS = 2


@dataclass(frozen=True, kw_only=True, order=True)
class Generation:
    """The memory checkpoint that the job's run `run` took of `step`. `nodes`: those of the run, in the order of their ranks."""

    step: int
    run: int
    nodes: tuple[str, ...]

    def holders(self, node: str) -> tuple[str, str]:
        """Return the two nodes that hold the part of `node`."""
        return node, next_node(self.nodes, node)


def next_node(nodes: Sequence[str], node: str) -> str:
    """Return the node that holds a second copy of what `node` writes. It is `node` itself where there is no other."""
    return nodes[(nodes.index(node) + 1) % len(nodes)]


@dataclass
class Ledger:
    """The memory checkpoints that count, oldest first, and the one that does not count yet, with the nodes whose parts are held twice."""

    complete: tuple[Generation, ...] = ()
    _pending: Generation | None = None
    _nodes: set[str] = field(default_factory=set)
    _offers: list[Generation] = field(default_factory=list)

    @property
    def offerable(self) -> tuple[Generation, ...]:
        """Return the memory checkpoints that a run may go on from: those that count, without those that MOST_OFFERS runs had already."""
        return tuple(each for each in self.complete if self._offers.count(each) < MOST_OFFERS)

    def note_offer(self, generation: Generation) -> None:
        """Note that a run goes on from `generation`."""
        self._offers = [each for each in self._offers if each in self.complete] + [generation]

    def add_part(self, generation: Generation, node: str) -> bool:
        """Note that the part of `node` is held twice. Return whether the generation counts from now on.

        A part of an older generation than the latest says nothing any more.
        """
        if node not in generation.nodes or generation in self.complete:
            return False
        if self._pending != generation:
            if self._pending is not None and self._pending > generation and self._pending.run >= generation.run:
                return False
            self._pending, self._nodes = generation, set()
        self._nodes.add(node)
        if self._nodes != set(generation.nodes):
            return False
        self.complete = (*self.complete, generation)[-KEPT:]
        self._pending, self._nodes = None, set()
        return True

    def discard(self) -> None:
        """Forget all: the run goes back on purpose."""
        self.complete, self._pending, self._nodes = (), None, set()


def choose_generation(
    complete: Collection[Generation], present: Collection[str], after_step: int
) -> tuple[Generation, Mapping[str, tuple[str, ...]]] | None:
    """Return the latest generation of which a node of `present` holds each part, and by part the nodes that hold it.

    Returns None if there is none of a later step than `after_step`, that of the last checkpoint on disk.
    """
    for generation in sorted(complete, reverse=True):
        sources = {node: tuple(n for n in generation.holders(node) if n in present) for node in generation.nodes}
        if generation.step > after_step and all(sources.values()):
            return generation, sources
    return None


def is_worth_keeping(key: tuple[int, int], acknowledged: Sequence[tuple[int, int]]) -> bool:
    """Return whether the part of a memory checkpoint, (run, step), may be needed yet. `acknowledged`: those that count, oldest first."""
    return key in acknowledged[-KEPT:] or not acknowledged or key > acknowledged[-1]
