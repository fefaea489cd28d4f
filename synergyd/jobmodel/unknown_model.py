"""Cells of jobs whose model is not known (plain PyTorch, vision).

They come from the data-parallel throughput model that the jobs' own reports have fitted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean

import numpy as np
from synergy_core.exchange import EXACT, Exchange, parse_exchange
from synergy_core.rates import fit_line
from synergy_core.records import Cell, Plan, Shape

from synergyd.jobmodel.model.arrays import Floats, Ints
from synergyd.jobmodel.model.efficiency import batch_points, goodput
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.throughput import ODD, ThroughputFit
from synergyd.jobmodel.plan_limits import PlanLimits, divisors

# Largest over smallest micro-batch of a line: with 3 % of noise a step (throughput.NOISE), the slope of a step that is all computation is
# then known to 6 %
_SPAN = 2.0
# Micro-batches of a free batch are multiples of 8, smaller ones powers of two. Tensor cores' kernels take dimensions that are multiples of
# 8 at half precision and pad others (NVIDIA, "Tensor Core DL Performance Guide", GTC 2019, S9926). The formula does not know that.
_ALIGNED = 8
# ((GPUs, nodes, replicas, micro-batch, passes), log(predicted / measured)) of a step that was measured
_Residual = tuple[tuple[int, int, int, int, int], float]


def largest_divisor(n: int, limit: int) -> int:
    """Return the largest divisor of `n` that is at most `limit` (both >= 1)."""
    return max(m for m in divisors(n) if m <= limit)


def cells(
    gpu: GpuFigures,
    shapes: Sequence[Shape],
    limits: PlanLimits,
    asked_gpus: int,
    *,
    noise_scale: float | None,
    smallest_batch: int,
    present_batch: int,
    fit: ThroughputFit,
    speed: float,
    option: Exchange = EXACT,
) -> list[Cell]:
    """Return the best plan of each shape that dp divides, with tp and pp as fixed, else 1.

    `option` is what its replicas exchange; its effect on what an example is worth is not counted. Memory is not predicted
    (memory_bytes 0), so no GPU is ever given more samples at once than the directive allows, or than at the size asked for if it
    has no limit. A larger share is worked off in several passes.
    """
    tp, pp = limits.tp or 1, limits.pp or 1
    asked_replicas = max(1, asked_gpus // (tp * pp))
    most = limits.micro_batch or limits.max_micro_batch or max(1, -(-present_batch // asked_replicas))
    rows: list[tuple[int, ...]] = []  # index of the shape, GPUs, nodes, replicas, micro-batch, passes
    for index, shape in enumerate(shapes):
        replicas, rest = divmod(shape.gpus, tp * pp)
        if not rest and replicas:
            splits = _all_splits(replicas, most, limits)
            rows += [(index, shape.gpus, shape.nodes, replicas, micro, passes) for micro, passes in splits]
    if not rows:
        return []
    counts = np.array(rows, dtype=np.int64).T
    step_s = expected_steps_s(gpu, counts[1:], fit, option) / speed
    sync_s = np.minimum(fit.model.sync_s(gpu, counts[1:], option) / speed, step_s)
    batch = counts[3] * counts[4] * counts[5]
    rate = batch / step_s
    good, share = goodput(rate, batch, noise_scale, smallest_batch, present_batch)
    best: dict[int, int] = {}
    for row, index in enumerate(counts[0].tolist()):
        if index not in best or good[row] > good[best[index]]:
            best[index] = row
    best_rows = list(best.values())
    sigmas = dict(zip(best_rows, fit.sigmas(gpu, counts[1:, best_rows], option).tolist(), strict=True))
    return [
        Cell(
            shapes[index],
            Plan(tp, pp, int(counts[3][row]), int(counts[4][row]), int(batch[row]), zero_stage=0),
            float(rate[row]),
            float(share[row]),
            float(good[row]),
            float(step_s[row]),
            0,
            sigmas[row],
            float(sync_s[row]),
        )
        for index, row in best.items()
    ]


def expected_step_s(gpu: GpuFigures, shape: Shape, plan: Plan, fit: ThroughputFit) -> float:
    """Return the seconds of a step of `plan`, which has replicas alone, on `shape`, as its Cell would state them."""
    counts = np.array([[shape.gpus, shape.nodes, plan.dp, plan.micro_batch, plan.micro_batches]], dtype=np.int64).T
    return float(expected_steps_s(gpu, counts, fit, parse_exchange(plan.exchange, "plan"))[0])


def expected_steps_s(gpu: GpuFigures, counts: Ints, fit: ThroughputFit, option: Exchange = EXACT) -> Floats:
    """Return the seconds of steps on `gpu` as the fit predicts them and the measurements of their own shapes correct them, (N,).

    `counts`: (5, N) GPUs, nodes, replicas, micro-batch, passes.
    """
    step_s = fit.model.steps_s(gpu, counts, option)
    own = _residuals(fit, gpu.gpu_type, option)
    # an exchange that was not measured must not look fast beside one that was
    residuals = own or _residuals(fit, gpu.gpu_type, EXACT)
    if not residuals:
        return step_s
    corrected_s = _correct_by_shape(step_s, counts, residuals, ODD * fit.misfit)
    return _by_own_line(corrected_s, gpu, counts, fit, option, own) if own else corrected_s


def _residuals(fit: ThroughputFit, gpu_type: str, option: Exchange) -> list[_Residual]:
    return [(key[1:6], off) for key, off in fit.known.items() if key[0] == gpu_type and key[6] == option]


def _correct_by_shape(step_s: Floats, counts: Ints, residuals: Sequence[_Residual], most: float) -> Floats:
    """Return `step_s` with what the formula misses on the shapes that were measured taken off.

    Two shapes of one type may differ by more than the formula can say (a slow link, a size at which nothing overlaps). A step that was
    measured takes what was measured. On its shape, the correction of other micro-batches is interpolated between those measured in as many
    passes; in another number of passes it is the mean of the shape's own. A shape that was not measured has the correction of its
    number of GPUs, interpolated between the sizes that were measured, within `most` either way: one slow measurement is no rule for other
    sizes. Beyond what was measured the nearest counts.
    """
    own: defaultdict[tuple[int, ...], defaultdict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for (gpus, nodes, replicas, micro, passes), off in residuals:
        own[gpus, nodes, replicas][passes][micro] = off
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    means = {shape: fmean(off for offs in some.values() for off in offs.values()) for shape, some in own.items()}
    for (gpus, *_), mean in means.items():
        by_size[gpus].append(mean)
    correction = np.clip(_interpolate({gpus: fmean(some) for gpus, some in by_size.items()}, counts[0]), -most, most)
    for shape, by_passes in own.items():
        on_shape = (counts[:3] == np.array(shape)[:, None]).all(axis=0)
        correction[on_shape] = means[shape]
        for passes, offs in by_passes.items():
            alike = on_shape & (counts[4] == passes)
            correction[alike] = _interpolate(offs, counts[3][alike])
    return np.asarray(step_s * np.exp(-correction))


def _interpolate(known: Mapping[int, float], at: Ints) -> Floats:
    """Return the values of `known` at the keys `at`, (N,), linearly in the key's logarithm."""
    keys = sorted(known)
    return np.interp(np.log(at), np.log(keys), [known[key] for key in keys])


