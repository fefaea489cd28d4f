"""Fits the performance model's parameters to measured rows: one maximum a posteriori over all GPU types and clusters.

Each parameter (log of a positive one, log-odds of a fraction) is its built-in value plus effects that are shared by all
rows, by a GPU family, by a cluster (its software and network), and by one GPU family on one cluster. Every effect has a
normal prior around 0, so a cluster never seen is predicted from the shared effects and the hardware figures, and one
with few rows stays near that. The data's loss is pseudo-Huber on log(measured / predicted), so that an odd row counts
little. Solved by damped Gauss-Newton; the normal matrix at the end gives the parameters' uncertainty.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from synergy_core.kernels import Kernels

from synergyd.jobmodel.fit.measured_runs import MeasuredRun
from synergyd.jobmodel.model.arrays import Bools, Floats, PlanArrays, from_plans
from synergyd.jobmodel.model.dims import Dims, stack_dims
from synergyd.jobmodel.model.hardware import (
    KNOWN_NETWORK,
    GpuFigures,
    canonical,
    figures,
    with_deepspeed,
    with_kernels,
    with_overlap,
)
from synergyd.jobmodel.model.memory import peak_parts
from synergyd.jobmodel.model.step_time import step_parts


@dataclass(frozen=True)
class Parameter:
    """A figure that rows can move.

    `kind` is log, odds, or ms (a time that is usually none, in milliseconds). `shared` is one sigma of what all clusters have in
    common beyond the built-in figure, `own` of what a cluster and a GPU family on it have of their own (0: nothing).
    """

    name: str
    kind: str
    shared: float
    own: float


# Which figures rows move: those of which a fit to all rows leaves less than 0.9 of the prior's sigma, if leaving it out is no better
# with each cluster left out whole (tests.benchmarks.unseen_clusters). The others stay as hardware.toml says, each by its source.
# What sources share of their links says little of another cluster's: those are a cluster's own.
TIME = (
    Parameter("gemm_efficiency", "log", 0.075, 0.12),
    Parameter("attention_efficiency", "odds", 0.35, 0.3),
    Parameter("bandwidth_efficiency", "odds", 0.35, 0.4),
    Parameter("unfused", "odds", 0.5, 1.5),
    Parameter("launch_s", "log", 0.35, 0.4),
    Parameter("tp_launch_s", "log", 0.35, 0.0),
    Parameter("fixed_s", "log", 0.5, 0.7),
    Parameter("intra_latency_s", "log", 0.35, 0.4),
    Parameter("link_efficiency", "log", 0.0, 0.5),
    # of the networks that hardware.toml lists at the A100
    Parameter("inter_efficiency", "log", 0.0, 0.8),
    Parameter("dp_efficiency", "log", 0.25, 0.3),
    Parameter("pp_efficiency", "log", 0.0, 0.7),
    # one source took some 3 ms a rank and others none
    Parameter("dp_rank_s", "ms", 0.0, 1.0),
    Parameter("fp8_speedup", "log", 0.075, 0.1),
)
# tensors are of the same sizes in all software: what one source shows holds for the others too
MEMORY = (
    Parameter("activation_scale", "log", 0.15, 0.15),
    Parameter("logit_bytes", "log", 0.4, 0.2),
    Parameter("scores_kept", "odds", 1.0, 1.0),
    Parameter("state_scale", "log", 0.05, 0.12),
    Parameter("fragmentation", "log", 0.4, 0.4),
    Parameter("base_gib", "log", 0.7, 0.7),
)
_FLOOR = {"base_gib": 0.2}  # a figure that is 0 has no log: it starts here
_UNFUSED = frozenset(("unfused", "scores_kept"))  # figures that fused attention does not have
_EDGE = 0.02  # a fraction's built-in value is kept this far from 0 and 1, where log-odds end
_NOISE = 0.05  # one sigma of a measured step time that the model has right, relative
_IMPLAUSIBLE = 1.0  # log: a few measurements further than this from each other or the model are broken
_MEDIAN_OF = 3
_STEPS = 60
_ALIKE = 30  # rows of a cluster that count in full
_TEMPER = 0.5


def forward(parameter: Parameter, value: float) -> float:
    """Convert a figure to the scale that it is fitted on."""
    if parameter.kind == "ms":
        return 1e3 * value
    if parameter.kind == "log":
        return math.log(max(value, _FLOOR.get(parameter.name, 1e-9)))
    inside = min(max(value, _EDGE), 1 - _EDGE)
    return math.log(inside / (1 - inside))


def backward(parameter: Parameter, value: Floats) -> Floats:
    """Convert a value on the fitted scale back to the figure."""
    if parameter.kind == "ms":
        return np.maximum(value, 0.0) / 1e3
    bounded = np.clip(value, -30, 30)
    return np.asarray(np.exp(bounded) if parameter.kind == "log" else 1 / (1 + np.exp(-bounded)))


def family(gpu_type: str) -> str:
    """Return the chip of a GPU type, however Slurm spells it: `a100-40` and `nvidia_a100-sxm4-80gb` are `a100`."""
    return re.split(r"[-_]", canonical(gpu_type) or gpu_type.lower())[0]


def levels(cluster: str, gpu_type: str) -> tuple[str, str, str]:
    """Return the effects that a row of `cluster` and `gpu_type` has: what is shared by all, the cluster's, its GPU family's there."""
    return ("", f"cluster {cluster}", f"cluster {cluster} family {family(gpu_type)}")


@dataclass(frozen=True)
class Effects:
    """The result of a fit. `mean[level]` and `covariance[level]` are by parameter of `parameters`.

    `noise` is the spread (one sigma) of log(measured / predicted) over the rows fitted, `rows` how many there were.
    """

    parameters: tuple[Parameter, ...]
    mean: Mapping[str, Floats]
    sigma: Mapping[str, Floats]
    noise: float
    rows: int

    def offsets(self, cluster: str, gpu_type: str) -> Floats:
        """Return the sum of the effects known for a cluster and GPU type, by parameter."""
        total = np.zeros(len(self.parameters))
        for level in levels(cluster, gpu_type):
            if level in self.mean:
                total = total + self.mean[level]
        return total

    def apply(self, gpu: GpuFigures, cluster: str, gpu_type: str) -> GpuFigures:
        """Return `gpu` with the parameters fitted for `cluster` and `gpu_type`."""
        changes: dict[str, Any] = {}
        for parameter, offset in zip(self.parameters, self.offsets(cluster, gpu_type), strict=True):
            value = forward(parameter, getattr(gpu, parameter.name)) + offset
            changes[parameter.name] = float(backward(parameter, np.asarray(value)))
        return replace(gpu, **changes)


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """Rows as arrays: what the model needs to predict them all at once."""

    rows: tuple[MeasuredRun, ...]
    model: Dims
    gpu: GpuFigures  # its fields are arrays
    plans: PlanArrays
    last: Bools  # memory is the last stage's
    fused: Bools  # attention is known to be fused

    def at(self, parameters: Sequence[Parameter], theta: Floats) -> GpuFigures:
        """Return the figures with parameter k of row i at theta[i, k] of the fitted scale."""
        changes: dict[str, Any] = {p.name: backward(p, theta[:, k]) for k, p in enumerate(parameters)}
        for name in _UNFUSED & changes.keys():
            changes[name] = np.where(self.fused, 0.0, changes[name])
        return replace(self.gpu, **changes)

    def start(self, parameters: Sequence[Parameter]) -> Floats:
        """Return the built-in values on the fitted scale, (rows, parameters)."""
        columns = [[forward(p, float(v)) for v in np.asarray(getattr(self.gpu, p.name))] for p in parameters]
        return np.array(columns, dtype=np.float64).T


def batch(rows: Sequence[MeasuredRun], overrides: Mapping[str, Mapping[str, float]] | None = None) -> RowBatch:
    """Convert `rows` to arrays."""
    # where a row says that attention is not fused, that counts for its GPU type too
    types = []
    for row in rows:
        gpu = figures(row.gpu_type, overrides)
        if row.inter_gbs is not None:
            gpu = replace(gpu, inter_gbs=row.inter_gbs, inter_uncertainty=KNOWN_NETWORK)
        if row.overlaps:
            gpu = with_kernels(with_overlap(gpu), Kernels(tp_overlap=True))
        types.append(replace(with_deepspeed(gpu) if row.deepspeed else gpu, flash=gpu.flash and row.fused is not False))
    columns: dict[str, Any] = {
        item.name: np.array([getattr(gpu, item.name) for gpu in types])
        for item in fields(GpuFigures)
        if item.name not in ("gpu_type", "note")
    }
    plans = from_plans([row.plan for row in rows], [row.gpus_per_node for row in rows])
    own = np.array([row.shard_ranks for row in rows], dtype=np.int64)
    return RowBatch(
        rows=tuple(rows),
        model=stack_dims([row.model for row in rows]),
        gpu=GpuFigures(gpu_type="", **columns),
        plans=replace(plans, shard=np.where(own > 0, own, plans.shard)),
        last=np.array([row.last_stage for row in rows], dtype=np.bool_),
        fused=np.array([row.fused is True for row in rows], dtype=np.bool_),
    )


def log_time(inputs: RowBatch, gpu: GpuFigures) -> Floats:
    """Return the log of the predicted step time of each row."""
    return np.asarray(np.log(step_parts(inputs.model, gpu, inputs.plans).total))


@dataclass(frozen=True)
class FitSolution:
    """`effects` and their one-sigma `spread` by [level, parameter]; `noise` is the spread of what is left."""

    effects: Floats
    spread: Floats
    noise: float


def log_memory(inputs: RowBatch, gpu: GpuFigures) -> Floats:
    """Return the log of the predicted peak of each row."""
    return np.asarray(np.log(peak_parts(inputs.model, gpu, inputs.plans, inputs.last).total))


def solve(
    inputs: RowBatch,
    parameters: tuple[Parameter, ...],
    predict: Callable[[RowBatch, GpuFigures], Floats],
    measured: Floats,
    start: Floats,
    belongs: Floats,
    sigma: Floats,
    trust: Floats | float = 1.0,
) -> FitSolution:
    """Return the effects that make `predict` (logs, (rows,)) meet `measured` (logs) best, given the priors.

    Row i's parameters are `start[i]` plus the sum of `effects[j]` over the levels j that it `belongs[i, j]` to (0 or 1).
    `sigma[j, k]` is the prior's spread of effect j of parameter k; where it is 0 there is no such effect. Row i counts as
    `trust[i]` rows.
    """
    free = sigma > 0
    of_level, of_parameter = np.nonzero(free)
    precision = 1 / sigma[free] ** 2

    def residuals(effects: Floats) -> tuple[Floats, Floats]:
        theta = start + belongs @ effects
        return theta, (measured - predict(inputs, inputs.at(parameters, theta))) / _NOISE

    def cost(z: Floats, effects: Floats) -> float:
        return float(np.sum(trust * 2 * (np.sqrt(1 + z**2) - 1)) + np.sum(effects[free] ** 2 * precision))

    effects = np.zeros(sigma.shape)
    theta, z = residuals(effects)
    best, damping = cost(z, effects), 1e-2
    normal = np.diag(precision)
    for _ in range(_STEPS):
        slopes = np.zeros((len(measured), len(parameters)))
        for k in np.unique(of_parameter):
            moved = theta.copy()
            moved[:, k] += 1e-4
            slopes[:, k] = ((measured - predict(inputs, inputs.at(parameters, moved))) / _NOISE - z) / 1e-4
        weight = trust / np.sqrt(1 + z**2)
        # d z / d effects[j, k] is slopes[i, k] where row i belongs to level j
        jacobian = belongs[:, of_level] * slopes[:, of_parameter]
        normal = (jacobian * weight[:, None]).T @ jacobian + np.diag(precision)
        gradient = jacobian.T @ (weight * z) + effects[free] * precision
        improved = 0.0
        while damping < 1e6:
            trial = effects.copy()
            trial[free] += np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial_theta, trial_z = residuals(trial)
            value = cost(trial_z, trial)
            if np.isfinite(value) and value < best:
                improved = best - value
                effects, theta, z, best = trial, trial_theta, trial_z, value
                damping = max(damping / 5, 1e-6)
                break
            damping *= 4
        if improved < 1e-4 * (1 + best):
            break
    spread = np.zeros(sigma.shape)
    spread[free] = np.sqrt(np.diag(np.linalg.inv(normal)))
    return FitSolution(effects, spread, max(0.01, 1.4826 * float(np.median(np.abs(z))) * _NOISE))


def prior(parameters: Sequence[Parameter], level: str) -> Floats:
    """Return one sigma of each parameter's effect of a `level` before any row."""
    return np.array([p.shared if level == "" else p.own / math.sqrt(2) for p in parameters])


