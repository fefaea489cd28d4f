"""The gradient noise scale of a Megatron run against one gradient per sample."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_core.records import Plan

from tests.integration import training_ranks

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def test_noise_scale_agrees_with_brute_force_and_between_plans(tmp_path: Path) -> None:
    steps, batch = 16, 8
    truth, _ = training_ranks.run(tmp_path / "truth", 1, training_ranks.Call("gpt_noise_by_brute_force", steps * batch))
    found: dict[str, float] = {}
    for tp, pp, dp, distributed in [(1, 1, 1, False), (2, 1, 1, False), (1, 2, 1, False), (1, 1, 2, True)]:
        plan = Plan(tp=tp, pp=pp, dp=dp, micro_batch=1, global_batch=batch)
        name = f"{tp}{pp}{dp}{distributed}"
        # Frozen weights, and so slow a decay that all steps count alike.
        call = training_ranks.Call("gpt", plan, steps, lr=0.0, decay=0.9999, distributed_optimizer=distributed)
        result, _ = training_ranks.run(tmp_path / name, plan.gpus, call)
        found[name] = result["noise"]
    reference = found["111False"]
    assert reference == pytest.approx(truth, rel=0.2)
    for name, value in found.items():
        assert value == pytest.approx(reference, rel=2e-3), (name, found)
