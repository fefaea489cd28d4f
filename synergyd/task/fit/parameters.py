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

from synergyd.task.fit.measured_runs import MeasuredRun
from synergyd.task.model.arrays import Bools, Floats, PlanArrays, from_plans
from synergyd.task.model.dims import Dims, stacked
from synergyd.task.model.hardware import GpuFigures, by_deepspeed, canonical, figures
from synergyd.task.model.memory import peak_parts
from synergyd.task.model.step_time import step_parts


@dataclass(frozen=True)
class Parameter:
    """A figure that rows can move. `kind` log, odds, or ms (a time that is usually none, in milliseconds); `common` and
    `own` are the priors' sigmas of the shared effect and of each cluster's and family's; `shared` and `chip` are the
    parts of those that a fit grants the shared effect and a GPU family's.

    Software's speed differs more between sources than its mean over all of them is unknown, and what one source shows
    of a GPU type is mostly that source's own: else the largest source (vTrain, small models) would stand for all. The
    halves are chosen by leave-one-source-out, and are the best of those tried with any one source left out of the choice.
    """

    name: str
    kind: str
    common: float
    own: float
    shared: float = 0.5
    chip: float = 0.5


TIME = (
    Parameter("gemm_efficiency", "log", 0.15, 0.12),
    Parameter("gemm_traffic", "log", 0.7, 0.3),
    Parameter("attention_efficiency", "odds", 0.7, 0.3),
    Parameter("bandwidth_efficiency", "odds", 0.7, 0.4),
    Parameter("unfused", "odds", 1.0, 1.5),
    Parameter("kernel_s", "log", 0.7, 0.4),
    Parameter("launch_s", "log", 0.7, 0.4),
    Parameter("tp_launch_s", "log", 0.7, 0.4),
    Parameter("micro_s", "log", 1.0, 0.5),
    Parameter("optimizer_s", "log", 1.0, 0.5),
    Parameter("fixed_s", "log", 1.0, 0.7),
    Parameter("link_efficiency", "odds", 0.5, 0.3),
    Parameter("inter_efficiency", "odds", 0.7, 0.7),
    Parameter("dp_efficiency", "log", 0.5, 0.3),
    Parameter("dp_inter_efficiency", "log", 0.5, 0.4),
    Parameter("pp_efficiency", "log", 0.5, 0.4),
    Parameter("dp_partial_efficiency", "log", 0.4, 0.4),
    Parameter("rail_use", "odds", 0.5, 0.3),
    Parameter("zero3_rail_use", "odds", 0.5, 0.3),
    # one source took some 3 ms a rank and others none: a cluster's own
    Parameter("dp_rank_s", "ms", 0.1, 1.0, 1.0, 0.1),
    Parameter("intra_latency_s", "log", 0.7, 0.4),
    Parameter("inter_latency_s", "log", 0.7, 0.5),
    Parameter("overlap", "odds", 1.0, 1.0),
    Parameter("zero3_overlap", "odds", 0.7, 0.5),
    Parameter("fp8_speedup", "log", 0.15, 0.1),
    Parameter("jitter", "log", 0.7, 0.5),
)
# tensors are of the same sizes in all software: what one source shows holds for the others too
MEMORY = (
    Parameter("activation_scale", "log", 0.15, 0.15, 1.0, 1.0),
    Parameter("logit_bytes", "log", 0.4, 0.2, 1.0, 1.0),
    Parameter("scores_kept", "odds", 1.0, 1.0, 1.0, 1.0),
    Parameter("state_scale", "log", 0.05, 0.12, 1.0, 1.0),
    Parameter("fragmentation", "log", 0.4, 0.4, 1.0, 1.0),
    Parameter("base_gib", "log", 0.7, 0.7, 1.0, 1.0),
)
_FLOOR = {"base_gib": 0.2}  # a figure that is 0 has no log: it starts here
_UNFUSED = frozenset(("unfused", "scores_kept"))  # what attention that is fused has none of
_EDGE = 0.02  # a fraction's built-in value is kept this far from 0 and 1, where log-odds end
_NOISE = 0.05  # one sigma of a measured step time that the model has right, relative
_IMPLAUSIBLE = 1.0  # log: a few measurements further than this from each other or the model are broken
_MEDIAN_OF = 3
_STEPS = 60
_ALIKE = 30  # rows of a cluster that count in full
_TEMPER = 0.5


def forward(parameter: Parameter, value: float) -> float:
    """From a figure to the scale that it is fitted on."""
    if parameter.kind == "ms":
        return 1e3 * value
    if parameter.kind == "log":
        return math.log(max(value, _FLOOR.get(parameter.name, 1e-9)))
    inside = min(max(value, _EDGE), 1 - _EDGE)
    return math.log(inside / (1 - inside))


