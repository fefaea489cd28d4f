"""The period of local steps by the Quadratic Synchronization Rule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from synergy_launch.communication.local_steps import LocalSteps, period

from synergyd.exchange import MAX_PERIOD, exchange


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
    assert period(4, 0.1, rate) == steps


@pytest.mark.parametrize(("text", "told"), [("local:4", [4, 9, 36, 9]), ("local:4:outer", [4])])
def test_the_period_that_runs_is_told_as_it_doubles(text: str, told: list[int]) -> None:
    weights = torch.nn.Parameter(torch.zeros(2))
    replicas: Any = SimpleNamespace(names={"w": weights}, parameters=[weights], buffers=list, average=lambda _: None)
    steps = LocalSteps(exchange(text, "test"), replicas)
    steps.begin(0.1, 1000)  # the rate may rise still
    assert steps.begin(0.1, 1000)
    seen = [steps.runs]
    for rate, rounds in ((0.1, 2), (0.08, 2), (0.065, 2), (0.033, 2), (0.065, 1)):
        for _ in range(rounds):
            steps.begin(rate, 1000)
            steps.stepped(rate)
            while not steps.round_over:
                steps.stepped(rate)
            if steps.runs != seen[-1]:
                seen.append(steps.runs)
    assert seen == [exchange(text.replace("4", str(n)), "test") for n in told]


def test_a_run_that_goes_on_tells_the_period_that_it_had() -> None:
    """Else its first round, of 36 steps, would be told as one of 4."""
    weights = torch.nn.Parameter(torch.zeros(2))
    replicas: Any = SimpleNamespace(names={"w": weights}, parameters=[weights], buffers=list, average=lambda _: None)
    before, after, other = (LocalSteps(exchange(text, "test"), replicas) for text in ("local:4", "local:4", "local:8"))
    for rate in (0.1, 0.1, *(0.033,) * 36):
        before.begin(rate, 1000)
        before.stepped(rate)
    while not before.round_over:
        before.stepped(0.033)
    assert before.runs == exchange("local:36", "test")
    kept = before.state()
    after.restore(kept)
    assert after.runs == before.runs
    other.restore(kept)
    assert other.runs == exchange("local:72", "test"), "the rule's factor goes on, not its steps"
    earlier = {name: value for name, value in kept.items() if name != "longer"}  # a checkpoint of the release before
    after.restore(earlier)
    assert after.active
