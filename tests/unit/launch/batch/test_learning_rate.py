"""The rule at another batch: what it does to an optimiser, to schedules, and to the count of examples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.rates import equivalent_sequences
from synergy_launch.batch.learning_rate import Following, Schedule, at_batch, choose_rule


def group(**more: Any) -> dict[str, Any]:
    return {"lr": 0.1, "betas": (0.9, 0.999), "weight_decay": 0.01, "decoupled_weight_decay": True, **more}


def test_settings_follow_for_a_step_and_return() -> None:
    groups = [group()]
    with at_batch(groups, Following(16, "sqrt"), 64, None):
        assert groups[0]["lr"] == pytest.approx(0.2)
        assert groups[0]["betas"] == (0.9, 0.999)
        assert groups[0]["weight_decay"] == pytest.approx(
            0.02
        )  # rate x decay: 4 times, for a step of 4 times the batch
    assert groups == [group()]


def test_settings_return_when_the_step_fails() -> None:
    groups = [group()]
    with pytest.raises(ZeroDivisionError), at_batch(groups, Following(16, "linear"), 32, None):
        raise ZeroDivisionError
    assert groups == [group()]


def test_coupled_decay_stays_and_adascale_needs_its_noise() -> None:
    groups = [group(decoupled_weight_decay=False)]
    with at_batch(groups, Following(16, "sqrt"), 64, None):
        assert groups[0]["weight_decay"] == 0.01
    with at_batch(groups, Following(16, "adascale"), 64, None):
        assert groups[0]["lr"] == 0.1
    with at_batch(groups, Following(16, "adascale"), 64, 48.0):
        assert groups[0]["lr"] == pytest.approx(0.1 * 4 / 1.75)
        assert groups[0]["betas"] == (0.9, 0.999)


@given(base=st.integers(1, 512), batches=st.lists(st.integers(1, 4096), max_size=30), steps=st.integers(0, 40))
def test_schedule_goes_on_once_for_each_base_examples(base: int, batches: list[int], steps: int) -> None:
    following = Following(base, "sqrt")
    due = 0
    for batch in batches:
        due += following.advance(batch, None)
        assert due == following.samples // base
        assert following.has_finished(steps) == (following.samples >= steps * base)
    again = Following(base, "sqrt")
    again.restore(following.state())
    assert again == following
    assert again.advance(base, None) == 1  # not the whole way again


@given(base=st.integers(1, 512), batch=st.integers(1, 100_000), noise=st.none() | st.floats(0, 1e6))
def test_a_step_is_worth_something_between_one_of_the_base_and_its_examples(
    base: int, batch: int, noise: float | None
) -> None:
    found = equivalent_sequences(base, batch, noise)
    assert min(base, batch) * (1 - 1e-9) <= found <= max(base, batch) * (1 + 1e-9)
    if noise is not None:  # Pollux's efficiency
        assert found == pytest.approx(batch * (noise + base) / (noise + batch))


def test_progress_makes_large_batches_see_more_examples() -> None:
    ends = {}
    for batch in (16, 64):
        following = Following(16, "adascale", "progress")
        while not following.has_finished(100):
            following.advance(batch, 48.0)
        ends[batch] = following.samples
    assert ends[16] == 1600
    assert ends[64] == pytest.approx(1600 * (48 + 64) / (48 + 16), abs=64)


def test_a_change_between_incarnations_keeps_the_tuned_batch() -> None:
    first = Following(16, "sqrt")
    first.advance(16, None)
    second = Following(32, "sqrt")  # the script says another one now, with a rate that the checkpoint does not have
    assert "tuned for global batch 16" in second.restore(first.state())
    assert second.base == 16 and second.factors(64, None).rate == 2.0
    old = Following(16, "sqrt")
    assert old.restore({"samples": 160}) == "" and old.examples_done == 160


@pytest.mark.parametrize("wrong", [{"base": 0}, {"rule": "best"}, {"count": "epochs"}])
def test_mistakes_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Following(**{"base": 1, "rule": "sqrt", **wrong})


def test_the_usual_rule_by_the_optimisers_class() -> None:
    kinds = {"SGD": "adascale", "AdamW": "sqrt", "NAdam": "sqrt", "Adafactor": "sqrt", "LBFGS": "none"}
    for name, rule in kinds.items():
        assert choose_rule(type(name, (SimpleNamespace,), {})(), "") == rule
    derived = type("Mine", (type("AdamW", (), {}),), {})()
    assert choose_rule(derived, "") == "sqrt" and choose_rule(derived, "linear") == "linear"


def test_schedule_warms_up_and_falls_to_its_floor() -> None:
    schedule = Schedule(100, 1100, 0.1)
    assert [schedule(x) for x in (0, 50, 100, 600, 1100, 5000)] == pytest.approx([0.01, 0.5, 1.0, 0.55, 0.1, 0.1])
    assert Schedule()(7) == 1.0


def test_formatting_say_what_changed() -> None:
    assert Following(16, "sqrt").format_factors(64, None) == "global batch 64 in place of 16: learning rate x 2 (sqrt)"
    assert Following(16, "sqrt").format_factors(16, None) == ""
