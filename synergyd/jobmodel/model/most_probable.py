"""The most probable constants of many jobs' throughput models at once, by Levenberg and Marquardt's steps.

Each job alone is a few small arrays, of which a step takes nearly as long as one of many jobs. A job's answer does not depend on the
others of its call: its padding is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from synergyd.jobmodel.model.arrays import Floats, Ints

_ITERATIONS, _DAMPED = 100, 1e8  # steps at most, and the damping at which none helps
_WIDTH = 16  # measurements are padded to a multiple of this
_SLOPE = 1e-4  # step of a constant's logarithm
_AT_ONCE = 128  # jobs whose arrays (8 sets of constants, 48 measurements) stay in the processor's cache


class ToFit(NamedTuple):
    """The data of one job: `terms` (7, N) and the logarithm of the measured seconds (N,); its prior's mean and sigma, (7,) each.

    `starts`: the constants from which to descend beside the prior's mean, where costs may have several minima.
    """

    terms: Floats
    wanted: Floats
    mean: Floats
    sigma: Floats
    starts: tuple[Floats, ...] = ()


Steps = Callable[[Floats, Floats], Floats]  # seconds of constants and terms


def log_slopes(steps: Steps, theta: Floats, terms: Floats) -> Floats:
    """Return the change of the logarithm of each step with each constant's logarithm, (..., 7, N).

    `theta` has shape (..., 7), `terms` (7, ..., N).
    """
    axes, constants = theta.ndim, theta.shape[-1]
    sets = theta + _further(constants).reshape(-1, *[1] * (axes - 1), constants)  # (8, ..., 7)
    at = np.log(steps(sets.transpose(axes, *range(axes))[..., None], terms))
    # transpose() does as moveaxis() does, and takes a tenth of the time
    return np.asarray(((at[1:] - at[0]) / _SLOPE).transpose(*range(1, axes), 0, axes))


@cache
def _further(constants: int) -> Floats:
    return np.concatenate([np.zeros((1, constants)), _SLOPE * np.eye(constants)])


def most_probable(jobs: Sequence[ToFit], steps: Steps, noise: float) -> list[Floats]:
    """Return the constants of least cost of each job, (7,).

    The cost is soft-L1 of the measurements over `noise`, plus quadratic priors.
    """
    optima: list[Floats] = [job.mean for job in jobs]
    least = [np.inf] * len(jobs)
    widths: dict[int, list[tuple[int, Floats]]] = {}  # (job, start) by number of measurements
    for i, job in enumerate(jobs):
        own = widths.setdefault(-(-len(job.wanted) // _WIDTH) * _WIDTH, [])
        own += [(i, start) for start in (job.mean, *job.starts)]
    for width, own in widths.items():
        for first in range(0, len(own), _AT_ONCE):
            some = own[first : first + _AT_ONCE]
            descent = _Descent([jobs[i] for i, _ in some], width, steps, noise)
            answers = descent.run(np.stack([start for _, start in some]))
            for (i, _), theta, cost in zip(some, *answers, strict=True):
                if cost < least[i]:
                    optima[i], least[i] = theta, cost
    return optima


class _Descent:
    """A descent for B jobs of up to W measurements."""

    def __init__(self, jobs: Sequence[ToFit], width: int, steps: Steps, noise: float) -> None:
        self._steps, self._noise = steps, noise
        # the padding repeats the first measurement, and counts for nothing
        at = [np.where(np.arange(width) < len(job.wanted), np.arange(width), 0) for job in jobs]
        self._terms = np.stack([job.terms[:, index] for job, index in zip(jobs, at, strict=True)], axis=1)
        self._wanted = np.stack([job.wanted[index] for job, index in zip(jobs, at, strict=True)])
        self._counts = np.stack([np.arange(width) < len(job.wanted) for job in jobs]).astype(np.float64)
        self._mean = np.stack([job.mean for job in jobs])
        self._eye = np.eye(self._mean.shape[-1])
        self._precision = 1 / np.stack([job.sigma for job in jobs]) ** 2

    def run(self, start: Floats) -> tuple[Floats, Floats]:
        """Return the most probable constants, (B, 7), by a descent from `start`, (B, 7), and their costs, (B,)."""
        with np.errstate(over="ignore", invalid="ignore"):  # a step too far, which is not taken
            return self._solution(start)

    def _solution(self, start: Floats) -> tuple[Floats, Floats]:
        count, constants = start.shape
        theta, damping = start.copy(), np.full(count, 1e-2)
        best, off = self._cost(theta, np.arange(count))
        before, iterations = best.copy(), np.zeros(count, dtype=np.intp)
        normal, gradient = np.zeros((count, constants, constants)), np.zeros((count, constants))
        active, fresh = np.arange(count), np.arange(count)  # still searching, and those of them that need slopes
        while active.size:
            if fresh.size:
                normal[fresh], gradient[fresh] = self._slopes(theta[fresh], off[fresh], fresh)
                before[fresh] = best[fresh]
            damped = normal[active]
            diagonal = damped.reshape(len(active), -1)[:, :: constants + 1]
            diagonal += damping[active, None] * diagonal
            trial = theta[active] - np.linalg.solve(damped, gradient[active][..., None])[..., 0]
            value, there = self._cost(trial, active)
            better = np.isfinite(value) & (value < best[active])
            gained = active[better]
            if not gained.size:
                damping[active] *= 4
                active = active[damping[active] < _DAMPED]
                fresh = gained
                continue
            theta[gained], best[gained], off[gained] = trial[better], value[better], there[better]
            damping[gained] = np.maximum(damping[gained] / 9, 1e-9)
            damping[active[~better]] *= 4
            iterations[gained] += 1
            goes_on = (before[gained] - best[gained] >= 1e-7 * (1 + best[gained])) & (iterations[gained] < _ITERATIONS)
            fresh = gained[goes_on]
            waiting = active[~better]
            active = np.sort(np.concatenate([fresh, waiting[damping[waiting] < _DAMPED]]))
        return theta, best

    def _cost(self, theta: Floats, of: Ints) -> tuple[Floats, Floats]:
        off = (np.log(self._steps(theta.T[..., None], self._terms[:, of])) - self._wanted[of]) / self._noise
        residual = 2 * np.sum((np.sqrt(1 + off**2) - 1) * self._counts[of], axis=-1)
        return residual + np.sum(self._precision[of] * (theta - self._mean[of]) ** 2, axis=-1), off

    def _slopes(self, theta: Floats, off: Floats, of: Ints) -> tuple[Floats, Floats]:
        slopes = log_slopes(self._steps, theta, self._terms[:, of]) / self._noise
        weight = self._counts[of] / np.sqrt(1 + off**2)
        weighted = slopes * weight[:, None, :]
        precision = self._precision[of]
        normal = weighted @ np.swapaxes(slopes, -1, -2) + precision[:, :, None] * self._eye
        gradient = (slopes @ (weight * off)[..., None])[..., 0] + precision * (theta - self._mean[of])
        return normal, gradient
