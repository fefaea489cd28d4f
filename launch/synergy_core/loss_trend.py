"""A check whether a run's loss goes on as before after its batch, and its learning rate with it, has grown.

Losses are looked at over progress, in examples at one and the same batch (synergy_core.rates.equivalent_sequences): by the theory of the
gradient noise scale (McCandlish et al. 2018, section 2.4) the loss over progress is one curve for all batches. A change is on trial for
as many losses as were fitted before it. Before it the curve is taken for a + b exp(-p / tau), or a straight line; each tau whose fit is
not clearly worse than the best one is believed (profile likelihood: squared error within _PLAUSIBLE variances). The expected loss after
it is the highest of their predictions, at half of the progress made and for half the fitted stretch at the most: a curve that flattens,
and a noise scale that is wrong by a factor of two, are no harm. The loss does worse where the means of _BLOCKS blocks in a row lie
_SIGMAS standard errors of prediction above that: a spike that passes is none, a divergence or a rise that stays is.

Pure, and of the standard library alone: runs without a daemon use it too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

# Losses that a trend is fitted to, at least and at most. Reports come every 10 s, so that is 4 to 16 minutes.
_LEAST, _MOST = 24, 96
# Means of so many blocks are fitted: neighbouring losses are alike where one report covers few steps.
_FITTED = 16
_BLOCKS, _LEAST_ON_TRIAL = 3, 8
# None of 450 changes without effect (150 of three curves each) was taken for harm where the noise of one loss and the next has a
# correlation of 0.5; with 0.8 at most 1.3 % (3.5 standard errors) or 0.7 % (4.5) of a curve's, with 0.9 at most 4 % or 2 %.
_SIGMAS = 4.0
_PLAUSIBLE = 9.0
# Times the fitted stretch. The last stands for a straight line.
_TAUS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, math.inf)

Point = tuple[float, float]
# squared error, level, slope, tau, mean and squares of the shape
_Fit = tuple[float, float, float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Worse:
    """Losses at `batch` around `loss`, where the trend at `good` let expect at most `expected_loss`."""

    batch: int
    good: int
    loss: float
    expected_loss: float


@dataclass(frozen=True, kw_only=True)
class LossTrend:
    """The kept losses of one run. Points are (progress, loss), the newest last."""

    #: the batch of the newest loss
    batch: int = 0
    #: the largest whose losses have been as expected, 0: none yet
    good: int = 0
    step: int = -1
    progress: float = 0.0
    #: at batches up to `good`
    points_before: tuple[Point, ...] = ()
    #: at larger ones, on trial
    trial: tuple[Point, ...] = ()
    #: the trial has failed; the run has not gone back yet
    worse: Worse | None = None


NO_LOSSES = LossTrend()


def with_loss(trend: LossTrend, step: int, loss: float | None, batch: int, step_worth: float) -> LossTrend:
    """Return the trend once `loss` of `step`, a step of `batch`, is known; each step is worth `step_worth` examples of progress.

    A loss that is not told, not finite, or of a step that is known changes nothing. A loss equal to the newest one is no point: a run that
    logs every so many steps tells it until the next. After a restart from an older checkpoint the progress is that of the step.
    """
    if step == trend.step or batch < 1 or loss is None or not math.isfinite(loss):
        return trend
    progress = trend.progress + (step - trend.step if trend.step >= 0 else 0) * step_worth
    if progress < trend.progress:
        trend = _drop_points_after(trend, progress)
    trend = replace(trend, step=step, progress=progress)
    newest = (trend.points_before + trend.trial)[-1:]
    points = () if newest and newest[0][1] == loss else ((progress, loss),)
    if batch <= trend.good or not trend.good:
        points_before = (*trend.points_before, *points)[-_MOST:]
        return replace(
            trend, batch=batch, good=max(trend.good, batch), points_before=points_before, trial=(), worse=None
        )
    if trend.worse is not None or not points:
        return replace(trend, batch=batch)
    if len(trend.points_before) < _LEAST:  # nothing to compare with
        return replace(trend, batch=batch, good=batch, points_before=(*trend.points_before, *points))
    trend = replace(trend, batch=batch, trial=(*trend.trial, *points))
    if (worse := _judge_trial(trend)) is not None:
        return replace(trend, worse=worse)
    if len(trend.trial) < len(trend.points_before):
        return trend
    return replace(trend, good=batch, points_before=trend.trial, trial=())


def can_grow(trend: LossTrend) -> bool:
    """Return whether a larger batch could be compared with what was before: not while one is on trial.

    Returns True where no loss is told.
    """
    return not trend.batch or (len(trend.points_before) >= _LEAST and not trend.trial)


def _drop_points_after(trend: LossTrend, progress: float) -> LossTrend:
    """Return the trend without the points beyond `progress`, whose steps are done again."""
    before = tuple(p for p in trend.points_before if p[0] < progress)
    return replace(trend, points_before=before, trial=tuple(p for p in trend.trial if p[0] < progress))


def _judge_trial(trend: LossTrend) -> Worse | None:
    size = max(1, len(trend.points_before) // _FITTED)
    if len(trend.trial) % size or len(trend.trial) < max(_BLOCKS * size, _LEAST_ON_TRIAL):
        return None
    fitted = _means(trend.points_before, size)
    last = _means(trend.trial[-_BLOCKS * size :], size)
    expected = [highest_expected_loss(fitted, at) for at, _ in last]
    # neither is so of a prediction that is no number
    if not all(loss > most for (_, loss), most in zip(last, expected, strict=True)):
        return None
    return Worse(batch=trend.batch, good=trend.good, loss=last[-1][1], expected_loss=expected[-1])


def _means(points: Sequence[Point], size: int) -> list[Point]:
    """Return the means of blocks of `size` points, the oldest rest left out."""
    parts = [points[i : i + size] for i in range(len(points) % size, len(points), size)]
    return [(sum(p for p, _ in part) / size, sum(loss for _, loss in part) / size) for part in parts]


def highest_expected_loss(fitted: Sequence[Point], at: float) -> float:
    """Return the highest loss at progress `at` that the trend of `fitted`, four points or more, lets expect of one more such point."""
    first, span = fitted[0][0], max(fitted[-1][0] - fitted[0][0], 1e-9)
    times = [(p - first) / span for p, _ in fitted]
    losses = [loss for _, loss in fitted]
    beyond = max(0.0, (at - first) / span - 1.0)
    fits = [fit for tau in _TAUS if (fit := _fit(times, losses, tau)) is not None]
    freedom = len(fitted) - 3
    best = min(fits)
    # the variance of a mean of alike neighbours (Bayley and Hammersley 1946, for a first-order autoregression)
    alike = min(0.9, max(0.0, _autocorrelation(times, losses, best)))
    variance = best[0] / freedom * (1 + alike) / (1 - alike)
    # a few degrees of freedom make the error itself uncertain: the t distribution's variance in place of the normal one's
    sigmas = _SIGMAS * math.sqrt(freedom / (freedom - 2)) if freedom > 2 else 2 * _SIGMAS
    highest_loss = -math.inf
    for error, level, slope, tau, mean, square in fits:
        if error > best[0] + _PLAUSIBLE * variance:
            continue
        # a loss that was rising may go on to rise
        ahead = 1.0 + (0.5 * min(beyond, 0.5) if slope >= 0 else beyond)
        far = _curve(ahead, tau) - mean
        spread = math.sqrt(variance * (1.0 + 1.0 / len(fitted) + (far * far / square if square else 0.0)))
        highest_loss = max(highest_loss, level + slope * far + sigmas * spread)
    return highest_loss


def _autocorrelation(times: Sequence[float], losses: Sequence[float], fit: _Fit) -> float:
    """Return the correlation of neighbouring residuals around `fit`."""
    error, level, slope, tau, mean, _ = fit
    rest = [y - level - slope * (_curve(t, tau) - mean) for t, y in zip(times, losses, strict=True)]
    return sum(a * b for a, b in pairwise(rest)) / error if error else 0.0


def _curve(time: float, tau: float) -> float:
    """Return the curve's shape at `time`, which falls from 1 on."""
    return 1.0 - time if math.isinf(tau) else math.exp(-time / tau)


def _fit(times: Sequence[float], losses: Sequence[float], tau: float) -> _Fit | None:
    """Return the least-squares fit of level + slope (shape - mean). None for a curve that would rise: only a straight line may."""
    shapes = [_curve(t, tau) for t in times]
    mean, level = sum(shapes) / len(shapes), sum(losses) / len(losses)
    square = sum((s - mean) * (s - mean) for s in shapes)
    slope = sum((s - mean) * (y - level) for s, y in zip(shapes, losses, strict=True)) / square if square else 0.0
    if slope < 0 and not math.isinf(tau):
        return None
    rest = [y - level - slope * (s - mean) for s, y in zip(shapes, losses, strict=True)]
    error = sum(r * r for r in rest)  # a power of absurd losses would raise OverflowError
    return error, level, slope, tau, mean, square
