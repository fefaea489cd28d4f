"""Jobs whose model is not known (plain PyTorch, vision): Cells from the data-parallel throughput model that their own
reports have fitted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synergyd.records import Cell, Plan, Shape
from synergyd.task.efficiency import batch_points, goodput
from synergyd.task.hardware import GpuFigures
from synergyd.task.plans import Limits, divisors
from synergyd.task.search import uncertainty
from synergyd.task.throughput import Throughput

_UNCERTAINTY = 0.6


def largest_divisor(n: int, limit: int) -> int:
    """Largest divisor of `n` that is at most `limit` (both >= 1)."""
    return max(m for m in divisors(n) if m <= limit)


def cells(
    gpu: GpuFigures,
    shapes: Sequence[Shape],
    limits: Limits,
    asked_gpus: int,
    *,
    noise_scale: float | None,
    smallest_batch: int,
    present_batch: int,
    throughput: Throughput,
    speed: float,
    samples: int,
) -> list[Cell]:
    """The best plan of each shape that dp divides; tp and pp as fixed, else 1.

    Memory is not predicted (memory_bytes 0), so no GPU is ever given more samples at once than at the size asked for:
    a larger share is worked off in several passes.
    """
    result: list[Cell] = []
    tp, pp = limits.tp or 1, limits.pp or 1
    asked_replicas = max(1, asked_gpus // (tp * pp))
    most = limits.micro_batch or max(1, -(-present_batch // asked_replicas))
    for shape in shapes:
        replicas, rest = divmod(shape.gpus, tp * pp)
        unit = replicas * (limits.micro_batch or 1)
        if rest or not replicas:
            continue
        best: Cell | None = None
        batches = {round(float(point) / unit) * unit for point in batch_points(limits.low, limits.high, limits.points)}
        for batch in sorted(b for b in batches if limits.low <= b <= limits.high and b > 0):
            micro = limits.micro_batch or largest_divisor(batch // replicas, most)
            time = throughput.step_s(gpu, shape, replicas, micro, batch // (replicas * micro)) / speed
            rate = np.array([batch / time])
            good, share = goodput(rate, np.array([batch]), noise_scale, smallest_batch)
            if best is None or good[0] > best.goodput:
                plan = Plan(tp, pp, replicas, micro, batch, zero_stage=0)
                sigma = uncertainty(max(_UNCERTAINTY, gpu.uncertainty), samples)
                best = Cell(shape, plan, float(rate[0]), float(share[0]), float(good[0]), time, 0, sigma)
        if best is not None:
            result.append(best)
    return result