def backward(parameter: Parameter, value: Floats) -> Floats:
    """From the fitted scale to the figure."""
    if parameter.kind == "ms":
        return np.maximum(value, 0.0) / 1e3
    bounded = np.clip(value, -30, 30)
    return np.asarray(np.exp(bounded) if parameter.kind == "log" else 1 / (1 + np.exp(-bounded)))


def family(gpu_type: str) -> str:
    """GPU types of one chip, however Slurm spells them: `a100-40` and `nvidia_a100-sxm4-80gb` are `a100`."""
    return re.split(r"[-_]", canonical(gpu_type) or gpu_type.lower())[0]


def levels(cluster: str, gpu_type: str) -> tuple[str, ...]:
    """The effects that a row of `cluster` and `gpu_type` has, the shared one first."""
    return ("", f"family {family(gpu_type)}", f"cluster {cluster}", f"cluster {cluster} family {family(gpu_type)}")


@dataclass(frozen=True)
class Effects:
    """What a fit found. `mean[level]` and `covariance[level]` by parameter of `parameters`; `noise` is the spread
    (one sigma) of log(measured / predicted) over the rows fitted, `rows` how many there were."""

    parameters: tuple[Parameter, ...]
    mean: Mapping[str, Floats]
    sigma: Mapping[str, Floats]
    noise: float
    rows: int

    def offsets(self, cluster: str, gpu_type: str) -> Floats:
        """Sum of the effects known for a cluster and GPU type, by parameter."""
        total = np.zeros(len(self.parameters))
        for level in levels(cluster, gpu_type):
            if level in self.mean:
                total = total + self.mean[level]
        return total

    def apply(self, gpu: GpuFigures, cluster: str, gpu_type: str) -> GpuFigures:
        """`gpu` with its fitted parameters."""
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
        """Figures with parameter k of row i at theta[i, k] of the fitted scale."""
        changes: dict[str, Any] = {p.name: backward(p, theta[:, k]) for k, p in enumerate(parameters)}
        for name in _UNFUSED & changes.keys():
            changes[name] = np.where(self.fused, 0.0, changes[name])
        return replace(self.gpu, **changes)

    def start(self, parameters: Sequence[Parameter]) -> Floats:
        """The built-in values on the fitted scale, (rows, parameters)."""
        columns = [[forward(p, float(v)) for v in np.asarray(getattr(self.gpu, p.name))] for p in parameters]
        return np.array(columns, dtype=np.float64).T


def batch(rows: Sequence[MeasuredRun], overrides: Mapping[str, Mapping[str, float]] | None = None) -> RowBatch:
    """`rows` as arrays."""
    # where a row says that attention is not fused, that counts for its GPU type too
    types = [
        replace(by_deepspeed(gpu) if row.deepspeed else gpu, flash=gpu.flash and row.fused is not False)
        for row, gpu in zip(rows, (figures(row.gpu_type, overrides) for row in rows), strict=True)
    ]
    columns: dict[str, Any] = {
        item.name: np.array([getattr(gpu, item.name) for gpu in types])
        for item in fields(GpuFigures)
        if item.name not in ("gpu_type", "note")
    }
    plans = from_plans([row.plan for row in rows], [row.gpus_per_node for row in rows])
    own = np.array([row.shard_ranks for row in rows], dtype=np.int64)
    return RowBatch(
        rows=tuple(rows),
        model=stacked([row.model for row in rows]),
        gpu=GpuFigures(gpu_type="", **columns),
        plans=replace(plans, shard=np.where(own > 0, own, plans.shard)),
        last=np.array([row.last_stage for row in rows], dtype=np.bool_),
        fused=np.array([row.fused is True for row in rows], dtype=np.bool_),
    )


def log_time(inputs: RowBatch, gpu: GpuFigures) -> Floats:
    """log of the predicted step time of each row."""
    return np.asarray(np.log(step_parts(inputs.model, gpu, inputs.plans).total))


@dataclass(frozen=True)
class FitSolution:
    """`effects` and their one-sigma `spread` by [level, parameter]; `noise` is the spread of what is left."""

    effects: Floats
    spread: Floats
    noise: float


