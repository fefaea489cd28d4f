"""Learning-rate rules against the limits that their papers state."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.rates import adascale, factor, fit_line, learning_rate, linear, square_root, usual_rule

from synergyd.jobmodel.model.efficiency import efficiency

positive = st.floats(1, 1e6)


@given(base=positive, scale=st.floats(1, 1e4), noise=st.floats(0, 1e9))
def test_adascale_lies_between_one_and_the_linear_rule(base: float, scale: float, noise: float) -> None:
    gain = adascale(base, base * scale, noise)
    assert 1 - 1e-9 <= gain <= scale * (1 + 1e-9)
    assert adascale(base, base, noise) == pytest.approx(1)


def test_adascale_without_noise_and_with_noise_alone() -> None:
    # Johnson et al. 2020: identity and linear scaling are its two ends
    assert adascale(256, 4096, 0.0) == 1.0
    assert adascale(256, 4096, 1e12) == pytest.approx(16, rel=1e-6)
    # sigma^2 = mu^2 at the base batch, S = 4: (1 + 1) / (1/4 + 1) = 1.6
    assert adascale(100, 400, 100.0) == pytest.approx(1.6)


@given(base=positive, scale=st.floats(1, 1e4), noise=st.floats(0, 1e9))
def test_a_step_is_worth_the_gain(base: float, scale: float, noise: float) -> None:
    # efficiency of a sequence times how many more there are: Pollux's EFFICIENCY = r M0 / M
    share = float(efficiency(np.asarray(base * scale), noise, base))
    assert adascale(base, base * scale, noise) == pytest.approx(share * scale, rel=1e-9)


def test_linear_and_square_root() -> None:
    # Goyal et al. 2017: 0.1 at 256 becomes 3.2 at 8192
    assert 0.1 * linear(256, 8192) == pytest.approx(3.2)
    # You et al. 2020, table 4: LAMB's 5e-4 * sqrt(2) at 512 to its double at four times the batch
    assert square_root(512, 2048) == 2.0
    assert learning_rate(1e-3, 256, 1024, "AdamW") == pytest.approx(2e-3)
    assert learning_rate(0.1, 256, 1024, "sgd") == pytest.approx(0.4)
    assert learning_rate(0.1, 100, 400, "sgd", 100.0) == pytest.approx(0.16)
    assert learning_rate(0.1, 256, 1024, "sgd", rule="none") == 0.1


def test_usual_rules() -> None:
    assert usual_rule("SGD", True) == "adascale" and usual_rule("sgd", False) == "linear"
    assert {usual_rule(name, known) for name in ("adam", "adamw", "lamb") for known in (True, False)} == {"sqrt"}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: usual_rule("sophia", True), "sophia is not known"),
        (lambda: factor("cubic", 1, 2), "cubic is not known"),
        (lambda: factor("adascale", 1, 2), "needs the gradient noise scale"),
        (lambda: factor("adascale", 1, 2, math.nan), "needs the gradient noise scale"),
        (lambda: factor("linear", 0, 2), "must be positive"),
        (lambda: factor("sqrt", 1, math.inf), "must be positive"),
    ],
)
def test_bad_input_is_one_line(call: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


def test_the_line_through_exact_times() -> None:
    assert fit_line({16: 1.16, 64: 1.64}) == pytest.approx((1.0, 0.01))
    assert fit_line({16: 1.0, 64: 1.0})[1] == 0.0
    start_s, slope = fit_line({16: 1.0, 64: 5.0})
    assert start_s == 0.0 and slope == pytest.approx(3.0 / 40, rel=0.3)
