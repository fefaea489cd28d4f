"""Errors of the formulas, learnt from measurements: a Gaussian process on log(measured / predicted).

Kernels that are no formula can explain (cuBLAS and NCCL pick algorithms by shape) repeat for the same layer shape on the
same hardware and software; a job's own level repeats for the job. So the covariance of two measurements on the same
hardware is the sum of: a level of the job, the likeness of their layers (micro-batch tokens, hidden size, tensor ranks: narrow and
wide), and the product of their slopes in the formulas' figures (a wrong link shows in proportion to its share of the step), so
one posterior holds the figures and what no figure explains. Rasmussen & Williams 2006, sections 2.2 and 2.7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synergyd.jobmodel.model.arrays import Bools, Floats, Ints, PlanArrays

# One sigma of each effect, relative. NARROW is what a fit to all rows leaves of each; with 0.10 clusters after 5 of their rows were 5.9 %
# off instead of 5.5 (tests.benchmarks.unseen_clusters). With WIDE 70 and 93 % of them lie within one and two sigma before any.
JOB, NARROW, WIDE = 0.04, 0.06, 0.08
_NARROW_SCALE = np.array([0.45, 0.45, 0.45, 0.45, 3.0, 3.0, 3.0])
_WIDE_SCALE = np.array([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0])
# One sigma of a measured peak, relative, which repeats better than a step (throughput.NOISE): with 0.05 peaks of clusters after 5 of their
# rows were 5.2 % off instead of 3.7.
PEAK_NOISE = 0.02
SHAPE = 7  # columns of PlanFeatures.shape
NAMES = ("shape", "slopes", "hardware", "job")
_OUTLIER = 3.0  # sigmas beyond which a measurement is doubted
_ROUNDS = 4


@dataclass(frozen=True)
class PlanFeatures:
    """N measured or asked-for plans; `hardware` and `job` are ids.

    `shape` (N, 7): log2 of micro-batch tokens, hidden, tensor, context and pipeline ranks and nodes, and the recompute
    code. `slopes` (N, K): how the logarithm of the prediction moves with each figure that is not known for sure, by one sigma of it.
    """

    shape: Floats
    slopes: Floats
    hardware: Ints
    job: Ints

    def take(self, index: Ints | Bools) -> PlanFeatures:
        """Return the points at `index`."""
        return PlanFeatures(*(getattr(self, name)[index] for name in NAMES))


def shape_columns(plans: PlanArrays, seq: int | Floats, hidden: int | Floats) -> Floats:
    """Return `PlanFeatures.shape` of plans."""
    nodes = np.maximum(1.0, plans.tp * plans.pp * plans.dp * plans.cp / plans.local)
    tokens = plans.micro_batch * seq / plans.cp
    columns = np.broadcast_arrays(tokens, np.asarray(hidden), plans.tp, plans.cp, plans.pp, nodes)
    return np.stack([*(np.log2(column) for column in columns), plans.recompute.astype(np.float64)], axis=1)


def covariance(a: PlanFeatures, b: PlanFeatures) -> Floats:
    """Return the prior covariance of the residuals of `a` (N) and `b` (M), (N, M)."""
    same = a.hardware[:, None] == b.hardware[None, :]
    job = a.job[:, None] == b.job[None, :]

    def likeness(scale: Floats) -> Floats:
        x, y = a.shape / scale, b.shape / scale
        square = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2 * x @ y.T
        return np.asarray(np.exp(-0.5 * np.maximum(square, 0.0)))

    total = JOB**2 * job + NARROW**2 * likeness(_NARROW_SCALE) + WIDE**2 * likeness(_WIDE_SCALE)
    return np.asarray(same * (total + a.slopes @ b.slopes.T))


@dataclass(frozen=True)
class Residual:
    """The posterior after measurements `measured` (log(measured / predicted), (N,)) at `points`."""

    points: PlanFeatures
    measured: Floats
    weights: Floats  # (N,)
    inverse: Floats  # (N, N)

    def mean(self, features: PlanFeatures) -> Floats:
        """Return the expected log(measured / predicted) of each asked-for plan, (M,)."""
        return np.asarray(covariance(features, self.points) @ self.weights)

    def sigma(self, features: PlanFeatures) -> Floats:
        """Return one sigma of the posterior at the points `features`, (M,)."""
        cross = covariance(features, self.points)
        own = JOB**2 + NARROW**2 + WIDE**2 + np.sum(features.slopes**2, axis=1)
        return np.asarray(np.sqrt(np.maximum(own - np.sum((cross @ self.inverse) * cross, axis=1), 0.0)))


def empty(figures: int) -> Residual:
    """Return the prior with nothing measured yet, where so many `figures` are not known for sure."""
    none = PlanFeatures(np.zeros((0, SHAPE)), np.zeros((0, figures)), np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Residual(none, np.zeros(0), np.zeros(0), np.zeros((0, 0)))


def join_features(a: PlanFeatures, b: PlanFeatures) -> PlanFeatures:
    """Return the points of both `a` and `b`."""
    return PlanFeatures(*(np.concatenate([getattr(a, name), getattr(b, name)]) for name in NAMES))


def learn(points: PlanFeatures, measured: Floats, sigma: float) -> Residual:
    """Return the posterior after log(measured / predicted) at `points`, each measured to within one `sigma`.

    If the other measurements (or, for a single one, the prior) hold a measurement impossible, its noise is raised by as much as
    it is beyond, so it moves little.
    """
    prior = covariance(points, points)
    noise = np.full(len(measured), sigma**2)
    for _ in range(_ROUNDS if len(measured) else 0):
        inverse = np.linalg.inv(prior + np.diag(noise))
        # leave-one-out residual and variance (Rasmussen & Williams, eq. 5.12)
        diagonal = np.diag(inverse)
        off = inverse @ measured / diagonal
        # the variance that the others and the prior allow, without this one's own inflated noise
        spread = np.sqrt(np.maximum(1 / diagonal - noise, 0.0) + sigma**2)
        noise = sigma**2 + np.maximum(0.0, np.abs(off) - _OUTLIER * spread) ** 2
    inverse = np.linalg.inv(prior + np.diag(noise))
    return Residual(points, measured, np.asarray(inverse @ measured), np.asarray(inverse))