def log_memory(inputs: RowBatch, gpu: GpuFigures) -> Floats:
    """log of the predicted peak of each row."""
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
    """The effects that make `predict` (logs, (rows,)) meet `measured` (logs) best, given the priors.

    Row i's parameters are `start[i]` plus the sum of `effects[j]` over the levels j that it `belongs[i, j]` to (0 or 1);
    `sigma[j, k]` is the prior's spread of effect j of parameter k; row i counts as `trust[i]` rows.
    """
    count = len(parameters)
    precision = 1 / sigma.ravel() ** 2

    def residuals(effects: Floats) -> tuple[Floats, Floats]:
        theta = start + belongs @ effects
        return theta, (measured - predict(inputs, inputs.at(parameters, theta))) / _NOISE

    def cost(z: Floats, effects: Floats) -> float:
        return float(np.sum(trust * 2 * (np.sqrt(1 + z**2) - 1)) + np.sum((effects / sigma) ** 2))

    effects = np.zeros(sigma.shape)
    theta, z = residuals(effects)
    best, damping = cost(z, effects), 1e-2
    normal = np.diag(precision)
    for _ in range(_STEPS):
        slopes = np.empty((len(measured), count))
        for k in range(count):
            moved = theta.copy()
            moved[:, k] += 1e-4
            slopes[:, k] = ((measured - predict(inputs, inputs.at(parameters, moved))) / _NOISE - z) / 1e-4
        weight = trust / np.sqrt(1 + z**2)
        # d z / d effects[j, k] is slopes[i, k] where row i belongs to level j
        jacobian = (belongs[:, :, None] * slopes[:, None, :]).reshape(len(measured), -1)
        normal = (jacobian * weight[:, None]).T @ jacobian + np.diag(precision)
        gradient = jacobian.T @ (weight * z) + effects.ravel() * precision
        improved = 0.0
        while damping < 1e6:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient).reshape(effects.shape)
            trial = effects + step
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
    spread = np.sqrt(np.diag(np.linalg.inv(normal))).reshape(effects.shape)
    return FitSolution(effects, spread, max(0.01, 1.4826 * float(np.median(np.abs(z))) * _NOISE))


def _prior(parameters: Sequence[Parameter], level: str) -> Floats:
    """One sigma of each parameter's effect of a `level` before any row."""
    if level == "":
        return np.array([p.shared * p.common for p in parameters])
    chip = level.startswith("family ")
    return np.array([p.own / math.sqrt(2) * (p.chip if chip else 1.0) for p in parameters])


def unknown(effects: Effects, level: str) -> Floats:
    """One sigma of each parameter's effect of a `level` as far as `effects` knows it."""
    return effects.sigma[level] if level in effects.sigma else _prior(effects.parameters, level)


def fit(
    rows: Sequence[MeasuredRun],
    parameters: tuple[Parameter, ...],
    predict: Callable[[RowBatch, GpuFigures], Floats],
    measured: Floats,
    overrides: Mapping[str, Mapping[str, float]] | None = None,
) -> Effects:
    """All levels' effects at once."""
    inputs = batch(rows, overrides)
    of_row = [levels(row.cluster, row.gpu_type) for row in rows]
    names = list(dict.fromkeys(name for some in of_row for name in some))
    belongs = np.array([[float(name in some) for name in names] for some in of_row])
    sigma = np.array([_prior(parameters, name) for name in names])
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
    """Which of a few log(measured / predicted) can be true: those within a factor of the median (of at least three) or
    of the prediction."""
    centre = float(np.median(off)) if len(off) >= _MEDIAN_OF else 0.0
    return np.asarray(np.abs(off - centre) <= _IMPLAUSIBLE)


def refine(
    effects: Effects,
    rows: Sequence[MeasuredRun],
    predict: Callable[[RowBatch, GpuFigures], Floats],
    measured: Floats,
    overrides: Mapping[str, Mapping[str, float]] | None = None,
) -> Effects:
    """`effects` after further rows: each cluster and GPU family of theirs moves by itself, from where it was, as far as
    what was not known of it allows."""
    mean, sigma = dict(effects.mean), dict(effects.sigma)
    parameters = effects.parameters
    by_level: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        by_level.setdefault(levels(row.cluster, row.gpu_type)[-1], []).append(i)
    for name, index in by_level.items():
        rows_here = [rows[i] for i in index]
        inputs = batch(rows_here, overrides)
        start = inputs.start(parameters) + np.array([effects.offsets(r.cluster, r.gpu_type) for r in rows_here])
        known = levels(rows_here[0].cluster, rows_here[0].gpu_type)
        # what is not known of each level: all of it, or what the fit left open
        open_ = [unknown(replace(effects, sigma=sigma), level) ** 2 for level in known]
        prior = np.sqrt(sum(open_[1:], np.zeros(len(parameters))))[None, :]
        trust = plausible(measured[index] - predict(inputs, inputs.at(parameters, start))).astype(np.float64)
        solution = solve(
            inputs, parameters, predict, measured[index], start, np.ones((len(rows_here), 1)), prior, trust
        )
        mean[name] = mean.get(name, np.zeros(len(parameters))) + solution.effects[0]
        sigma[name] = solution.spread[0]
    return replace(effects, mean=mean, sigma=sigma)
