"""A pipeline stage whose parameters all belong to others takes part in every sum, or the other stages wait for it for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from synergy_core.records import Plan  # noqa: E402
from synergy_launch.agent.collectives import OneProcess  # noqa: E402
from synergy_launch.megatron_core.gradient_norms import GradientNoise  # noqa: E402


class _Counted(OneProcess):
    sums = 0

    def total(self, values: object) -> list[float]:
        self.sums += 1
        return [0.0, 0.0]


@pytest.mark.parametrize(("batch", "sums"), [(1, 2), (4, 4)])
def test_it_sums_as_often_as_others(batch: int, sums: int) -> None:
    ranks, model = _Counted(), SimpleNamespace(module=torch.nn.Identity(), buffers=[])
    plan = Plan(pp=2, micro_batch=1, global_batch=batch)
    finalize = GradientNoise(model, plan, ranks, False, False).wrap(lambda: None)
    for _ in range(4):
        finalize()
    assert ranks.sums == sums
