"""Predicts step time and peak memory of rows from fitted parameters and learnt residuals, and learns from further
rows."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from synergyd.records import ModelSpec, Plan
from synergyd.task.fit import residual
from synergyd.task.fit.measured_runs import MeasuredRun
from synergyd.task.fit.parameters import (
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
    refine,
    unknown,
)
from synergyd.task.fit.residual import PlanFeatures, Residual
from synergyd.task.model.arrays import Floats
from synergyd.task.model.hardware import GpuFigures, figures
from synergyd.task.model.memory import peak_parts
from synergyd.task.model.step_time import step_parts

_SLOPE = 1e-3
# Rows of a cluster learnt after the fit from which on the process's sigmas are less than 1.5 times as wide as of one that was fitted (twice
# with none). Chosen by rows of vTrain, left out of the fit: after 5 of them 60/85 % were within one and two sigma, at twice 84/99 %.
_ALIKE = 30
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
    strange: bool  # the formulas miss more on a cluster never seen: software differs in speed, tensors are of the same sizes in all
    log: Callable[[RowBatch, GpuFigures], Floats]
    measured: Callable[[MeasuredRun], float | None]
    shares: Callable[[RowBatch, GpuFigures], Floats]


def _time_shares(inputs: RowBatch, gpu: GpuFigures) -> Floats:
    parts = step_parts(inputs.model, gpu, inputs.plans)
    of_interest = (parts.tp, parts.bubble + parts.pp, parts.dp, parts.optimizer + parts.fixed)
    return np.stack([part / parts.total for part in of_interest], axis=1)


def _memory_shares(inputs: RowBatch, gpu: GpuFigures) -> Floats:
    parts = peak_parts(inputs.model, gpu, inputs.plans, inputs.last)
    of_interest = (parts.weights, parts.optimizer, parts.logits, parts.other)
    return np.stack([part / parts.total for part in of_interest], axis=1)


_TIME = _Quantity(TIME, True, log_time, lambda row: row.time_s, _time_shares)
_MEMORY = _Quantity(MEMORY, False, log_memory, lambda row: row.memory_bytes, _memory_shares)


def identity(*words: object) -> int:
    """A number that stands for `words`, the same on every machine."""
    return zlib.crc32(repr(words).encode())


@dataclass(frozen=True)
class LearntCorrection:
    """What is known of one quantity: the formulas' parameters, and what they miss."""

    effects: Effects
    residual: Residual
    after: frozenset[int] = frozenset()  # hardware that was learnt after the fit, by few rows


def _theta(effects: Effects, inputs: RowBatch) -> Floats:
    offsets = [effects.offsets(row.cluster, row.gpu_type) for row in inputs.rows]
    return inputs.start(effects.parameters) + np.array(offsets)


def _points(quantity: _Quantity, inputs: RowBatch, gpu: GpuFigures) -> PlanFeatures:
    rows = inputs.rows
    return PlanFeatures(
        residual.shape_columns(inputs.plans, inputs.model.seq, inputs.model.hidden),
        quantity.shares(inputs, gpu),
        np.array([identity(row.cluster, row.gpu_type) for row in rows], dtype=np.int64),
        np.array([identity(*row.job) for row in rows], dtype=np.int64),
    )


def _predict(
    quantity: _Quantity, learnt: LearntCorrection, rows: Sequence[MeasuredRun], overrides: Overrides
) -> Floats:
    inputs = batch(rows, overrides)
    gpu = inputs.at(quantity.parameters, _theta(learnt.effects, inputs))
    result = quantity.log(inputs, gpu)
    if len(learnt.residual.measured):
        result = result + learnt.residual.mean(_points(quantity, inputs, gpu))
    return np.asarray(np.exp(result))


