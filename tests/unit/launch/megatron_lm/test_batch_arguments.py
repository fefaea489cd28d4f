"""Megatron-LM's rates and lengths at another global batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_launch.megatron_lm.batch_arguments import Trained, read, with_batch, write
from synergy_launch.megatron_lm.options import option_number, option_real, option_values

USER = ["--global-batch-size", "64", "--lr", "1e-4", "--min-lr", "1e-5", "--train-iters", "1000"]
USER += ["--lr-warmup-iters", "10", "--weight-decay", "0.1", "--adam-beta2", "0.95", "--eval-interval", "100"]


def test_rates_and_lengths_follow() -> None:
    made = with_batch(USER, 256, Trained())
    assert (option_real(made, "--lr", 0), option_real(made, "--min-lr", 0)) == pytest.approx((2e-4, 2e-5))
    assert option_real(made, "--weight-decay", 0) == pytest.approx(0.2)
    assert option_number(made, "--train-samples", 0) == option_number(made, "--lr-decay-samples", 0) == 64_000
    assert option_number(made, "--lr-warmup-samples", 0) == 640
    assert not option_values(made, "--train-iters") and not option_values(made, "--lr-warmup-iters")
    assert option_number(made, "--eval-interval", 0) == 100


def test_the_embeddings_own_rate_and_a_growing_decay_follow_too() -> None:
    more = ["--decoupled-lr", "4e-4", "--decoupled-min-lr=4e-5", "--start-weight-decay", "0.01"]
    more += ["--end-weight-decay", "0.1", "--weight-decay-incr-style", "cosine"]
    made = with_batch([*USER, *more], 256, Trained())
    assert (option_real(made, "--decoupled-lr", 0), option_real(made, "--decoupled-min-lr", 0)) == pytest.approx(
        (8e-4, 8e-5)
    )
    assert (option_real(made, "--start-weight-decay", 0), option_real(made, "--end-weight-decay", 0)) == pytest.approx(
        (0.02, 0.2)
    )
    assert option_values(made, "--weight-decay-incr-style") == ["cosine"]
    assert not option_values(with_batch(USER, 256, Trained()), "--start-weight-decay")
    sgd = with_batch([*USER, *more, "--optimizer", "sgd"], 128, Trained())
    assert (
        option_real(sgd, "--decoupled-lr", 0) == pytest.approx(8e-4)
        and option_real(sgd, "--end-weight-decay", 0) == 0.1
    )


def test_nothing_changes_at_the_tuned_batch_or_without_one() -> None:
    assert with_batch(USER, 64, Trained(500, ((0, 64),))) == USER
    assert with_batch(USER[2:], 256, Trained()) == USER[2:]


def test_back_at_the_tuned_batch_the_lengths_still_count_what_was() -> None:
    made = with_batch(USER, 64, Trained(100, ((0, 256),)))
    assert option_real(made, "--lr", 0) == pytest.approx(1e-4)
    # 25,600 were seen in 100 iterations, 38,400 are left in 600: the data is for all 64,000, and iteration 700 the last
    assert option_number(made, "--train-samples", 0) == 64_000 and option_number(made, "--exit-interval", 0) == 700
    own = with_batch([*USER, "--exit-interval", "150"], 64, Trained(100, ((0, 256),)))
    assert option_number(own, "--exit-interval", 0) == 150
    late = with_batch([*USER, "--exit-interval", "1000"], 64, Trained(100, ((0, 256),)))
    assert option_number(late, "--exit-interval", 0) == 700


def test_sgd_is_linear_and_keeps_its_decay() -> None:
    made = with_batch([*USER, "--optimizer", "sgd"], 128, Trained())
    assert option_real(made, "--lr", 0) == pytest.approx(2e-4) and option_real(made, "--weight-decay", 0) == 0.1
    assert not option_values(made, "--adam-beta1")


@pytest.mark.slow
@given(
    total=st.integers(1, 3000),
    base=st.integers(1, 64),
    parts=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 40), st.integers(0, 40)), max_size=6),
    last=st.integers(1, 64),
)
def test_the_run_ends_where_its_samples_do(
    total: int, base: int, parts: list[tuple[int, int, int]], last: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A run as Megatron-LM makes it: killed after some iterations, resumed from a checkpoint further back."""
    folder = tmp_path_factory.mktemp("run")
    user = ["--global-batch-size", str(base), "--train-samples", str(total)]
    iteration, consumed, saved = 0, 0, {0: 0}
    for batch, steps, lost in [*parts, (last, 10**6, 0)]:
        iteration = max(i for i in saved if i <= max(0, iteration - lost))
        consumed = saved[iteration]
        saved = {i: s for i, s in saved.items() if i <= iteration}
        (folder / "latest_checkpointed_iteration.txt").write_text(str(iteration))
        trained = read(folder)
        assert trained.samples(base) == consumed
        write(folder, trained.with_batch(batch))
        made = with_batch(user, batch, trained)
        if consumed < total:
            assert option_number(made, "--train-samples", 0) >= min(
                total, consumed + batch
            )  # its sampler never runs dry
        end = option_number(made, "--train-samples", 0) // batch
        end = min(end, option_number(made, "--exit-interval", end))
        for _ in range(steps):
            if iteration >= end:
                break
            iteration, consumed = iteration + 1, consumed + batch
            saved[iteration] = consumed
        assert consumed < total + max(batch, *(b for b, _, _ in parts), base) if parts else consumed < total + batch
    # one that was always at its own batch ends where Megatron lets it: a part of a batch is left out
    assert consumed >= total or (total - consumed < base and {last, *(b for _, b in trained.batches)} == {base})


@pytest.mark.parametrize("text", ["", "x", "[[1]]", "[[0, 0]]", "[[5, 8], [1, 4]]", "{}", '[["a", 1]]'])
def test_a_record_that_can_not_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7\n")
    (tmp_path / "synergy-batches.json").write_text(text)
    assert read(tmp_path) == Trained(7)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert read(tmp_path) == Trained()


def test_the_record_comes_back(tmp_path: Path) -> None:
    write(tmp_path, Trained(9, ((0, 64), (4, 32))))
    assert json.loads((tmp_path / "synergy-batches.json").read_text()) == [[0, 64], [4, 32]]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("9")
    assert read(tmp_path).samples(64) == 4 * 64 + 5 * 32
    assert Trained(9, ((0, 64), (4, 32), (20, 8))).with_batch(32) == Trained(9, ((0, 64), (4, 32)))
