"""The period of local steps by the Quadratic Synchronization Rule."""

from __future__ import annotations

import pytest
from synergy_launch.communication.local_steps import period

from synergyd.exchange import MAX_PERIOD


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