def _uncertainty(
    quantity: _Quantity, learnt: LearntCorrection, rows: Sequence[MeasuredRun], overrides: Overrides
) -> Floats:
    """One sigma of log(measured / predicted): parameters that are not known for the row's cluster and GPU family, linearised; on known
    hardware what the residual leaves open, wider where it was learnt after the fit, by few rows; on a cluster never seen what the figures
    themselves leave open besides (what the formulas miss there is like nothing that was fitted)."""
    inputs = batch(rows, overrides)
    effects, parameters = learnt.effects, quantity.parameters
    theta = _theta(effects, inputs)
    gpu = inputs.at(parameters, theta)
    base = quantity.log(inputs, gpu)
    open_ = np.zeros_like(theta)
    for i, row in enumerate(rows):
        for level in levels(row.cluster, row.gpu_type):
            open_[i] += unknown(effects, level) ** 2
    variance = np.full(len(rows), effects.noise**2)
    for k in range(len(parameters)):
        moved = theta.copy()
        moved[:, k] += _SLOPE
        variance += ((quantity.log(inputs, inputs.at(parameters, moved)) - base) / _SLOPE) ** 2 * open_[:, k]
    strange = np.array([levels(row.cluster, row.gpu_type)[2] not in effects.mean for row in rows])
    if effects.rows and quantity.strange:
        variance += np.where(strange, np.asarray(inputs.gpu.uncertainty) ** 2, 0.0)
    many = Counter(learnt.residual.points.hardware.tolist())
    hardware = [identity(row.cluster, row.gpu_type) for row in rows]
    count = np.array([many[one] for one in hardware])
    if count.any():
        new = np.isin(hardware, list(learnt.after))
        wider = np.where(new, 1 + _ALIKE / (_ALIKE + count), 1.0)
        left = (wider * learnt.residual.sigma(_points(quantity, inputs, gpu))) ** 2 + residual.NOISE**2
        variance = np.where(count > 0, np.minimum(variance, left), variance)
    return np.asarray(np.sqrt(variance))


def _log_measured(quantity: _Quantity, rows: Sequence[MeasuredRun]) -> Floats:
    return np.log(np.array([quantity.measured(row) for row in rows], dtype=np.float64))


def _known(quantity: _Quantity, rows: Sequence[MeasuredRun], word: str) -> list[MeasuredRun]:
    return [row for row in rows if quantity.measured(row) is not None and word in row.scores]


def _fitted(quantity: _Quantity, rows: Sequence[MeasuredRun], word: str, overrides: Overrides) -> LearntCorrection:
    known = _known(quantity, rows, word)
    if not known:
        return LearntCorrection(Effects(quantity.parameters, {}, {}, 0.2, 0), residual.empty())
    measured = _log_measured(quantity, known)
    effects = fit(known, quantity.parameters, quantity.log, measured, overrides)
    return LearntCorrection(effects, _residual(quantity, effects, known, measured, residual.empty(), overrides))


def _residual(
    quantity: _Quantity,
    effects: Effects,
    rows: Sequence[MeasuredRun],
    measured: Floats,
    before: Residual,
    overrides: Overrides,
) -> Residual:
    inputs = batch(rows, overrides)
    gpu = inputs.at(quantity.parameters, _theta(effects, inputs))
    points = residual.joined(before.points, _points(quantity, inputs, gpu))
    return residual.learn(points, np.concatenate([before.measured, measured - quantity.log(inputs, gpu)]))


def _refined(
    quantity: _Quantity, learnt: LearntCorrection, rows: Sequence[MeasuredRun], word: str, overrides: Overrides
) -> LearntCorrection:
    known = _known(quantity, rows, word)
    if not known:
        return learnt
    # where residuals are known already, the parameters have been fitted to more than these few rows: they stay
    seen = set(learnt.residual.points.hardware.tolist())
    fresh = [row for row in known if identity(row.cluster, row.gpu_type) not in seen]
    effects = learnt.effects
    if fresh:
        effects = refine(effects, fresh, quantity.log, _log_measured(quantity, fresh), overrides)
    measured = _log_measured(quantity, known)
    after = learnt.after | {identity(row.cluster, row.gpu_type) for row in fresh}
    return LearntCorrection(effects, _residual(quantity, effects, known, measured, learnt.residual, overrides), after)


