"""Errors of the formulas, learnt from measurements: a Gaussian process on log(measured / predicted).

Kernels that are no formula can explain (cuBLAS and NCCL pick algorithms by shape) repeat for the same layer shape on the
same hardware and software; a job's own level repeats for the job. So the covariance of two measurements on the same
hardware is the sum of: a level of the hardware, a level of the job, the likeness of their layers (micro-batch tokens,
hidden size, tensor ranks: narrow and wide), and the product of their time shares (a wrong link or bubble shows in
proportion to its share: Bayesian ridge on the parts' log-scales). Rasmussen & Williams 2006, chapter 2 and eq. 2.25.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synergyd.task.model.arrays import Bools, Floats, Ints, PlanArrays

# one sigma of each effect, relative
HARDWARE, JOB, NARROW, WIDE, SHARE = 0.05, 0.04, 0.10, 0.05, 0.10
_NARROW_SCALE = np.array([0.45, 0.45, 0.45, 0.45, 3.0, 3.0, 3.0])
_WIDE_SCALE = np.array([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0])
NOISE = 0.02
SHAPE, SHARES = 7, 4  # columns of PlanFeatures.shape and PlanFeatures.shares
NAMES = ("shape", "shares", "hardware", "job")
_OUTLIER = 3.0  # sigmas beyond which a measurement is doubted
_ROUNDS = 4


@dataclass(frozen=True)
class PlanFeatures:
    """N measured or asked-for plans; `hardware` and `job` are ids.

    `shape` (N, 7): log2 of micro-batch tokens, hidden, tensor, context and pipeline ranks and nodes, and the recompute
    code. `shares` (N, 4): parts of the prediction that may be wrong by themselves (of a step: tensor traffic, bubble
    and pipeline traffic, data-parallel traffic, optimizer and fixed).
    """

    shape: Floats
    shares: Floats
    hardware: Ints
    job: Ints

    def take(self, index: Ints | Bools) -> PlanFeatures:
        """The points at `index`."""
        return PlanFeatures(*(getattr(self, name)[index] for name in NAMES))


def shape_columns(plans: PlanArrays, seq: int | Floats, hidden: int | Floats) -> Floats:
    """`PlanFeatures.shape` of plans."""
    nodes = np.maximum(1.0, plans.tp * plans.pp * plans.dp * plans.cp / plans.local)
    tokens = plans.micro_batch * seq / plans.cp
    columns = np.broadcast_arrays(tokens, np.asarray(hidden), plans.tp, plans.cp, plans.pp, nodes)
    return np.stack([*(np.log2(column) for column in columns), plans.recompute.astype(np.float64)], axis=1)


def covariance(a: PlanFeatures, b: PlanFeatures) -> Floats:
    """Prior covariance of the residuals of `a` (N) and `b` (M), (N, M)."""
    same = a.hardware[:, None] == b.hardware[None, :]
    job = a.job[:, None] == b.job[None, :]

    def likeness(scale: Floats) -> Floats:
        x, y = a.shape / scale, b.shape / scale
        square = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2 * x @ y.T
        return np.asarray(np.exp(-0.5 * np.maximum(square, 0.0)))

    total = HARDWARE**2 + JOB**2 * job + NARROW**2 * likeness(_NARROW_SCALE) + WIDE**2 * likeness(_WIDE_SCALE)
    return np.asarray(same * (total + SHARE**2 * a.shares @ b.shares.T))


@dataclass(frozen=True)
class Residual:
    """The posterior after measurements `measured` (log(measured / predicted), (N,)) at `points`."""

    points: PlanFeatures
    measured: Floats
    weights: Floats  # (N,)
    inverse: Floats  # (N, N)

    def mean(self, asked: PlanFeatures) -> Floats:
        """Expected log(measured / predicted) of each asked-for plan, (M,)."""
        return np.asarray(covariance(asked, self.points) @ self.weights)

    def sigma(self, asked: PlanFeatures) -> Floats:
        """One sigma of it, (M,)."""
        cross = covariance(asked, self.points)
        own = HARDWARE**2 + JOB**2 + NARROW**2 + WIDE**2 + SHARE**2 * np.sum(asked.shares**2, axis=1)
        return np.asarray(np.sqrt(np.maximum(own - np.sum((cross @ self.inverse) * cross, axis=1), 0.0)))


def empty() -> Residual:
    """The prior: nothing measured yet."""
    none = PlanFeatures(np.zeros((0, SHAPE)), np.zeros((0, SHARES)), np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Residual(none, np.zeros(0), np.zeros(0), np.zeros((0, 0)))


def joined(a: PlanFeatures, b: PlanFeatures) -> PlanFeatures:
    """The points of both."""
    return PlanFeatures(*(np.concatenate([getattr(a, name), getattr(b, name)]) for name in NAMES))


def learn(points: PlanFeatures, measured: Floats) -> Residual:
    """The posterior after log(measured / predicted) at `points`. A measurement that the others (or, alone, the prior)
    hold impossible has its noise raised by as much as it is beyond: it moves little."""
    prior = covariance(points, points)
    noise = np.full(len(measured), NOISE**2)
    for _ in range(_ROUNDS if len(measured) else 0):
        inverse = np.linalg.inv(prior + np.diag(noise))
        # leave-one-out residual and variance (Rasmussen & Williams, eq. 5.12)
        diagonal = np.diag(inverse)
        off = inverse @ measured / diagonal
        # what the others and the prior allow, without this one's own inflated noise
        spread = np.sqrt(np.maximum(1 / diagonal - noise, 0.0) + NOISE**2)
        noise = NOISE**2 + np.maximum(0.0, np.abs(off) - _OUTLIER * spread) ** 2
    inverse = np.linalg.inv(prior + np.diag(noise))
    return Residual(points, measured, np.asarray(inverse @ measured), np.asarray(inverse))
