"""The ratio of two noisy averages: right where it is told, and not told where the noise hides it."""

from __future__ import annotations

import math
import random
import statistics

from synergy_launch.communication.progress import Ratio


def seen(noise: float, steps: int, seed: int = 0) -> Ratio:
    """Of 0.8 and 1, each with its own noise."""
    rng = random.Random(seed)
    ratio = Ratio()
    for _ in range(steps):
        ratio.add(0.8 + rng.gauss(0, noise), 1 + rng.gauss(0, noise))
    return ratio


def test_it_is_told_when_it_is_known_and_within_its_error() -> None:
    values = [seen(0.3, 600, seed).value for seed in range(200)]
    known = [value for value in values if value is not None]
    assert len(known) == 200
    assert abs(statistics.fmean(known) - 0.8) < 0.01 and statistics.stdev(known) < 0.05
    assert seen(5.0, 600).value is None, "the noise of single batches"
    assert seen(0.0, 9).value is None and seen(0.0, 11).value is not None, "too few steps"


def test_it_stays_in_what_a_report_can_hold() -> None:
    ratio = Ratio()
    for _ in range(20):
        ratio.add(3.0, 1.0)
        ratio.add(math.nan, 1.0)
        ratio.add(1.0, math.inf)
    assert ratio.value == 1.0
    falling, backwards = Ratio(), Ratio()
    for _ in range(20):
        falling.add(-1.0, 1.0)
        backwards.add(1.0, -1.0)
    assert falling.value == 1e-6 and backwards.value is None
    assert Ratio().value is None


def test_it_goes_over_a_restart() -> None:
    before = seen(0.1, 50)
    after = Ratio()
    after.restore(before.state())
    assert after.value == before.value
