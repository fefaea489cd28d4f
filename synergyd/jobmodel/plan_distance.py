"""The distance of a plan from what was measured: one sigma of its predicted step time.

A Gaussian process (fit/residual.py) on log(measured / predicted): two plans err alike as far as their layers' shapes and the shares
of their parts (tensor, pipeline and data-parallel traffic, optimizer) are alike. Measurements on one node say little of the
network that eight need, and until one says what it is (`GpuFigures.inter_uncertainty`), plans that use it are less sure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from synergy_core.records import Cell, Measurement, ModelSpec, Plan

from synergyd.jobmodel.cell_search import LEAST_UNCERTAINTY
from synergyd.jobmodel.fit.residual import (
    JOB,
    NARROW,
    WIDE,
    PlanFeatures,
    covariance,
    shape_columns,
)
from synergyd.jobmodel.model.arrays import Floats, from_plans
from synergyd.jobmodel.model.hardware import KNOWN_NETWORK, GpuFigures
from synergyd.jobmodel.model.step_time import step_time
from synergyd.jobmodel.model.throughput import NOISE

SHARE = 0.10  # one sigma of a part's time, relative
_KERNEL = math.sqrt(JOB**2 + NARROW**2 + WIDE**2)  # one sigma of the process without the shares


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
    # and the network, as far as nobody has said what it is
    wider = step_time(model, replace(gpu, inter_efficiency=gpu.inter_efficiency * (1 + _MORE)), arrays).total
    network = (wider / parts.total - 1) / _MORE * gpu.inter_uncertainty / (SHARE * scale)
    columns = [*(part / parts.total for part in shares), overhead, network]
    return PlanFeatures(shape, SHARE * np.stack(columns, axis=1), zeros, zeros)


@lru_cache(maxsize=4096)
def sigmas(
    model: ModelSpec, gpu: GpuFigures, measured: tuple[Measurement, ...], cells: tuple[Cell, ...]
) -> tuple[float, ...]:
    """Return one sigma of each of `cells`, all on `gpu`'s type, after what was measured there.

    It is never below 3 %. Before the first measurement it is about `gpu.uncertainty`, more where much of a step is traffic.
    """
    if not cells:
        return ()
    type_measurements = [m for m in measured if m.shape.gpu_type == gpu.gpu_type]
    scale = max(gpu.uncertainty, 1e-3) / _KERNEL
    cell_features = _features(model, gpu, [c.plan for c in cells], [c.shape.gpus_per_node for c in cells], scale)
    variance: Floats = np.diag(covariance(cell_features, cell_features))
    if type_measurements:
        points = _features(
            model, gpu, [m.plan for m in type_measurements], [m.shape.gpus_per_node for m in type_measurements], scale
        )
        cross = covariance(cell_features, points)
        noise = (NOISE / scale) ** 2 / np.array([max(m.samples, 1) for m in type_measurements])
        inside = np.linalg.inv(covariance(points, points) + np.diag(noise))
        variance = variance - np.sum((cross @ inside) * cross, axis=1)
    log_variance = scale**2 * np.maximum(variance, 0.0) + LEAST_UNCERTAINTY**2
    return tuple(float(v) for v in np.sqrt(log_variance))


def best_measurement(model: ModelSpec, gpu: GpuFigures, cells: Sequence[Cell]) -> tuple[str, float, float] | None:
    """Return which single measurement narrows the plans `cells` most: (what it is, one sigma before, one sigma after), or None without any.

    Sigmas are means over `cells`. Candidates are the network between nodes where it is not known (`synergyctl profiles measure`, or
    its link's name), and a step of the first Cell on the fewest GPUs or on the most.
    """
    if not cells:
        return None

    def mean(figures: GpuFigures, *steps: Cell) -> float:
        measured = tuple(Measurement(c.plan, c.shape, c.step_s, 1) for c in steps)
        return float(np.mean(sigmas(model, figures, measured, tuple(cells))))

    fewest, most = min(cells, key=lambda c: c.shape.gpus), max(cells, key=lambda c: c.shape.gpus)
    after = {f"a step of plan 1 on {cell.shape.gpus} GPUs": mean(gpu, cell) for cell in (fewest, most)}
    if gpu.inter_uncertainty > KNOWN_NETWORK and most.shape.nodes > 1:
        gpu_with_network = replace(gpu, inter_uncertainty=KNOWN_NETWORK)
        after["the network (profiles measure, or --set inter=LINK)"] = mean(gpu_with_network)
    what = min(after, key=lambda name: after[name])
    return what, mean(gpu), after[what]