def _by_own_line(
    step_s: Floats,
    gpu: GpuFigures,
    counts: Ints,
    fit: ThroughputFit,
    option: Exchange,
    residuals: Sequence[_Residual],
) -> Floats:
    """Return `step_s` with the line through a shape's own measurements where these tell one.

    What a network or a small batch does to a step is not in the formula, and another batch on the same GPUs costs no restart. In as many
    passes a step is affine in the micro-batch. The line holds from the smallest one that was measured to twice the largest (Pollux's bound
    on what is far from all measurements). `counts`: (5, N) GPUs, nodes, replicas, micro-batch, passes.
    """
    predicted_s = fit.model.steps_s(gpu, np.array([point for point, _ in residuals], dtype=np.int64).T, option)
    measured: defaultdict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for ((gpus, nodes, replicas, micro, passes), off), one_s in zip(residuals, predicted_s.tolist(), strict=True):
        measured[gpus, nodes, replicas, passes][micro] = one_s * math.exp(-off)
    result, alike = step_s, counts[[0, 1, 2, 4]]
    for key, times in measured.items():
        if max(times) < _SPAN * min(times):
            continue
        fixed, slope = fit_line(times)
        own = (alike == np.array(key)[:, None]).all(axis=0)
        own &= (counts[3] >= min(times)) & (counts[3] <= 2 * max(times))
        result = np.where(own, fixed + slope * counts[3], result)
    return result


@lru_cache(maxsize=16_384)
def _all_splits(replicas: int, most: int, limits: PlanLimits) -> tuple[tuple[int, int], ...]:
    """Return the (micro-batch, passes) that are next to any of the batches that are looked at, ascending."""
    points = batch_points(limits.low, limits.high, limits.points)
    return tuple(sorted({split for point in points for split in _splits(float(point), replicas, most, limits)}))


def _splits(batch: float, replicas: int, most: int, limits: PlanLimits) -> list[tuple[int, int]]:
    """Return the (micro-batch, passes) whose batch is in the range and next to `batch`, in as few passes as `most` samples at once allow.

    A fixed batch or micro-batch is kept exactly, and so is the unit of a batch. Other micro-batches are those that kernels are
    made for, or `most`, unless the range has none.
    """
    if limits.batch_unit > 1 and limits.batch_unit % replicas:
        return []
    if limits.micro_batch or limits.low == limits.high or limits.batch_unit > 1:
        unit = math.lcm(replicas * (limits.micro_batch or 1), limits.batch_unit)
        whole = round(batch / unit) * unit
        if not limits.low <= whole <= limits.high or whole <= 0:
            return []
        micro = limits.micro_batch or largest_divisor(whole // replicas, most)
        return [(micro, whole // (replicas * micro))]
    passes = max(1, -(-round(batch) // (replicas * most)))
    share = batch / (replicas * passes)
    for unit in (largest_divisor(_ALIGNED, max(1, int(share))), 1):
        micros = {math.floor(share / unit) * unit, min(most, math.ceil(share / unit) * unit)}
        splits = [(m, passes) for m in micros if m and limits.low <= replicas * m * passes <= limits.high]
        if splits:
            return splits
    return []
