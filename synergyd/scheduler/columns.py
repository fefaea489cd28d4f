"""A job's ways to run as columns of the allocation, those that can't be part of a best answer left out."""

from __future__ import annotations

from dataclasses import dataclass

from synergyd.scheduler.policy import Ask, Terms
from synergyd.scheduler.utility import beyond_growth, change_value, stay_value


@dataclass(frozen=True)
class Column:
    """One Cell taken anew: `gain` is its weighted utility less that of waiting, or of staying in place."""

    cell: int
    gpu_type: str
    nodes: int
    gpus_per_node: int
    gain: float

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def columns(ask: Ask, terms: Terms) -> list[Column]:
    """The changes open to a job, best gain first.

    Left out: starts that are worth no more than waiting, and Cells that another one beats with no more nodes and no
    more GPUs on each (of the same type). Staying in place is not a column.
    """
    if ask.current is not None and ask.discount <= 0:
        return []
    # Of one shape only the Cell with the best goodput counts: found first, since jobs have several Cells a shape.
    best: dict[tuple[str, int, int], int] = {}
    relative, banned = ask.relative, ask.banned
    for index, cell in enumerate(ask.cells):
        shape = cell.shape
        key = shape.gpu_type, shape.nodes, shape.gpus_per_node
        before = best.get(key)
        if (before is None or relative[index] > relative[before]) and index not in banned:
            best[key] = index
    base = stay_value(ask, terms)
    found: dict[str, list[Column]] = {}
    for key, index in best.items():
        if beyond_growth(ask, index, terms):
            continue
        gain = change_value(ask, index, terms) - base
        if ask.current is not None or gain > 0:
            found.setdefault(key[0], []).append(Column(index, *key, gain))
    kept: list[Column] = []
    for own in found.values():
        own.sort(key=lambda c: (-c.gain, c.gpus, c.cell))
        first: list[Column] = []
        for column in own:
            for other in first:
                if other.nodes <= column.nodes and other.gpus_per_node <= column.gpus_per_node:
                    break
            else:
                first.append(column)
        kept += first
    kept.sort(key=lambda c: (-c.gain, c.gpus, c.cell))
    return kept
