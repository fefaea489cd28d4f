"""The gate of a DistributedDataParallel, of Megatron's chunks and of a GPU's stream, in one process and without a GPU."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from synergy_launch.links import hooks, link_gate
from synergy_launch.links.hooks import DdpGate, MegatronGate, MessageEnds, gate_ddp
from torch._C._distributed_c10d import BuiltinCommHookType, HashStore
from torch.nn.parallel import DistributedDataParallel

from tests.unit.launch.links.recorder import Recorder

TWO_NODES = {"LOCAL_WORLD_SIZE": "1", link_gate.ADDRESS: "127.0.0.1:1"}


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What gate_ddp makes, on a rank that is on two nodes."""
    made = Recorder()
    monkeypatch.setattr(link_gate, "from_environment", lambda _environment, channel=0: made)
    monkeypatch.setattr(hooks, "is_across_nodes", lambda _ranks, _environment: True)
    return made


def ddp() -> Any:  # or mypy would not let torch's untyped methods be called
    return DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)]))


def train(model: Any) -> torch.Tensor:
    """One step; the last bias' gradient: 1 where it is the mean over the one rank."""
    model.zero_grad()
    model(torch.ones(1, 16)).sum().backward()
    found: torch.Tensor = model.module[2].bias.grad
    return found


ONES = torch.ones(16)


@pytest.mark.slow
def test_a_gated_model_is_copied_and_pickled_as_any_other(gate: Recorder) -> None:
    model = ddp()
    made: Any = gate_ddp(model, TWO_NODES)
    assert made is gate
    train(model)
    copied = copy.deepcopy(model)
    written = io.BytesIO()
    torch.save(model, written)
    written.seek(0)
    loaded = torch.load(written, weights_only=False)
    assert gate.told == ["begin", "end"]
    for other in (copied, loaded):
        assert torch.equal(train(other), ONES) and other not in hooks._GATES
    assert gate.told == ["begin", "end"]  # they are not gated
    assert torch.equal(train(model), ONES) and gate.told == ["begin", "end"] * 2


def test_the_gate_keeps_no_model_alive_and_goes_with_it(gate: Recorder) -> None:
    model = ddp()
    gate_ddp(model, TWO_NODES)
    train(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and gate.told[-1] == "close"


@pytest.mark.parametrize("kind", [BuiltinCommHookType.ALLREDUCE, BuiltinCommHookType.FP16_COMPRESS])
def test_a_builtin_hook_that_comes_later_reduces(gate: Recorder, kind: Any) -> None:
    model, plain = ddp(), ddp()
    plain.load_state_dict(model.state_dict())
    gate_ddp(model, TWO_NODES)
    for each in (model, plain):
        each._register_builtin_comm_hook(kind)
        train(each)
        for parameter in each.parameters():  # so that half a float's digits show
            parameter.data /= 3
    a, b = train(model), train(plain)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None and torch.equal(mine.grad, theirs.grad)
    assert torch.equal(a, b) and gate.told == ["begin", "end"] * 2
    with pytest.raises(RuntimeError, match="only be called once"):
        model._register_builtin_comm_hook(kind)


def test_a_hook_of_the_scripts_own_is_called_and_is_the_only_one(gate: Recorder) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    calls = []

    def own(state: Any, bucket: Any) -> Any:
        calls.append(state)
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    own.__annotations__ = {}  # torch wants its own types there, or none
    gated, plain = ddp(), ddp()
    gate_ddp(gated, TWO_NODES)
    for model in (gated, plain):
        model.register_comm_hook("mine", own)
        assert torch.equal(train(model), ONES) and calls == ["mine"]
        assert model._comm_hooks == [(own, "mine")]
        calls.clear()
        with pytest.raises(RuntimeError, match="only be called once"):
            model.register_comm_hook("again", own)
    with pytest.raises(TypeError):
        gated.register_comm_hook(None, 5)
    assert gate.told == ["begin", "end"]


def test_a_model_with_a_hook_already_is_not_gated(gate: Recorder) -> None:
    model = ddp()
    model._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)
    assert gate_ddp(model, TWO_NODES) is None and gate.told == ["close"]
    assert model not in hooks._GATES


def test_another_torch_is_not_gated(gate: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_C10D", SimpleNamespace())
    model = ddp()
    assert gate_ddp(model, TWO_NODES) is None and gate.told == ["close"] and torch.equal(train(model), ONES)


# -- as if there was a GPU ---------------------------------------------------------------------------------------------


class Stream:
    def __init__(self) -> None:
        self.capturing = False

    def synchronize(self) -> None:
        assert not self.capturing, "a capture must not wait"


class Event:
    """`fails`: of the class, what a GPU that has gone wrong says."""

    fails = False

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        if Event.fails:
            raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: made)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "fails", False)
    return made


class Bucket:
    """The only one of a step."""

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Any:
        return SimpleNamespace(is_cuda=True)


def test_what_a_graph_captures_is_not_gated(gate: Recorder, stream: Stream) -> None:
    found: torch.futures.Future[Any] = torch.futures.Future()
    found.set_result([ONES])
    hook = DdpGate(ddp(), gate)  # type: ignore[arg-type]
    hook.take(lambda _bucket: found)
    stream.capturing = True
    assert hook.reduce(Bucket()) is found and gate.told == []
    stream.capturing = False
    assert hook.reduce(Bucket()).value() is ONES
    assert hook._ends.wait_until_reported() and gate.told == ["begin", "end"]


def test_what_a_graph_captures_of_megatron_is_not_gated(stream: Stream) -> None:
    gate = Recorder()
    bucket = SimpleNamespace(grad_data=torch.ones(4))
    group = SimpleNamespace(buckets=[bucket], start_grad_sync=lambda: "started")
    chunk = SimpleNamespace(bucket_groups=[group], finish_grad_sync=lambda: "finished")
    made = MegatronGate([chunk], gate)  # type: ignore[arg-type]
    stream.capturing = True
    assert (group.start_grad_sync(), chunk.finish_grad_sync(), gate.told) == ("started", "finished", [])
    stream.capturing = False
    assert (group.start_grad_sync(), chunk.finish_grad_sync()) == ("started", "finished")
    assert made._ends.wait_until_reported() and gate.told == ["begin", "end"]


def test_an_end_that_the_gpu_never_tells_is_told_all_the_same(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Recorder()
    ends = MessageEnds(gate)  # type: ignore[arg-type]
    monkeypatch.setattr(Event, "fails", True)
    ends.end()
    assert ends.wait_until_reported() and gate.told == ["end"]
    assert "synergy: an all-reduce's end is not known: CUDA error" in capsys.readouterr().err
    monkeypatch.setattr(Event, "fails", False)
    ends.end()  # the thread is still there
    assert ends.wait_until_reported() and gate.told == ["end", "end"]


def test_an_end_that_takes_too_long_ends_the_gating_after_one_wait(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "SETTLED_S", 0.05)
    gate = Recorder()
    ends = MessageEnds(gate)  # type: ignore[arg-type]
    monkeypatch.setattr(ends, "_watch", lambda: None)  # a thread that has died
    ends.end()
    assert not ends.wait_until_reported() and gate.told == ["close"]
    monkeypatch.setattr(hooks, "SETTLED_S", 60.0)
    assert not ends.wait_until_reported()  # at once


def test_no_thread_for_the_end_costs_nothing(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", full)
    gate = Recorder()
    ends = MessageEnds(gate)  # type: ignore[arg-type]
    ends.end()
    assert gate.told == ["end"] and ends.wait_until_reported()
