"""The checkpoint interval against a simulated run, and what it is made of."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from synergy_launch.agent import checkpoint_interval


def wasted(every_s: float, save_s: float, failure_s: float, seed: int) -> float:
    """Share of the time that is lost to checkpoints and failures, over 3000 simulated failures."""
    rng = random.Random(seed)
    useful = total = 0.0
    for _ in range(3000):
        lives = rng.expovariate(1 / failure_s)
        useful += every_s * (lives // (every_s + save_s))
        total += lives
    return 1 - useful / total


@pytest.mark.parametrize(("save_s", "failure_s"), [(5.0, 3600.0), (60.0, 3600.0), (300.0, 1800.0)])
def test_no_other_interval_wastes_much_less(save_s: float, failure_s: float) -> None:
    chosen = checkpoint_interval.daly_s(save_s, failure_s)
    best = min(wasted(chosen * factor, save_s, failure_s, 1) for factor in (0.25, 0.5, 0.7, 1.4, 2.0, 4.0))
    assert wasted(chosen, save_s, failure_s, 1) < best * 1.02


def test_short_checkpoints_come_near_youngs_square_root() -> None:
    assert checkpoint_interval.daly_s(1.0, 1e6) == pytest.approx((2 * 1e6) ** 0.5, rel=1e-3)
    assert checkpoint_interval.daly_s(100.0, 40.0) == 40.0


@given(gpus=st.integers(1, 10_000), run_s=st.floats(0, 1e7), failures=st.integers(0, 100), save_s=st.floats(0.01, 1e4))
def test_more_failures_or_gpus_never_lengthen_it(gpus: int, run_s: float, failures: int, save_s: float) -> None:
    here = checkpoint_interval.choose_interval(gpus, save_s, run_s, failures)
    assume(4 * save_s < here.failure_s)  # at d = 2 M equation 37 jumps up by an eighth
    assert checkpoint_interval.SHORTEST_S <= here.every_s <= checkpoint_interval.LONGEST_S
    assert checkpoint_interval.choose_interval(gpus, save_s, run_s, failures + 1).every_s <= here.every_s * (1 + 1e-9)
    assert checkpoint_interval.choose_interval(2 * gpus, save_s, run_s / 2, failures).every_s <= here.every_s * (
        1 + 1e-9
    )


def test_the_prior_gives_way_to_what_the_run_has_seen() -> None:
    assert checkpoint_interval.failure_s(8, 0.0, 0) == pytest.approx(50_000 * 3600 / 8)
    seen = checkpoint_interval.failure_s(8, 200 * 3600.0, 99)  # a failure each two hours
    assert seen == pytest.approx(2 * 3600 * 32, rel=0.05)  # the prior's GPU hours still count
    assert checkpoint_interval.failure_s(1024, 2000 * 3600.0, 99) == pytest.approx(20 * 3600, rel=0.05)


def test_formatting() -> None:
    said = checkpoint_interval.choose_interval(64, 20.0, 0.0, 0).format()
    assert said.startswith("checkpoints every ") and "one takes 20 s" in said and "a failure is expected every" in said
