"""The gradient noise scale that a Megatron script's hook measures, against one gradient per sample; the losses stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan

from tests.integration import training_ranks
from tests.integration.training_ranks import Call

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
STEPS, BATCH = 10, 8
LONG = 60  # of 10 steps of another Python's text the estimate was 28 % off the truth
PLANS: list[tuple[Plan, dict[str, Any]]] = [
    (Plan(micro_batch=1, global_batch=BATCH), {"zero": False}),
    (Plan(tp=2, dp=2, micro_batch=1, global_batch=BATCH), {}),
    (Plan(pp=2, dp=2, micro_batch=1, global_batch=BATCH), {"overlap": True}),
    (Plan(dp=2, micro_batch=4, global_batch=BATCH), {"overlap": True}),
    (Plan(dp=2, micro_batch=1, global_batch=BATCH), {"as_cp": True}),
]


def run(folder: Path, plan: Plan, steps: int = STEPS, **more: Any) -> Any:
    found, _ = training_ranks.run(
        folder, plan.gpus, Call("tests.integration.training_script:hooked", plan, steps, **more)
    )
    return found


def by_hand(steps: int) -> Call:
    return Call("tests.integration.training_script:by_hand", [plan for plan, _ in PLANS], steps, BATCH, True)


def test_noise_is_that_of_brute_force(tmp_path: Path) -> None:
    """Under tp, pp, dp, the distributed optimizer, overlapped reductions; from micro-batches, from replicas, and of a replica that several
    ranks share."""
    (_, expected), _ = training_ranks.run(tmp_path / "by_hand", 1, by_hand(STEPS))
    found = [run(tmp_path / str(number), plan, **more) for number, (plan, more) in enumerate(PLANS)]
    print(expected, [each["noise"] for each in found])
    assert [each["measured"] for each in found] == [STEPS] * len(PLANS)
    assert [each["noise"] for each in found] == pytest.approx(expected, rel=2e-3)


def test_what_it_expects_is_near_the_truth(tmp_path: Path) -> None:
    (truth, expected), _ = training_ranks.run(tmp_path, 1, by_hand(LONG))
    assert expected[:3] == pytest.approx([truth] * 3, rel=0.1)


def test_noise_from_two_steps_where_a_step_is_one_micro_batch(tmp_path: Path) -> None:
    plan = Plan(micro_batch=1, global_batch=1)
    (_, expected), _ = training_ranks.run(
        tmp_path / "truth", 1, Call("tests.integration.training_script:by_hand", [plan], 20, 1)
    )
    assert run(tmp_path / "found", plan, 20)["noise"] == pytest.approx(expected[0], rel=2e-3)


def test_losses_are_the_same_with_and_without_it(tmp_path: Path) -> None:
    plan = Plan(dp=2, micro_batch=1, global_batch=4)
    with_hook, without = (run(tmp_path / str(hook), plan, 5, lr=3e-3, hook=hook) for hook in (True, False))
    assert with_hook["losses"] == without["losses"] and with_hook["measured"] == 5


def test_it_takes_little_of_the_time(tmp_path: Path) -> None:
    """The more a look costs, the rarer it is."""
    found = run(tmp_path, Plan(micro_batch=1, global_batch=2), 150, share=0.005)
    print(found["spent"], found["measured"])
    assert 2 <= found["measured"] < 75 and found["spent"] < 0.05  # the first look is at the first step
