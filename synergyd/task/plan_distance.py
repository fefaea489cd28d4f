"""How far a plan is from what was measured: one sigma of its predicted step time.

A Gaussian process (fit/residual.py) on log(measured / predicted): two plans err alike as far as their layers' shapes and the shares
of their parts (tensor, pipeline and data-parallel traffic, optimizer) are alike. What one node has measured says little of the
network that eight need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
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


@lru_cache(maxsize=4096)
def sigmas(
    model: ModelSpec, gpu: GpuFigures, measured: tuple[Measurement, ...], cells: tuple[Cell, ...]
) -> tuple[float, ...]:
    """Of each of `cells`, all on `gpu`'s type, after what was measured there; never below 3 %. Before the first measurement
    about `gpu.uncertainty`, more where much of a step is traffic."""
    if not cells:
        return ()
    known = [m for m in measured if m.shape.gpu_type == gpu.gpu_type]
    scale = max(gpu.uncertainty, 1e-3) / _KERNEL
    asked = _features(model, gpu, [c.plan for c in cells], [c.shape.gpus_per_node for c in cells], scale)
    variance: Floats = np.diag(covariance(asked, asked))
    if known:
        points = _features(model, gpu, [m.plan for m in known], [m.shape.gpus_per_node for m in known], scale)
        cross = covariance(asked, points)
        noise = (NOISE / scale) ** 2 / np.array([max(m.samples, 1) for m in known])
        inside = np.linalg.inv(covariance(points, points) + np.diag(noise))
        variance = variance - np.sum((cross @ inside) * cross, axis=1)
    left = scale**2 * np.maximum(variance, 0.0) + LEAST_UNCERTAINTY**2
    return tuple(float(v) for v in np.sqrt(left))
