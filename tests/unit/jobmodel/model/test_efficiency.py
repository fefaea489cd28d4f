"""Statistical efficiency at batches that a job has not had."""

from __future__ import annotations

import numpy as np
import pytest

from synergyd.jobmodel.model.efficiency import efficiency, goodput, noise_scale_at

SMALLEST, PRESENT, NOISE = 128.0, 512.0, 900.0
BATCHES = np.array([128, 256, 512, 1024, 4096, 32768])


def test_the_noise_scale_grows_with_the_batch_as_the_temperature_falls() -> None:
    """Rate over batch falls with AdaScale's rate as EFF does, and the noise scale is inverse to it."""
    at = noise_scale_at(BATCHES, NOISE, PRESENT, SMALLEST)
    assert at[2] == pytest.approx(NOISE, rel=1e-12)
    assert (np.diff(at) > 0).all()
    temperature = efficiency(BATCHES, at, SMALLEST)
    np.testing.assert_allclose(at * temperature, NOISE * efficiency(np.array(PRESENT), NOISE, SMALLEST), rtol=1e-9)


@pytest.mark.parametrize("noise", [1e-9, 0.5, 30.0, 1e7])
def test_the_estimate_stays_between_one_noise_scale_and_one_in_proportion_to_the_batch(noise: float) -> None:
    at = noise_scale_at(BATCHES, noise, PRESENT, SMALLEST)
    bounds = np.sort([np.full(len(BATCHES), noise), noise * BATCHES / PRESENT], axis=0)
    assert (at >= bounds[0] * (1 - 1e-6)).all()
    assert (at <= bounds[1] * (1 + 1e-6)).all()


def test_an_unknown_noise_scale_makes_no_larger_batch_useful() -> None:
    good, share = goodput(np.full(len(BATCHES), 100.0), BATCHES, 0.0, SMALLEST, SMALLEST)
    np.testing.assert_allclose(share, SMALLEST / BATCHES)
    np.testing.assert_allclose(good, 100.0 * share)


def test_at_the_present_batch_nothing_changes() -> None:
    one, other = (goodput(np.ones(1), np.array([PRESENT]), NOISE, SMALLEST, present) for present in (None, PRESENT))
    np.testing.assert_allclose(one, other, rtol=1e-12)
