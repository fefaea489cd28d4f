"""A job's ways to run as columns of the allocation, those that can't be part of a best answer left out."""

from __future__ import annotations

from dataclasses import dataclass

from synergyd.scheduler.policy import Ask, Terms
from synergyd.scheduler.utility import change_value, may_change_to, stay_value


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
    base = stay_value(ask, terms)
    found = []
    for index, cell in enumerate(ask.cells):
        if not may_change_to(ask, index, terms):
            continue
        gain = change_value(ask, index, terms) - base
        if ask.current is None and gain <= 0:
            continue
        found.append(Column(index, cell.shape.gpu_type, cell.shape.nodes, cell.shape.gpus_per_node, gain))
    found.sort(key=lambda c: (-c.gain, c.gpus, c.cell))
    kept: list[Column] = []
    for column in found:
        if not any(_beats(other, column) for other in kept):
            kept.append(column)
    return kept


def _beats(other: Column, column: Column) -> bool:
    """`other`, whose gain is no less, fits wherever `column` fits."""
    return (
        other.gpu_type == column.gpu_type
        and other.nodes <= column.nodes
        and other.gpus_per_node <= column.gpus_per_node
    )
