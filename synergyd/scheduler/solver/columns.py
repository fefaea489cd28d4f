"""A job's ways to run as columns of the allocation, those that can't be part of a best answer left out."""

from __future__ import annotations

from dataclasses import dataclass

from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import JobRequest, Objective
from synergyd.scheduler.problem.utility import change_value, is_growth_refused, stay_value


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


def columns(job: JobRequest, terms: Objective) -> list[Column]:
    """Return the changes open to a job, best gain first.

    Left out: starts whose value is not above that of waiting, and Cells that another one beats with no more nodes and no
    more GPUs on each (of the same type). Staying in place is not a column.
    """
    if job.current is not None and job.discount <= 0:
        return []
    cells = CellIndex.build(job.cells)
    if job.banned_cells:
        allowed = [i for i in range(len(cells)) if i not in job.banned_cells]
        part = CellIndex(cells[i] for i in allowed)
        front, index = part.front, [allowed[i] for i in part.front.index.tolist()]
    else:
        front, index = cells.front, cells.front.index.tolist()
    base = stay_value(job, terms)
    result = []
    for at, cell in enumerate(index):
        if is_growth_refused(job, cell, terms):
            continue
        gain = change_value(job, cell, terms) - base
        if job.current is not None or gain > 0:
            shape = cells[cell].shape
            result.append(Column(cell, shape.gpu_type, int(front.nodes[at]), int(front.each[at]), gain))
    result.sort(key=lambda c: (-c.gain, c.gpus, c.cell))
    return result
