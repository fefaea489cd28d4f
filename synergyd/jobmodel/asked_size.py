"""The size that a user asked for, as evidence of how the job scales: sizes up to it that nobody has measured count as at least linear.

A prior may take a network to be slow that is not, and a job that never leaves one GPU never learns it. A user who asks for 8 GPUs knows
something of the job. So until it has been measured on as many, its goodput there is at least in proportion to that on fewer. Where all
measurements are of one size, which can't tell computation from traffic, no smaller size is better than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synergy_core.records import Cell, Measurement


def at_least_linear(cells: Sequence[Cell], asked_gpus: int, measured: Sequence[Measurement]) -> list[Cell]:
    """Return `cells`, all of one GPU type, with the goodput of sizes that were not measured raised to at least linear scaling.

    Cells of more GPUs than the job, or runs like it, were measured on there, and of at most `asked_gpus`, get at least the
    goodput per GPU of the best smaller size that was measured (of any smaller size, before the first measurement). Larger sizes
    keep their ratio to the size asked for. Cells of the same size keep their ratios to each other. Sizes below the only measured
    one, if that is at most `asked_gpus`, have at most its goodput.
    """
    best: dict[int, float] = {}
    for cell in cells:
        best[cell.shape.gpus] = max(best.get(cell.shape.gpus, 0.0), cell.goodput)
    types = {cell.shape.gpu_type for cell in cells}
    sizes = {m.shape.gpus for m in measured if m.shape.gpu_type in types}
    largest_measured_gpus = max(sizes, default=0)
    below = max((gpus for gpus in best if gpus <= largest_measured_gpus), default=0)
    rate = best[below] / below if below else 0.0  # goodput a GPU
    factor, last = dict.fromkeys(best, 1.0), 1.0
    for gpus in sorted(size for size in best if size > largest_measured_gpus and best[size] > 0):
        if gpus <= asked_gpus:
            rate = max(rate, best[gpus] / gpus)
            last = rate * gpus / best[gpus]
        factor[gpus] = last
    if len(sizes) == 1 and largest_measured_gpus <= asked_gpus and best.get(largest_measured_gpus):
        factor |= {
            size: best[largest_measured_gpus] / value
            for size, value in best.items()
            if size < largest_measured_gpus and value > best[largest_measured_gpus]
        }
    return [cell if factor[cell.shape.gpus] == 1.0 else _scale_cell(cell, factor[cell.shape.gpus]) for cell in cells]


def _scale_cell(cell: Cell, factor: float) -> Cell:
    return replace(
        cell,
        throughput=cell.throughput * factor,
        goodput=cell.goodput * factor,
        step_s=cell.step_s / factor,
        sync_s=cell.sync_s / factor,
    )
