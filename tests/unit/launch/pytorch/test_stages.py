"""What a stage of a pipeline does by itself, and must agree about with the others: norms of gradients, the bound on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from synergy_core.records import Plan

torch = pytest.importorskip("torch")

from synergy_launch.batch.noise_scale import NoiseScale  # noqa: E402
from synergy_launch.pytorch.gradient_norms import GradientNorms, clip_gradients  # noqa: E402

BATCH = 4
Gradients = dict[str, float]  # of parameters of two elements, in all of which it is the same


class Stages:
    """Two stages with two parameters each, a and b, c and d; the sums over the ranks are made here."""

    def __init__(self) -> None:
        self.parts = [
            torch.nn.ParameterDict({name: torch.ones(2) for name in names}) for names in (("a", "b"), ("c", "d"))
        ]
        self.norms = [GradientNorms(part, Plan(pp=2, global_batch=BATCH, micro_batch=BATCH)) for part in self.parts]

    def step(self, gradients: Gradients) -> tuple[float, ...]:
        """What the noise scale takes on all ranks alike."""
        taken, vote = [], 0.0
        for part, norms in zip(self.parts, self.norms, strict=True):
            for name, parameter in part.items():
                parameter.grad = torch.full((2,), gradients[name]) if name in gradients else None
            taken.append(norms.take(torch.zeros(()))[1])
            vote += norms.vote
        first, second = (norms.agreed_batches(vote) for norms in self.norms)
        assert first == second
        return (sum(norms.small for norms in taken), sum(norms.big for norms in taken), *first)


def pair(before: Gradients, now: Gradients) -> tuple[float, ...]:
    small = sum(before[name] ** 2 + now[name] ** 2 for name in now)
    return small, sum((before[name] + now[name]) ** 2 for name in now) / 2, BATCH, 2 * BATCH


def run(*steps: Gradients) -> Iterator[tuple[float, ...]]:
    stages = Stages()
    return (stages.step(gradients) for gradients in steps)


def silent(step: tuple[float, ...]) -> bool:
    noise = NoiseScale()
    noise.update(*step)
    return noise.state()["weight"] == 0


@pytest.fixture(autouse=True)
def _whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage is one rank."""
    monkeypatch.setattr("synergy_launch.pytorch.gradient_norms._weight", lambda *_: 1.0)


def test_a_stage_without_gradients_counts_nothing() -> None:
    first, second = {"c": 1.0, "d": 2.0}, {"c": 3.0, "d": 1.0}
    begun, shown, again, next_ = run(first, second, second, first)
    assert silent(begun) and silent(again)
    assert shown == pytest.approx(pair(first, second)) and next_ == pytest.approx(pair(second, first))
    assert all(silent(step) for step in run({}, {}, {}))


def test_where_one_stage_has_other_gradients_than_before_both_begin_anew() -> None:
    whole, less = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, {"a": 2.0, "b": 1.0, "c": 1.0}
    steps = list(run(whole, whole, whole, less, less, less, less, whole, whole))
    assert [silent(step) for step in steps] == [True, False, True, True, False, True, False, True, False]
    assert steps[4] == steps[6] == pytest.approx(pair(less, less)) and steps[8] == pytest.approx(pair(whole, whole))


def test_a_stage_that_gets_gradients_later_or_by_turns() -> None:
    part, whole = {"c": 3.0, "d": 4.0}, {"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0}
    steps = list(run(part, whole, whole, part, part, whole, part))
    assert [silent(step) for step in steps] == [True, True, False, True, False, True, False]
    assert steps[2] == pytest.approx(pair(whole, whole))
    assert steps[4] == pytest.approx(pair(part, part)) and steps[6] == pytest.approx(pair(whole, part))


def test_a_stage_without_gradients_sums_its_norm_on_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr("torch.distributed.all_reduce", lambda tensor, group: found.append(tensor.device.type))
    for device in ("meta", "cpu"):
        clip_gradients(torch.nn.Linear(2, 2, device=device), 1.0, object())  # type: ignore[arg-type]
    assert found == ["meta", "cpu"]
