"""Predictions of step time and peak memory of rows from fitted parameters and learnt residuals, which learn from further rows."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import ndtr
from synergy_core.records import ModelSpec, Plan

from synergyd.jobmodel.fit import residual
from synergyd.jobmodel.fit.measured_runs import MeasuredRun
from synergyd.jobmodel.fit.parameters import (
    MEMORY,
    TIME,
    Effects,
    Parameter,
    RowBatch,
    batch,
    fit,
    levels,
    log_memory,
    log_time,
    prior,
    unknown,
)
from synergyd.jobmodel.fit.residual import PlanFeatures, Residual
from synergyd.jobmodel.model.arrays import Floats
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.throughput import NOISE

_SLOPE = 1e-3
_STEPS = 12  # of Gauss-Newton, at most
_FAR = 30.0  # sigmas, beyond which the tail's mean is at the limit
_CLOSE = 0.02  # sigmas of a figure: a step that is smaller ends it
# stands for jobs without measurements
_USUAL = ModelSpec("usual", 32, 4096, 32, 32, 11008, 32000, 4096)
_PLANS = (
    Plan(dp=8, micro_batch=1, global_batch=128),
    Plan(tp=4, pp=2, dp=2, micro_batch=2, global_batch=256),
    Plan(tp=8, pp=2, dp=4, micro_batch=2, global_batch=512),
)
Overrides = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class _Quantity:
    """Step time or peak memory: how rows are predicted, and which of them measured it."""

    parameters: tuple[Parameter, ...]
    log: Callable[[RowBatch, GpuFigures], Floats]
    measured: Callable[[MeasuredRun], float | None]
    noise: float  # one sigma of what is measured, relative


_TIME = _Quantity(TIME, log_time, lambda row: row.time_s, NOISE)
_MEMORY = _Quantity(MEMORY, log_memory, lambda row: row.memory_bytes, residual.PEAK_NOISE)


def identity(*words: object) -> int:
    """Return a number that stands for `words`, the same on every machine."""
    return zlib.crc32(repr(words).encode())


@dataclass(frozen=True)
class LearntCorrection:
    """Knowledge of one quantity: the formulas' parameters, and what they miss."""

    effects: Effects
    residual: Residual


def _linearise(
    quantity: _Quantity, effects: Effects, rows: Sequence[MeasuredRun], overrides: Overrides
) -> tuple[PlanFeatures, Floats, Floats]:
    """Return (features, mean, sigma) of the process that predicts `rows`, before what was measured on their clusters.

    The parameters of a row's own GPU family on its cluster are normal around those of the levels above, and the formulas are
    linear around the family's most probable ones: the slopes are part of the covariance, and the mean is at the levels above.
    `sigma` (N, K) is of the parameters.
    """
    inputs, parameters = batch(rows, overrides), quantity.parameters
    above, own, sigma = (np.zeros((len(rows), len(parameters))) for _ in range(3))
    for i, row in enumerate(rows):
        *higher, last = levels(row.cluster, row.gpu_type)
        above[i] = sum(effects.mean[level] for level in higher if level in effects.mean)
        own[i] = effects.mean.get(last, 0.0)
        sigma[i] = np.sqrt(sum(unknown(effects, level) ** 2 for level in higher) + prior(parameters, last) ** 2)
    for k, parameter in enumerate(parameters):
        if parameter.name == "inter_efficiency":  # less where the network is known
            sigma[:, k] = inputs.gpu.inter_uncertainty
    theta = inputs.start(parameters) + above + own
    base = quantity.log(inputs, inputs.at(parameters, theta))
    slopes = np.zeros_like(theta)
    for k in range(len(parameters)):
        moved = theta.copy()
        moved[:, k] += _SLOPE
        slopes[:, k] = (quantity.log(inputs, inputs.at(parameters, moved)) - base) / _SLOPE
    features = PlanFeatures(
        residual.shape_columns(inputs.plans, inputs.model.seq, inputs.model.hidden),
        slopes * sigma,
        np.array([identity(row.cluster, row.gpu_type) for row in rows], dtype=np.int64),
        np.array([identity(*row.job) for row in rows], dtype=np.int64),
    )
    return features, base - np.sum(slopes * own, axis=1), sigma


def _predict(
    quantity: _Quantity, correction: LearntCorrection, rows: Sequence[MeasuredRun], overrides: Overrides
) -> Floats:
    features, mean, _ = _linearise(quantity, correction.effects, rows, overrides)
    return np.asarray(np.exp(mean + correction.residual.mean(features)))


def _uncertainty(
    quantity: _Quantity, correction: LearntCorrection, rows: Sequence[MeasuredRun], overrides: Overrides
) -> Floats:
    """Return one sigma of log(measured / predicted)."""
    features, _, _ = _linearise(quantity, correction.effects, rows, overrides)
    return np.asarray(np.hypot(correction.residual.sigma(features), quantity.noise))


