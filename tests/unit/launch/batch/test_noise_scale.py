from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_launch.batch.data_order import SampleOrder, rank_samples
from synergy_launch.batch.noise_scale import NoiseScale
from synergy_launch.examples.text import TextWindows


def test_exact_norms_give_the_exact_noise_scale() -> None:
    # E|g_B|^2 = G2 + S / B with G2 = 4, S = 60: noise scale 15.
    scale = NoiseScale()
    assert scale.value is None
    for _ in range(3):
        assert scale.update(4 + 60 / 2, 4 + 60 / 32, 2, 32) == pytest.approx(15)


def test_estimate_from_noisy_gradients() -> None:
    random.seed(1)
    scale = NoiseScale(decay=0.999)
    mean, sigma, size = [0.5, -1.0, 2.0], [3.0, 1.0, 2.0], 3

    def norm(gradient: list[float]) -> float:
        return sum(g * g for g in gradient)

    for _ in range(3000):
        small = [[random.gauss(mean[i], sigma[i] / 2**0.5) for i in range(size)] for _ in range(4)]
        big = [sum(g[i] for g in small) / 4 for i in range(size)]
        scale.update(sum(norm(g) for g in small) / 4, norm(big), 2, 8)
    truth = sum(s * s for s in sigma) / norm(mean)
    assert scale.value == pytest.approx(truth, rel=0.1)


def test_steps_that_say_nothing_change_nothing() -> None:
    scale = NoiseScale()
    scale.update(34.0, 4 + 60 / 32, 2, 32)
    before = scale.value
    assert before is not None
    scale.update(1.0, 1.0, 8, 8)
    scale.update(float("nan"), 1.0, 2, 8)
    scale.update(float("inf"), 1.0, 2, 8)
    assert scale.value == before


def test_no_value_while_the_averages_make_no_sense() -> None:
    assert NoiseScale().update(1.0, 2.0, 1, 2) is None  # negative trace
    assert NoiseScale().update(9.0, 1.0, 1, 2) is None  # negative square


def test_state_survives_a_restart() -> None:
    scale, other = NoiseScale(), NoiseScale()
    scale.update(34.0, 5.0, 2, 32)
    other.restore(scale.state())
    assert other.value == scale.value


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(0, 5), st.integers(0, 3))
def test_every_epoch_sees_each_example_once(count: int, seed: int, epoch: int) -> None:
    order = SampleOrder(count, seed)
    seen = [order.index(n) for n in range(epoch * count, (epoch + 1) * count)]
    assert sorted(seen) == list(range(count))


def test_order_is_mixed_and_depends_on_seed_and_epoch() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        order = SampleOrder(1000, seed)
        return [order.index(n) for n in range(1000 * number, 1000 * (number + 1))]

    assert epoch(0, 0) == epoch(0, 0)
    assert epoch(0, 0) != epoch(1, 0) and epoch(0, 0) != epoch(0, 1) and epoch(0, 0) != list(range(1000))
    # About as many ascents as a random permutation has.
    ascents = sum(a < b for a, b in zip(epoch(0, 0), epoch(0, 0)[1:], strict=False))
    assert 420 < ascents < 580


def test_no_examples_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SampleOrder(0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_the_ranks_share_out_a_batch_without_gap_or_repeat(start: int, dp: int, micro: int, count: int) -> None:
    batch = dp * micro * count
    shares = [rank_samples(start, batch, dp, rank, micro) for rank in range(dp)]
    assert all(len(share) == count and all(len(m) == micro for m in share) for share in shares)
    assert sorted(n for share in shares for m in share for n in m) == list(range(start, start + batch))


def test_the_text_is_real_and_windows_overlap_by_one_byte() -> None:
    text = TextWindows(64)
    assert len(text) > 3000
    assert len(text[0]) == 65 and text[0][-1] == text[1][0]
    assert b"assert" in text.text and len(text[len(text) - 1]) == 65
