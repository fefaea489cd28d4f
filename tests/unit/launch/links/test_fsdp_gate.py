"""The gate of FSDP2's parameter groups, without FSDP: groups that note what is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from synergy_launch.links import fsdp_gate, gated_script, link_gate
from synergy_launch.links.fsdp_gate import FsdpGate, gate_fsdp

from tests.unit.launch.links.recorder import Recorder


class Group:
    """In place of an FSDPParamGroup; `told` is shared with the gate."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told, self.reduce_grads = name, told, True

    def post_backward(self, *_: Any) -> None:
        self.told.append(f"reduce {self.name}")

    def finalize_backward(self) -> None:
        self.told.append(f"finalize {self.name}")


def gated(names: str, asks: bool = True) -> tuple[list[str], list[Any]]:
    gate: Any = Recorder()
    gate.is_asking = asks
    groups = [Group(name, gate.told) for name in names]
    FsdpGate(groups, 100, gate)
    return gate.told, groups


def test_the_first_reduce_asks_and_the_last_finalize_ends() -> None:
    told, (a, b) = gated("ab")
    for _ in range(2):
        b.post_backward()
        a.post_backward()
        for group in (a, b):
            group.finalize_backward()
    step = ["begin", "reduce b", "reduce a", "finalize a", "finalize b", "end"]
    assert told == step * 2


def test_accumulation_asks_nothing() -> None:
    told, (a,) = gated("a")
    a.reduce_grads = False
    a.post_backward()
    a.finalize_backward()
    assert told == ["reduce a", "finalize a"]


def test_the_gpu_is_not_waited_for_where_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arbiter is away, or has said that asking is in vain."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: 1 / 0)
    told, (a,) = gated("a", asks=False)
    a.post_backward()
    assert told == ["reduce a"]


def test_a_step_that_never_ended_is_followed_by_the_next() -> None:
    told, (a, b) = gated("ab")
    b.post_backward()  # and the step is given up
    b.post_backward()
    a.post_backward()
    a.finalize_backward()
    b.finalize_backward()
    assert told == ["begin", "reduce b", "begin", "reduce b", "reduce a", "finalize a", "finalize b", "end"]


def test_what_is_no_fsdp_is_not_gated() -> None:
    assert gate_fsdp(torch.nn.Linear(2, 2), {link_gate.ADDRESS: "127.0.0.1:1"}) is None
    assert gate_fsdp(torch.nn.Linear(2, 2), {}) is None


def test_megatrons_fsdp2_is_gated_and_an_error_there_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Sharded:
        def __init__(self, module: str) -> None:
            self.module = module

    gated_modules: list[str] = []
    module: Any = SimpleNamespace(TorchFullyShardedDataParallel=Sharded)
    gated_script._gate_fsdp_class(module)
    monkeypatch.setattr(fsdp_gate, "gate_fsdp", gated_modules.append)
    assert Sharded("model").module == "model" and gated_modules == ["model"]

    def broken(_: object) -> None:
        raise RuntimeError("another Megatron")

    monkeypatch.setattr(fsdp_gate, "gate_fsdp", broken)
    assert Sharded("again").module == "again"
    assert "not gated: RuntimeError: another Megatron" in capsys.readouterr().err