def _measured_logarithms(quantity: _Quantity, rows: Sequence[MeasuredRun]) -> Floats:
    return np.log(np.array([quantity.measured(row) for row in rows], dtype=np.float64))


def _usable_rows(quantity: _Quantity, rows: Sequence[MeasuredRun], word: str) -> list[MeasuredRun]:
    return [row for row in rows if quantity.measured(row) is not None and word in row.scores]


def _fit_correction(
    quantity: _Quantity, rows: Sequence[MeasuredRun], word: str, overrides: Overrides
) -> LearntCorrection:
    usable_rows, nothing = _usable_rows(quantity, rows, word), residual.empty(len(quantity.parameters))
    if not usable_rows:
        return LearntCorrection(Effects(quantity.parameters, {}, {}, 0.2, 0), nothing)
    measured = _measured_logarithms(quantity, usable_rows)
    effects = fit(usable_rows, quantity.parameters, quantity.log, measured, overrides)
    return LearntCorrection(effects, _learn(quantity, effects, usable_rows, measured, nothing, overrides))


def _learn(
    quantity: _Quantity,
    effects: Effects,
    rows: Sequence[MeasuredRun],
    measured: Floats,
    before: Residual,
    overrides: Overrides,
) -> Residual:
    features, mean, _ = _linearise(quantity, effects, rows, overrides)
    return residual.learn(
        residual.join_features(before.points, features),
        np.concatenate([before.measured, measured - mean]),
        quantity.noise,
    )


def _with_family_moved(
    quantity: _Quantity, effects: Effects, rows: Sequence[MeasuredRun], measured: Floats, overrides: Overrides
) -> Effects:
    """Return `effects` with the most probable parameters of the one GPU family and cluster that `rows` are from.

    What the formulas miss beside their parameters errs alike on like plans, so it is part of the covariance: a few rows move the
    parameters only as far as the process does not explain them.
    """
    last = levels(rows[0].cluster, rows[0].gpu_type)[-1]
    own = np.zeros(len(quantity.parameters))
    for _ in range(_STEPS):
        effects = replace(effects, mean={**effects.mean, last: own})
        features, mean, every_sigma = _linearise(quantity, effects, rows, overrides)
        sigma = every_sigma.mean(axis=0)
        weights = residual.learn(features, measured - mean, quantity.noise).weights
        step = np.clip(sigma * (features.slopes.T @ weights) - own, -sigma, sigma)
        own = own + step
        if np.all(np.abs(step) <= _CLOSE * sigma):
            break
    return replace(effects, mean={**effects.mean, last: own})


def _refine_correction(
    quantity: _Quantity, correction: LearntCorrection, rows: Sequence[MeasuredRun], word: str, overrides: Overrides
) -> LearntCorrection:
    usable_rows = _usable_rows(quantity, rows, word)
    if not usable_rows:
        return correction
    # where residuals are known already, the parameters have been fitted to more than these few rows: they stay
    fitted_families = set(correction.residual.points.hardware.tolist())
    by_family: dict[int, list[MeasuredRun]] = {}
    for row in usable_rows:
        by_family.setdefault(identity(row.cluster, row.gpu_type), []).append(row)
    effects = correction.effects
    for family, some in by_family.items():
        if family not in fitted_families:
            effects = _with_family_moved(quantity, effects, some, _measured_logarithms(quantity, some), overrides)
    measured = _measured_logarithms(quantity, usable_rows)
    return LearntCorrection(effects, _learn(quantity, effects, usable_rows, measured, correction.residual, overrides))


def _rows_beyond_memory(
    correction: LearntCorrection, rows: Sequence[MeasuredRun], overrides: Overrides
) -> list[MeasuredRun]:
    """Return what rows that did not measure a peak say of it, as rows with a peak.

    Where a plan ran out of memory its peak is beyond the GPU's, where it ran it is not. Of a normal belief that leaves the part
    on that side, whose mean counts as measured (Tobin 1958), if it says more than was known.
    """
    some = [row for row in rows if row.memory_bytes is None and (row.out_of_memory or row.time_s is not None)]
    if not some:
        return []
    mean, sigma = (
        np.log(_predict(_MEMORY, correction, some, overrides)),
        _uncertainty(_MEMORY, correction, some, overrides),
    )
    limit = np.log([figures(row.gpu_type, overrides).usable_bytes for row in some])
    side = np.where([row.out_of_memory for row in some], 1.0, -1.0)
    beyond = side * (limit - mean) / sigma  # sigmas by which the belief is on the wrong side
    mills = np.exp(-(beyond**2) / 2) / math.sqrt(2 * math.pi) / np.maximum(ndtr(-beyond), 1e-300)
    peaks = np.exp(mean + side * sigma * np.where(beyond > _FAR, beyond, mills))
    return [
        replace(row, memory_bytes=float(peak), scores=row.scores | {"mem"})
        for row, peak, off in zip(some, peaks, beyond, strict=True)
        if off > 0
    ]


