"""A loss over a change of the batch: harm is found, ordinary noise is none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest
from synergy_core.loss_trend import NO_LOSSES, LossTrend, highest_expected_loss, with_loss

# over the stretch before the change, which is 1
CURVES: dict[str, Callable[[float], float]] = {
    "power": lambda u: 2 + 1.5 * (u + 0.05) ** -0.4,
    "exponential": lambda u: 2 + 2 * math.exp(-u / 0.2),
    "flat": lambda u: 2.0,
    "line": lambda u: 4 - 0.5 * min(u, 3.0),
    "rising": lambda u: 2 + 0.3 * u,
}


def correlated(rng: random.Random, correlation: float, sigma: float) -> Iterator[float]:
    value = rng.gauss(0, sigma)
    while True:
        yield value
        value = correlation * value + math.sqrt(1 - correlation**2) * rng.gauss(0, sigma)


def trained(
    seed: int, curve: Callable[[float], float], correlation: float, harm: Callable[[int], float], sigma: float = 0.03
) -> LossTrend:
    """Batch 64, then 256 whose examples are worth half as much."""
    trend, noise = NO_LOSSES, correlated(random.Random(seed), correlation, sigma)
    before = 60
    progress = 0.0
    for step in range(before + 120):
        batch, worth = (64, 64.0) if step < before else (256, 128.0)
        progress += worth
        loss = curve(progress / 64 / before) + next(noise) + (harm(step - before) if step >= before else 0.0)
        trend = with_loss(trend, step, loss, batch, worth)
        if trend.worse is not None:
            break
    return trend


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_ordinary_noise_is_no_harm(curve: str, correlation: float) -> None:
    alarms = [trained(seed, CURVES[curve], correlation, lambda n: 0.0).worse for seed in range(40)]
    assert [a for a in alarms if a is not None] == []


@pytest.mark.parametrize("curve", ["power", "exponential", "flat"])
@pytest.mark.parametrize("harm", [lambda n: 0.1 * n, lambda n: 1.5], ids=["diverges", "rises"])
def test_a_loss_that_rises_and_stays_is_found(curve: str, harm: Callable[[int], float]) -> None:
    found = [trained(seed, CURVES[curve], 0.5, harm) for seed in range(10)]
    verdicts = [trend.worse for trend in found if trend.worse is not None]
    assert len(verdicts) == 10
    assert {(v.batch, v.good) for v in verdicts} == {(256, 64)}
    assert all(v.loss > v.expected_loss for v in verdicts)


def test_a_run_that_stops_learning_is_found_and_one_half_as_fast_is_not() -> None:
    line = CURVES["line"]

    def slower(by: float) -> Callable[[int], float]:
        return lambda n: line(1.0) + by * (line(1 + (n + 1) / 30) - line(1.0)) - line(1 + (n + 1) / 30)

    assert all(trained(seed, line, 0.0, slower(0.0), 0.01).worse is not None for seed in range(10))
    assert all(trained(seed, line, 0.0, slower(0.6), 0.01).worse is None for seed in range(10))


def test_a_spike_that_passes_is_none() -> None:
    assert all(trained(s, CURVES["flat"], 0.5, lambda n: 5.0 if n < 5 else 0.0).worse is None for s in range(10))


def test_a_job_without_losses_and_too_few_of_them() -> None:
    trend = NO_LOSSES
    for step in range(100):
        trend = with_loss(trend, step, None if step % 2 else math.nan, 64 if step < 50 else 256, 64.0)
    assert trend == NO_LOSSES
    for step in range(40):
        trend = with_loss(trend, step, (2.0 if step < 10 else 9.0) + 0.01 * (step % 2), 64 if step < 10 else 256, 64.0)
    assert trend.worse is None and trend.good == 256


def test_what_was_good_becomes_what_the_next_change_is_compared_with() -> None:
    trend = trained(1, CURVES["flat"], 0.0, lambda n: 0.0)
    assert (trend.good, trend.batch, trend.worse) == (256, 256, None)
    for step in range(trend.step + 1, trend.step + 25):
        trend = with_loss(trend, step, 4.0 + 0.01 * (step % 2), 1024, 128.0)
    assert trend.worse is not None and (trend.worse.batch, trend.worse.good) == (1024, 256)
    back = with_loss(trend, trend.step + 1, 2.0, 256, 128.0)
    assert back.worse is None and back.trial == ()


def test_a_batch_that_was_taken_back_in_time_leaves_no_trial() -> None:
    trend = NO_LOSSES
    for step in range(60):
        trend = with_loss(trend, step, 2.0 + 0.01 * (step % 3), 64, 64.0)
    for step in range(60, 64):
        trend = with_loss(trend, step, 9.0 + 0.01 * step, 256, 64.0)
    for step in range(64, 90):
        trend = with_loss(trend, step, 2.0 + 0.01 * (step % 3), 64, 64.0)
    assert trend.worse is None and trend.trial == () and trend.good == 64


def test_a_loss_that_is_told_again_for_later_steps_is_no_new_one() -> None:
    """Hugging Face's Trainer logs one mean for many steps: without it those before the change would seem to be without noise."""
    trend, rng = NO_LOSSES, random.Random(3)
    for step in range(0, 4000, 10):
        if step % 100 == 0:
            loss = 2.0 + rng.gauss(0, 0.05)
        trend = with_loss(trend, step, loss, 64 if step < 2600 else 256, 64.0)
        assert trend.worse is None, step
    assert len(trend.points_before) + len(trend.trial) == 40 and trend.good == 64
    assert trend.trial[0][0] == 2600 * 64.0, "the first step that it was told of"


