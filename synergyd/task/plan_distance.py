"""How far a plan is from what was measured: what moves its predicted step time, and one sigma of that.

A Gaussian process (fit/residual.py) on log(measured / predicted): two plans err alike as far as their layers' shapes and the shares
of their parts (tensor, pipeline and data-parallel traffic, optimizer) are alike. What one node has measured says little of the
network that eight need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from synergyd.records import Cell, Measurement, ModelSpec, Plan
from synergyd.task.cell_search import LEAST_UNCERTAINTY
from synergyd.task.fit.residual import (
    HARDWARE,
    JOB,
    NARROW,
    NOISE,
    SHARE,
    WIDE,
    PlanFeatures,
    covariance,
    shape_columns,
)
from synergyd.task.model.arrays import Floats, from_plans
from synergyd.task.model.hardware import GpuFigures
from synergyd.task.model.step_time import step_time

_KERNEL = math.sqrt(HARDWARE**2 + JOB**2 + NARROW**2 + WIDE**2)  # one sigma of the process but for the shares


_OVERHEADS = ("kernel_s", "launch_s", "tp_launch_s", "micro_s", "optimizer_s", "fixed_s")
_OVERHEAD = math.hypot(0.7, 0.4)  # one sigma of the logarithm of all of them together: launch_s's in fit/parameters.py
_MORE = 0.01
_ODD = 3.0  # sigmas beyond which a measurement moves no more


def _features(
    model: ModelSpec, gpu: GpuFigures, plans: Sequence[Plan], gpus_per_node: Sequence[int], scale: float
) -> PlanFeatures:
    arrays = from_plans(plans, gpus_per_node)
    parts = step_time(model, gpu, arrays)
    shares = (parts.tp, parts.bubble + parts.pp, parts.dp, parts.optimizer + parts.fixed)
    zeros = np.zeros(len(plans), dtype=np.int64)
    # the part of a step that is launches and other overhead, which the figures know least of: as many shares as it is less known
    further = {name: getattr(gpu, name) * (1 + _MORE) for name in _OVERHEADS}
    slower = step_time(model, replace(gpu, **further), arrays).total
    overhead = (slower / parts.total - 1) / _MORE * _OVERHEAD / (SHARE * scale)
    shape = shape_columns(arrays, model.seq, model.hidden)
    columns = [*(part / parts.total for part in shares), overhead]
    return PlanFeatures(shape, np.stack(columns, axis=1), zeros, zeros)


@dataclass(frozen=True)
class Corrections:
    """Of each Cell: `moved`, the logarithm of (expected / predicted) step time, and one sigma of the logarithm of
    (measured / expected)."""

    moved: tuple[float, ...]
    sigmas: tuple[float, ...]


@lru_cache(maxsize=4096)
def corrections(
    model: ModelSpec,
    gpu: GpuFigures,
    measured: tuple[Measurement, ...],
    cells: tuple[Cell, ...],
    predicts: GpuFigures | None = None,
    speed: float = 1.0,
) -> Corrections:
    """Of `cells`, all on `gpu`'s type, after what was measured there: what was measured itself is expected again, and what is like it
    is moved along. The sigma is never below 3 %; before the first measurement it is about `gpu.uncertainty`, more where much of a
    step is traffic. The predictions are those of the figures `predicts` (None: `gpu`), divided by `speed`."""
    if not cells:
        return Corrections((), ())
    known = [m for m in measured if m.shape.gpu_type == gpu.gpu_type]
    scale = max(gpu.uncertainty, 1e-3) / _KERNEL
    asked = _features(model, gpu, [c.plan for c in cells], [c.shape.gpus_per_node for c in cells], scale)
    variance: Floats = np.diag(covariance(asked, asked))
    moved = np.zeros(len(cells))
    if known:
        points = _features(model, gpu, [m.plan for m in known], [m.shape.gpus_per_node for m in known], scale)
        cross = covariance(asked, points)
        noise = (NOISE / scale) ** 2 / np.array([max(m.samples, 1) for m in known])
        prior = covariance(points, points)
        inside = np.linalg.inv(prior + np.diag(noise))
        variance = variance - np.sum((cross @ inside) * cross, axis=1)
        arrays = from_plans([m.plan for m in known], [m.shape.gpus_per_node for m in known])
        formula_s = step_time(model, predicts or gpu, arrays).total / speed
        most = _ODD * scale * np.sqrt(np.diag(prior))
        off = np.clip(np.log([m.step_s for m in known]) - np.log(formula_s), -most, most)
        # what is left at a measured plan is its own, and repeats for it
        own = (LEAST_UNCERTAINTY / scale) ** 2
        same = np.array([[(c.plan, c.shape) == (m.plan, m.shape) for m in known] for c in cells])
        moved = (cross + own * same) @ np.linalg.solve(prior + np.diag(noise + own), off)
    left = scale**2 * np.maximum(variance, 0.0) + LEAST_UNCERTAINTY**2
    return Corrections(tuple(moved.tolist()), tuple(np.sqrt(left).tolist()))


def sigmas(
    model: ModelSpec, gpu: GpuFigures, measured: tuple[Measurement, ...], cells: tuple[Cell, ...]
) -> tuple[float, ...]:
    """As of `corrections`."""
    return corrections(model, gpu, measured, cells).sigmas