@dataclass(frozen=True)
class Predictor:
    """Step times and memory peaks as far as rows have taught them.

    `overrides` are the site's own figures, from which the fit started (GPU type -> figure -> number, as in hardware.figures).
    """

    time: LearntCorrection
    memory: LearntCorrection
    overrides: Overrides = field(default_factory=dict)

    def step_s(self, rows: Sequence[MeasuredRun]) -> Floats:
        """Return the predicted step time of each row, seconds."""
        return _predict(_TIME, self.time, rows, self.overrides)

    def peak_bytes(self, rows: Sequence[MeasuredRun]) -> Floats:
        """Return the predicted peak memory a GPU of each row, bytes."""
        return _predict(_MEMORY, self.memory, rows, self.overrides)

    def uncertainty(self, rows: Sequence[MeasuredRun]) -> Floats:
        """Return one sigma of log(measured / predicted) step time."""
        return _uncertainty(_TIME, self.time, rows, self.overrides)

    def peak_uncertainty(self, rows: Sequence[MeasuredRun]) -> Floats:
        """Return one sigma of log(measured / predicted) peak memory."""
        return _uncertainty(_MEMORY, self.memory, rows, self.overrides)

    def with_rows(self, rows: Sequence[MeasuredRun]) -> Predictor:
        """Return this predictor after further measured rows."""
        weighed = _refine_correction(_MEMORY, self.memory, rows, "mem", self.overrides)
        if more := _rows_beyond_memory(weighed, rows, self.overrides):
            weighed = _refine_correction(
                _MEMORY, self.memory, [*_usable_rows(_MEMORY, rows, "mem"), *more], "mem", self.overrides
            )
        return replace(self, time=_refine_correction(_TIME, self.time, rows, "time", self.overrides), memory=weighed)

    def find_cluster(self, gpu_type: str) -> str:
        """Return the cluster whose rows were measured on `gpu_type`'s family, or "" if there is none or more than one."""
        end = levels("", gpu_type)[-1].removeprefix("cluster ")
        clusters = {m.removeprefix("cluster ").removesuffix(end) for m in self.time.effects.mean if m.endswith(end)}
        return clusters.pop() if len(clusters) == 1 else ""

    def figures(
        self, gpu_type: str, cluster: str | None = None, overrides: Mapping[str, Mapping[str, float]] | None = None
    ) -> GpuFigures:
        """Return `gpu_type`'s figures with the parameters fitted for it on `cluster` (None: the one it was measured on).

        Where that was not fitted, use what is common to all, and attention as fused as the type's own figures say, because the
        rows' software may be old.
        """
        cluster = self.find_cluster(gpu_type) if cluster is None else cluster
        gpu = figures(gpu_type, overrides)
        fitted_figures = self.memory.effects.apply(self.time.effects.apply(gpu, cluster, gpu_type), cluster, gpu_type)
        site_overrides = overrides if overrides is not None else self.overrides
        unsure = _usual_uncertainty(_TIME, self.time, gpu_type, cluster, site_overrides)
        if self.memory.effects.rows:
            peak = _usual_uncertainty(_MEMORY, self.memory, gpu_type, cluster, site_overrides)
            fitted_figures = replace(fitted_figures, memory_uncertainty=peak)
        if not self.time.effects.rows:
            return fitted_figures
        if levels(cluster, gpu_type)[1] not in self.time.effects.mean:
            # and no surer than the figures themselves are
            unsure = max(gpu.uncertainty, unsure)
            return replace(fitted_figures, unfused=gpu.unfused, scores_kept=gpu.scores_kept, uncertainty=unsure)
        return replace(fitted_figures, uncertainty=unsure)


def _usual_uncertainty(
    quantity: _Quantity, correction: LearntCorrection, gpu_type: str, cluster: str, overrides: Overrides
) -> float:
    """Return one number for the uncertainty of a job not seen yet on `gpu_type` of `cluster`.

    It is the median over a few plans of a 7B model.
    """
    rows = [
        MeasuredRun(
            row_id="",
            file="",
            line=0,
            cluster=cluster,
            gpu_type=gpu_type,
            gpus_per_node=8,
            model=_USUAL,
            plan=plan,
            time_s=None,
            memory_bytes=None,
            scores=frozenset(),
            group="",
            fused=True,
        )
        for plan in _PLANS
    ]
    return float(np.median(_uncertainty(quantity, correction, rows, overrides)))


def fit_predictor(rows: Sequence[MeasuredRun], overrides: Overrides | None = None) -> Predictor:
    """Return a predictor fitted to `rows`, with priors at the built-in figures and the site's `overrides`."""
    site_overrides = dict(overrides or {})
    return Predictor(
        _fit_correction(_TIME, rows, "time", site_overrides),
        _fit_correction(_MEMORY, rows, "mem", site_overrides),
        site_overrides,
    )