def unknown(effects: Effects, level: str) -> Floats:
    """Return one sigma of each parameter's effect of a `level`, as far as `effects` knows it."""
    return effects.sigma[level] if level in effects.sigma else prior(effects.parameters, level)


def fit(
    rows: Sequence[MeasuredRun],
    parameters: tuple[Parameter, ...],
    predict: Callable[[RowBatch, GpuFigures], Floats],
    measured: Floats,
    overrides: Mapping[str, Mapping[str, float]] | None = None,
) -> Effects:
    """Fit the effects of all levels at once."""
    inputs = batch(rows, overrides)
    of_row = [levels(row.cluster, row.gpu_type) for row in rows]
    names = list(dict.fromkeys(name for some in of_row for name in some))
    belongs = np.array([[float(name in some) for name in names] for some in of_row])
    sigma = np.array([prior(parameters, name) for name in names])
    many = Counter(some[-1] for some in of_row)
    # rows of one cluster err together: what the formulas miss there is no evidence for all
    trust = np.array([min(1.0, _ALIKE / many[some[-1]]) ** _TEMPER for some in of_row])
    solution = solve(inputs, parameters, predict, measured, inputs.start(parameters), belongs, sigma, trust)
    return Effects(
        parameters,
        {name: solution.effects[j] for j, name in enumerate(names)},
        {name: solution.spread[j] for j, name in enumerate(names)},
        solution.noise,
        len(rows),
    )


def plausible(off: Floats) -> Bools:
    """Return which of a few log(measured / predicted) can be true.

    These are the ones within a factor of the median (of at least three) or of the prediction.
    """
    centre = float(np.median(off)) if len(off) >= _MEDIAN_OF else 0.0
    return np.asarray(np.abs(off - centre) <= _IMPLAUSIBLE)
