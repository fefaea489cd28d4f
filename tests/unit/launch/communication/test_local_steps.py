"""The period of local steps by the Quadratic Synchronization Rule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from synergy_core.exchange import MAX_PERIOD, parse_exchange
from synergy_launch.communication.local_steps import LocalSteps, next_period


@pytest.mark.parametrize(
    ("rate", "steps"),
    [
        (0.1, 4),
        (0.2, 4),  # above the peak so far
        (0.09, 4),  # floor(4.94)
        (0.05, 16),
        (0.1 / 3, 36),
        (0.01, 400),
        (1e-9, MAX_PERIOD),
        (0.0, 4),
    ],
)
def test_the_period_grows_with_the_square_of_the_falling_rate(rate: float, steps: int) -> None:
    assert next_period(4, 0.1, rate) == steps


def test_the_period_that_runs_is_told_as_it_doubles() -> None:
    weights = torch.nn.Parameter(torch.zeros(2))
    replicas: Any = SimpleNamespace(names={"w": weights}, parameters=[weights], buffers=list, average=lambda _: None)
    steps = LocalSteps(parse_exchange("local:4", "test"), replicas)
    steps.begin(0.1, 1000)  # the rate may rise still
    assert steps.begin(0.1, 1000)
    seen = [steps.exchange_in_use]
    for rate, rounds in ((0.1, 2), (0.08, 2), (0.065, 2), (0.033, 2), (0.065, 1)):
        for _ in range(rounds):
            steps.begin(rate, 1000)
            steps.after_step(rate)
            while not steps.round_over:
                steps.after_step(rate)
            if steps.exchange_in_use != seen[-1]:
                seen.append(steps.exchange_in_use)
    assert seen == [parse_exchange(f"local:{n}", "test") for n in (4, 9, 36, 9)]


def test_a_run_that_goes_on_tells_the_period_that_it_had() -> None:
    """Else its first round, of 36 steps, would be told as one of 4."""
    weights = torch.nn.Parameter(torch.zeros(2))
    replicas: Any = SimpleNamespace(names={"w": weights}, parameters=[weights], buffers=list, average=lambda _: None)
    before, after, other = (
        LocalSteps(parse_exchange(text, "test"), replicas) for text in ("local:4", "local:4", "local:8")
    )
    for rate in (0.1, 0.1, *(0.033,) * 36):
        before.begin(rate, 1000)
        before.after_step(rate)
    while not before.round_over:
        before.after_step(0.033)
    assert before.exchange_in_use == parse_exchange("local:36", "test")
    kept = before.state()
    after.restore(kept)
    assert after.exchange_in_use == before.exchange_in_use
    other.restore(kept)
    assert other.exchange_in_use == parse_exchange("local:72", "test"), "the rule's factor goes on, not its steps"
    earlier = {name: value for name, value in kept.items() if name != "longer"}  # a checkpoint of the release before
    after.restore(earlier)
    assert after.active
