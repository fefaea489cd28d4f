"""Batches of several of a training library's steps."""

from __future__ import annotations

from typing import Any

import pytest
from synergy_core.records import Plan

pytest.importorskip("torch")
pytestmark = pytest.mark.training


def test_what_is_unfrozen_later_is_updated_by_whole_batches_alone() -> None:
    import torch
    from synergy_launch.agent.collectives import OneProcess
    from synergy_launch.pytorch.accumulation import Accumulation

    model = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    model[0].requires_grad_(False)
    whole = torch.nn.Sequential(*model)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    unit = Plan(global_batch=4, micro_batch=4)
    made: Any = Accumulation(
        whole, optimizer, unit=unit, plan=Plan(global_batch=8, micro_batch=4), ranks=OneProcess(), rule="none", whole=True
    )  # fmt: skip
    model[0].requires_grad_(True)  # as BackboneFinetuning does
    optimizer.add_param_group({"params": list(model[0].parameters())})
    before = [p.detach().clone() for p in whole.parameters()]
    once: list[Any] = []
    for last in (False, True):
        optimizer.zero_grad()
        made.begin(last)
        made.restore()
        torch.autograd.backward(whole(torch.ones(4, 2)).mean())
        once = once or [p.grad.clone() for p in whole.parameters() if p.grad is not None]
        made.before_optimizer(last, False)
        if last:  # the mean of two that are alike
            for p, gradient in zip(whole.parameters(), once, strict=True):
                torch.testing.assert_close(p.grad, gradient)
        optimizer.step()
        made.after_optimizer()
        same = [torch.equal(p, b) for p, b in zip(whole.parameters(), before, strict=True)]
        assert same == ([False] * 2 if last else [True] * 2)
    made.close()
