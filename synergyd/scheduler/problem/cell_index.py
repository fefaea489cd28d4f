"""A job's Cells with the tables that every epoch needs of them, computed once for as long as the Cells are the same."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray
from synergy_core.records import Cell, Shape

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Key = tuple[str, int, int]  # GPU type, nodes, GPUs a node
# a size that was measured is surer than this (its steps vary by 3 %), a prior is not (20 % and more)
MEASURED = 0.1


class CellIndex(tuple[Cell, ...]):
    """The Cells of one job: a tuple that caches what is derived from it. Equal tuples are equal indexes."""

    @classmethod
    def build(cls, cells: Sequence[Cell]) -> CellIndex:
        return cells if isinstance(cells, CellIndex) else cls(cells)

    @cached_property
    def by_shape(self) -> dict[Key, list[int]]:
        """Return the indices of the Cells of each shape, best goodput first."""
        indices: dict[Key, list[int]] = {}
        for i, cell in enumerate(self):
            shape = cell.shape
            indices.setdefault((shape.gpu_type, shape.nodes, shape.gpus_per_node), []).append(i)
        for own in indices.values():
            if len(own) > 1:
                own.sort(key=lambda i: -self[i].goodput)
        return indices

    @cached_property
    def by_gpus(self) -> dict[tuple[str, int], int]:
        """Return the index of the best Cell by (GPU type, GPUs), and by ("", GPUs) of any type; the first of equals."""
        best: dict[tuple[str, int], int] = {}
        for (gpu_type, nodes, each), own in self.by_shape.items():
            for key in ((gpu_type, nodes * each), ("", nodes * each)):
                before = best.get(key)
                if before is None or (self[own[0]].goodput, -own[0]) > (self[before].goodput, -before):
                    best[key] = own[0]
        return best

    @cached_property
    def smallest(self) -> int:
        """Return the index of the Cell with the fewest GPUs; of several, the one with the best goodput."""
        return self.by_gpus["", min(gpus for _, gpus in self.by_gpus)] if self else 0

    @cached_property
    def least(self) -> int:
        """Return the index of the Cell with the least goodput."""
        return min(range(len(self)), key=lambda i: self[i].goodput, default=0)

    @cached_property
    def best_goodput(self) -> float:
        return max((cell.goodput for cell in self), default=0.0)

    @cached_property
    def _falling(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return all Cells, best goodput first, and their goodputs times -1."""
        order = tuple(sorted(range(len(self)), key=lambda i: (-self[i].goodput, i)))
        return order, tuple(-self[i].goodput for i in order)

    def indices_above(self, goodput: float) -> frozenset[int]:
        """Return the indices of the Cells with more goodput."""
        order, falling = self._falling
        return frozenset(order[: bisect_left(falling, -goodput)])

    @cached_property
    def _unmeasured_by_gpus(self) -> dict[int, frozenset[int]]:
        return {}

    def unmeasured_indices_above(self, gpus: int) -> frozenset[int]:
        """Return the indices of the Cells with more GPUs whose speed was not measured."""
        if gpus not in self._unmeasured_by_gpus:
            some = (i for i, c in enumerate(self) if c.uncertainty > MEASURED and c.shape.gpus > gpus)
            self._unmeasured_by_gpus[gpus] = frozenset(some)
        return self._unmeasured_by_gpus[gpus]

    @cached_property
    def sound(self) -> bool:
        """Return whether every goodput is a positive number."""
        return all(0.0 < cell.goodput < math.inf for cell in self)

    @cached_property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key[0] for key in self.by_shape))

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Return the fewest and the most GPUs of any Cell."""
        counts = [nodes * each for _, nodes, each in self.by_shape]
        return (min(counts), max(counts)) if counts else (0, 0)

    @cached_property
    def front(self) -> CellFront:
        """Return the Cells that can be part of a best answer.

        These are the best of each shape, without those that another one beats with no more nodes and no more GPUs on each (of
        the same type). Value rises with goodput under every objective, so the front is the same for all of them.
        """
        rows: list[tuple[int, int, int, int]] = []  # index, type's number, nodes, GPUs a node
        for number, gpu_type in enumerate(self.types):
            ranked = [
                (self[i[0]].goodput, nodes, each, i[0])
                for (t, nodes, each), i in self.by_shape.items()
                if t == gpu_type
            ]
            ranked.sort(key=lambda entry: (-entry[0], entry[1] * entry[2], entry[3]))
            first: list[tuple[int, int]] = []
            for _, nodes, each, index in ranked:
                for n, e in first:
                    if n <= nodes and e <= each:
                        break
                else:
                    first.append((nodes, each))
                    rows.append((index, number, nodes, each))
        table = np.array(rows, dtype=np.intp).reshape(-1, 4)
        goodput = np.array([self[i].goodput for i, *_ in rows], dtype=np.float64)
        return CellFront(table[:, 0], table[:, 1], table[:, 2], table[:, 3], goodput)

    @cached_property
    def best_of_each_shape(self) -> tuple[int, ...]:
        """Return the best Cell of each shape, best goodput first."""
        best = [own[0] for own in self.by_shape.values()]
        return tuple(sorted(best, key=lambda i: (-self[i].goodput, i)))

    @cached_property
    def by_size(self) -> dict[str, list[tuple[int, float]]]:
        """Return (GPUs, best goodput with at most so many) of each type, ascending."""
        sizes: dict[str, list[tuple[int, float]]] = {}
        for gpu_type, gpus in sorted(key for key in self.by_gpus if key[0]):
            own = sizes.setdefault(gpu_type, [])
            own.append((gpus, max(own[-1][1] if own else 0.0, self[self.by_gpus[gpu_type, gpus]].goodput)))
        return sizes

    def find_asked_size(self, asked_shape: Shape) -> int | None:
        """Return the index of the best Cell of the size asked for: the same shape, else as many GPUs of that type, else of any type.

        A shape without a GPU type (`--gres=gpu:4`) matches every type.
        """
        kind, gpus = asked_shape.gpu_type, asked_shape.gpus
        if kind:
            same = self.by_shape.get((kind, asked_shape.nodes, asked_shape.gpus_per_node))
        else:
            every = [self.by_shape.get((t, asked_shape.nodes, asked_shape.gpus_per_node), [])[:1] for t in self.types]
            same = sorted((i for own in every for i in own), key=lambda i: (-self[i].goodput, i))
        if same:
            return same[0]
        count = self.by_gpus.get((kind, gpus)) if kind else None
        return count if count is not None else self.by_gpus.get(("", gpus))


@dataclass(frozen=True)
class CellFront:
    """The best Cells of a job.

    `index` [n] into the Cells, `type` [n] into CellIndex.types, `nodes`, `each` (GPUs a node) and `goodput` [n].
    """

    index: Ints
    type: Ints
    nodes: Ints
    each: Ints
    goodput: Floats


class RelativeGoodput(Sequence[float]):
    """Each Cell's goodput over `base` (sequences/s), computed on access."""

    def __init__(self, cells: Sequence[Cell], base: float) -> None:
        self._cells, self.base = cells, base

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...
    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return self._cells[index].goodput / self.base

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[float]:
        return (cell.goodput / self.base for cell in self._cells)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
