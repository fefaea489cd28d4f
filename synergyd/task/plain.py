"""Jobs whose model is not known (plain PyTorch, vision): data-parallel goodput from a simple throughput model with
priors.

The prior's absolute level means nothing; Profile.speed puts it right after the first report. What it gives at once is
the shape: throughput grows with GPUs, less so over the network or with little work a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synergyd.records import Cell, Plan, Shape
from synergyd.task.efficiency import batch_points, goodput
from synergyd.task.hardware import GpuFigures
from synergyd.task.plans import Limits, divisors
from synergyd.task.search import uncertainty

# Prior: a model of 100 M parameters that needs 25 GFLOP a sample, between ResNet-50 (12) and BERT-base at 128 tokens
# (65).
_PARAMETERS = 1e8
_SAMPLE_FLOPS = 25e9
_EFFICIENCY = 0.3  # of peak, for code that nobody tuned
_LAYERS = 50  # launch floors in one forward and backward pass
_OVERLAP = 3.0  # gamma of Pollux's T_iter: 1 = communication after computation, large = fully hidden
_UNCERTAINTY = 0.6


def step_s(gpu: GpuFigures, shape: Shape, replicas: int, micro_batch: int, passes: int) -> float:
    """Seconds of one step of `passes` micro-batches a replica: (passes-1) T_grad + (T_grad^g + T_sync^g)^(1/g).

    T_grad = a + b * micro_batch and T_sync of a ring all-reduce (Pollux, OSDI 2021, with priors in place of
    fitted constants).
    """
    replica_gpus = max(1, shape.gpus // replicas)
    rate = gpu.peak_tflops * 1e12 * _EFFICIENCY * replica_gpus
    grad = _LAYERS * 2 * gpu.launch_s + micro_batch * _SAMPLE_FLOPS / rate
    sync = 0.0
    if replicas > 1:
        across = shape.nodes > 1
        link = gpu.intra_gbs if not across else min(gpu.intra_gbs, gpu.inter_gbs * shape.gpus_per_node)
        latency = gpu.inter_latency_s if across else gpu.intra_latency_s
        volume = 2 * (replicas - 1) / replicas * 4 * _PARAMETERS
        sync = volume / (link * 1e9 * gpu.link_efficiency) + latency * 2 * (replicas - 1)
    return float((passes - 1) * grad + (grad**_OVERLAP + sync**_OVERLAP) ** (1 / _OVERLAP) + gpu.fixed_s)


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
            time = step_s(gpu, shape, replicas, micro, batch // (replicas * micro)) / speed
            rate = np.array([batch / time])
            good, share = goodput(rate, np.array([batch]), noise_scale, smallest_batch)
            if best is None or good[0] > best.goodput:
                plan = Plan(tp, pp, replicas, micro, batch, zero_stage=0)
                sigma = uncertainty(max(_UNCERTAINTY, gpu.uncertainty), samples)
                best = Cell(shape, plan, float(rate[0]), float(share[0]), float(good[0]), time, 0, sigma)
        if best is not None:
            result.append(best)
    return result