@pytest.mark.parametrize("absurd", [1e300, -1e300, 1.7e308])
def test_absurd_losses_raise_nothing_and_count_as_no_harm(absurd: float) -> None:
    trend = NO_LOSSES
    for step in range(120):
        loss = absurd * (1 + step % 3) / 4 if step < 60 else 2.0 + 0.01 * (step % 3)
        trend = with_loss(trend, step * 10**9, loss, 64 if step < 60 else 256, 2.0**40)
        assert trend.worse is None or trend.worse.loss > trend.worse.expected_loss
    assert len(trend.points_before) <= 96 and len(trend.trial) <= 96


def test_steps_that_are_done_again_take_the_place_of_those_before() -> None:
    trend = NO_LOSSES
    for step in range(40):
        trend = with_loss(trend, step, 2.0 + 0.01 * (step % 2), 64, 64.0)
    trend = with_loss(trend, 19, 2.5, 64, 64.0)
    assert trend.progress == 19 * 64 and len(trend.points_before) == 20 and trend.points_before[-1] == (19 * 64, 2.5)
    assert with_loss(trend, 19, 7.0, 64, 64.0) == trend  # the same step reported again


def test_highest_lies_between_the_trend_and_its_end() -> None:
    rng = random.Random(0)
    points = [(float(n), 4 - 0.1 * n + rng.gauss(0, 0.01)) for n in range(16)]
    far = highest_expected_loss(points, 60.0)
    assert 4 - 0.1 * 20 < far < points[-1][1] + 0.05
    assert highest_expected_loss(points, 600.0) == far  # no trend is believed for long


@pytest.mark.parametrize("curve", ["power", "flat"])
def test_a_loss_that_is_told_again_until_the_next_is_one(curve: str) -> None:
    """As Trainer logs one: the reports in between bring no news, and their number makes no rise of it."""
    alarms, grown = 0, 0
    for seed in range(20):
        rng, trend = random.Random(seed), NO_LOSSES
        for step in range(3000):
            batch, worth = (64, 64.0) if step < 1800 else (256, 128.0)
            if step % 30 == 0:
                loss = CURVES[curve]((step + 30) / 1800) + rng.gauss(0, 0.03)
            trend = with_loss(trend, step, loss, batch, worth)
            alarms += trend.worse is not None
        grown += trend.progress == 1799 * 64 + 1200 * 128
    assert (alarms, grown) == (0, 20)