@dataclass(frozen=True)
class Predictor:
    """Step times and memory peaks as far as rows have taught them; `overrides` are the site's own figures, from which the
    fit started (GPU type -> figure -> number, as in hardware.figures)."""

    time: LearntCorrection
    memory: LearntCorrection
    overrides: Overrides = field(default_factory=dict)

    def step_s(self, rows: Sequence[MeasuredRun]) -> Floats:
        """Predicted step time of each row, seconds."""
        return _predict(_TIME, self.time, rows, self.overrides)

    def peak_bytes(self, rows: Sequence[MeasuredRun]) -> Floats:
        """Predicted peak memory a GPU of each row, bytes."""
        return _predict(_MEMORY, self.memory, rows, self.overrides)

    def uncertainty(self, rows: Sequence[MeasuredRun]) -> Floats:
        """One sigma of log(measured / predicted) step time."""
        return _uncertainty(_TIME, self.time, rows, self.overrides)

    def peak_uncertainty(self, rows: Sequence[MeasuredRun]) -> Floats:
        """One sigma of log(measured / predicted) peak memory."""
        return _uncertainty(_MEMORY, self.memory, rows, self.overrides)

    def refined(self, rows: Sequence[MeasuredRun]) -> Predictor:
        """After further measured rows."""
        return replace(
            self,
            time=_refined(_TIME, self.time, rows, "time", self.overrides),
            memory=_refined(_MEMORY, self.memory, rows, "mem", self.overrides),
        )

    def cluster_of(self, gpu_type: str) -> str:
        """The cluster whose rows were measured on `gpu_type`'s family; "" where there is none, or more than one."""
        end = levels("", gpu_type)[3].removeprefix("cluster ")
        known = {m.removeprefix("cluster ").removesuffix(end) for m in self.time.effects.mean if m.endswith(end)}
        return known.pop() if len(known) == 1 else ""

    def figures(
        self, gpu_type: str, cluster: str | None = None, overrides: Mapping[str, Mapping[str, float]] | None = None
    ) -> GpuFigures:
        """`gpu_type`'s figures with the parameters fitted for it on `cluster` (None: the one it was measured on). Where
        that was not fitted, with what is common to all, and attention as fused as the type's own figures say: the
        rows' software may be old."""
        cluster = self.cluster_of(gpu_type) if cluster is None else cluster
        gpu = figures(gpu_type, overrides)
        fitted_figures = self.memory.effects.apply(self.time.effects.apply(gpu, cluster, gpu_type), cluster, gpu_type)
        known = overrides if overrides is not None else self.overrides
        unsure = _usual_uncertainty(_TIME, self.time, gpu_type, cluster, known)
        if self.memory.effects.rows:
            peak = _usual_uncertainty(_MEMORY, self.memory, gpu_type, cluster, known)
            fitted_figures = replace(fitted_figures, memory_uncertainty=peak)
        if not self.time.effects.rows:
            return fitted_figures
        if levels(cluster, gpu_type)[2] not in self.time.effects.mean:
            # and no surer than the figures themselves are
            unsure = max(gpu.uncertainty, unsure)
            return replace(fitted_figures, unfused=gpu.unfused, scores_kept=gpu.scores_kept, uncertainty=unsure)
        return replace(fitted_figures, uncertainty=unsure)


def _usual_uncertainty(
    quantity: _Quantity, learnt: LearntCorrection, gpu_type: str, cluster: str, overrides: Overrides
) -> float:
    """One number for the uncertainty of a job not seen yet on `gpu_type` of `cluster`: its median over a few plans of a 7B model."""
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
    return float(np.median(_uncertainty(quantity, learnt, rows, overrides)))


def fitted(rows: Sequence[MeasuredRun], overrides: Overrides | None = None) -> Predictor:
    """A predictor fitted to `rows`, with priors at the built-in figures and the site's `overrides`."""
    known = dict(overrides or {})
    return Predictor(_fitted(_TIME, rows, "time", known), _fitted(_MEMORY, rows, "mem", known), known)
