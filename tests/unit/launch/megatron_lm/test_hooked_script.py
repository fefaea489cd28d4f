"""The hook in Megatron-LM's train(): what one rank can't do, none does, and a fault never reaches the training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from synergy_launch.megatron_core import hooked_script, script_noise
from synergy_launch.megatron_core.script_noise import Degrees, Mode, ScriptNoise, StepSize

from tests.unit.launch.megatron_lm.test_moving_batch import ConstantNumMicroBatchesCalculator, Scheduler


class DistributedDataParallel:
    """Megatron's, as far as it is watched."""

    def __init__(self, **config: Any) -> None:
        self.module, self.config = torch.nn.Linear(2, 2), SimpleNamespace(grad_scale_func=None, **config)
        self.ddp_config = SimpleNamespace(use_distributed_optimizer=False)
        self.bucket_groups: list[Any] = []
        self.buffers: list[Any] = []

    def zero_grad_buffer(self) -> None:
        parameter: Any
        for parameter in self.module.parameters():
            parameter.main_grad = torch.zeros_like(parameter)

    def finish_grad_sync(self) -> None: ...


class Megatron:
    """The modules that the hook imports, and a train() that notes its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.args = SimpleNamespace(
            iteration=0, consumed_train_samples=0, train_iters=10, train_samples=None, exit_interval=25, save=None,
            data_parallel_size=2, optimizer="adam", lr=1e-3, min_lr=1e-4, decoupled_lr=None, decoupled_min_lr=None,
        )  # fmt: skip
        self.groups = [{"max_lr": 5.0, "min_lr": 5.0}]
        self.calculator = ConstantNumMicroBatchesCalculator(8, 1)
        calculators: Any = ModuleType("num_microbatches_calculator")
        calculators._GLOBAL_NUM_MICROBATCHES_CALCULATOR = self.calculator
        calculators.get_num_microbatches = lambda: 4
        calculators.get_micro_batch_size = lambda: 1
        self.calculators = calculators
        state = SimpleNamespace(
            get_data_parallel_world_size=lambda: 2, get_context_parallel_world_size=lambda: 1,
            get_tensor_model_parallel_world_size=lambda: 1, get_context_parallel_group=lambda: None,
        )  # fmt: skip
        core: Any = ModuleType("megatron.core")
        core.num_microbatches_calculator, core.parallel_state = calculators, state
        distributed: Any = ModuleType("megatron.core.distributed")
        distributed.DistributedDataParallel = DistributedDataParallel
        for module in (ModuleType("megatron"), core, distributed):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: 0)
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        monkeypatch.setenv("SYNERGY_GLOBAL_BATCH", "told")
        training: Any = ModuleType("training")
        self.training = training
        training.get_args = lambda: self.args
        self.calls: list[Any] = []
        training.train = self._train
        self.run = hooked_script.ScriptRun()
        self.run.watch_training(self.training)

    def _train(self, forward_step_func: Any, model: Any, optimizer: Any, opt_param_scheduler: Any, config: Any) -> str:
        self.calls.append((model, config))
        return "trained"

    def train(self, model: Any, by_name: bool = False) -> str:
        optimizer, scheduler = SimpleNamespace(param_groups=self.groups), Scheduler(self.groups)
        if not by_name:
            return str(self.training.train(None, model, optimizer, scheduler, "config"))
        return str(
            self.training.train(
                config="config", optimizer=optimizer, model=model, opt_param_scheduler=scheduler, forward_step_func=None
            )
        )


def others(monkeypatch: pytest.MonkeyPatch, *said: float) -> None:
    """The other rank adds so much to whatever is summed."""
    monkeypatch.setattr(script_noise, "total", lambda values: [a + b for a, b in zip(values, said, strict=False)])


@pytest.mark.parametrize("by_name", [False, True])
def test_where_all_ranks_can_the_batch_moves(monkeypatch: pytest.MonkeyPatch, by_name: bool) -> None:
    others(monkeypatch, 1, 1, 16)
    megatron, chunk = Megatron(monkeypatch), DistributedDataParallel()
    assert megatron.train([chunk], by_name) == "trained" and megatron.calls == [([chunk], "config")]
    moving = megatron.calculators._GLOBAL_NUM_MICROBATCHES_CALCULATOR
    moving.update(0, True)
    assert moving is megatron.run.batch and moving.get() == 8 and megatron.groups[0]["max_lr"] != 5.0


def test_where_another_rank_can_not_measure_this_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else this one would wait for the other at the end of the first step."""
    others(monkeypatch, 0, 0, 0)
    megatron, chunk = Megatron(monkeypatch), DistributedDataParallel()
    assert megatron.train([chunk]) == "trained" and megatron.run.noise is None
    monkeypatch.setattr(script_noise, "total", None)
    chunk.zero_grad_buffer()
    chunk.finish_grad_sync()
    assert megatron.calculators._GLOBAL_NUM_MICROBATCHES_CALCULATOR is megatron.calculator
    assert megatron.groups == [{"max_lr": 5.0, "min_lr": 5.0, "lr": 5.0, "weight_decay": 0.1}]


@pytest.mark.parametrize("measures", [False, True])
@pytest.mark.parametrize(("override", "rate"), [(True, 1e-3), (False, 5.0)])
def test_a_batch_that_stays_takes_the_rates_of_the_arguments(
    monkeypatch: pytest.MonkeyPatch, measures: bool, override: bool, rate: float
) -> None:
    """Not those that the checkpoint's param groups bring: Synergy changes --lr with the batch at a restart."""
    others(monkeypatch, 1, 0, 0)
    megatron = Megatron(monkeypatch)
    megatron.run._measures = measures
    megatron.args.override_opt_param_scheduler = override
    assert megatron.train([DistributedDataParallel()]) == "trained"
    assert megatron.run.batch is None and (megatron.run.noise is not None) == measures
    assert megatron.groups[0]["max_lr"] == rate


def test_where_another_rank_can_not_move_its_batch_this_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    others(monkeypatch, 1, 0, 0)
    monkeypatch.setenv("SYNERGY_MEGATRON_RUN", '{"samples": 80, "exit_interval": 0}')
    megatron = Megatron(monkeypatch)
    assert megatron.train([DistributedDataParallel()]) == "trained"
    assert megatron.run.noise is not None and megatron.run.batch is None
    assert megatron.calculators._GLOBAL_NUM_MICROBATCHES_CALCULATOR is megatron.calculator
    assert megatron.groups[0]["max_lr"] == 5.0 and megatron.args.exit_interval == 25


def test_another_megatron_trains_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others(monkeypatch, 0, 0, 0)
    megatron = Megatron(monkeypatch)
    del megatron.training.get_args
    chunk: Any = DistributedDataParallel()
    del chunk.bucket_groups  # as before core 0.9
    assert megatron.train([chunk]) == "trained" and megatron.run.noise is None
    assert "runs without Synergy's hook: AttributeError" in capsys.readouterr().err


def test_models_that_are_not_trained_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher's gradients are never reduced: the end of a step would never come."""
    others(monkeypatch, 1, 1, 0)
    megatron, chunk, teacher = Megatron(monkeypatch), DistributedDataParallel(), DistributedDataParallel()
    megatron.train([chunk])
    assert "zero_grad_buffer" in vars(chunk) and "zero_grad_buffer" not in vars(teacher)


def stepped(noise: ScriptNoise, chunk: Any) -> None:
    chunk.zero_grad_buffer()
    chunk.finish_grad_sync()


def made(
    chunk: Any, size: Callable[[], StepSize] = lambda: StepSize(4, 1), dp: int = 2, cp: int = 1
) -> tuple[ScriptNoise, list[str]]:
    ended: list[str] = []
    noise = ScriptNoise(Degrees(dp=dp, cp=cp, tp=1), size, ended=lambda: ended.append("ended"))
    noise.add(chunk)
    return noise, ended


@pytest.mark.parametrize(
    ("dp", "micro_batches", "delayed", "mode"),
    [(1, 4, True, Mode.PAIR), (2, 4, True, Mode.REPLICA), (1, 1, True, Mode.PAIR), (1, 4, False, Mode.MICRO)],
)
def test_ranks_agree_on_a_batch_with_delayed_weight_gradients_too(
    monkeypatch: pytest.MonkeyPatch, dp: int, micro_batches: int, delayed: bool, mode: Mode
) -> None:
    """At the end of every measured step; without one a proposed batch would never arrive."""
    chunk = DistributedDataParallel()
    chunk.ddp_config.delay_wgrad_compute = delayed
    heard: list[int] = []
    noise = ScriptNoise(
        Degrees(dp=dp, cp=1, tp=1), lambda: StepSize(micro_batches, 1), propose=lambda: 16, agree=heard.append
    )
    noise.add(chunk)
    monkeypatch.setattr(script_noise, "total", lambda values: list(values))
    monkeypatch.setattr(script_noise, "_device", lambda: torch.device("cpu"))
    chunk.zero_grad_buffer()
    assert noise._mode is mode
    chunk.finish_grad_sync()
    assert heard == [16]


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({}, Mode.MICRO),
        ({"cuda_graph_impl": "none"}, Mode.MICRO),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"]}, Mode.REPLICA),
        ({"enable_cuda_graph": True}, Mode.REPLICA),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]}, Mode.NONE),
        ({"enable_cuda_graph": True, "cuda_graph_scope": "full_iteration"}, Mode.NONE),
    ],
)
def test_nothing_is_read_inside_a_cuda_graph(config: dict[str, Any], mode: Mode) -> None:
    """The graph of a whole iteration holds the reduction, in which waiting for the device is an error."""
    chunk = DistributedDataParallel(**config)
    noise, _ = made(chunk)
    chunk.zero_grad_buffer()
    assert noise._mode is mode


def test_a_size_that_can_not_be_told_ends_the_measuring_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> StepSize:
        raise AttributeError("another calculator")

    chunk = DistributedDataParallel()
    noise, ended = made(chunk, broken)
    stepped(noise, chunk)
    stepped(noise, chunk)
    assert ended == ["ended"] and capsys.readouterr().err.count("another calculator") == 1


def test_a_fault_on_any_rank_is_agreed_on_before_ranks_that_share_sequences_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that has laid out nothing would sum nothing with the others' samples: that hangs, or ends the run."""
    chunk = DistributedDataParallel()
    noise, ended = made(chunk, dp=1, cp=2)
    sums: list[Sequence[float]] = []

    def total(values: Sequence[float]) -> list[float]:
        sums.append(values)
        return list(values)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("summed")

    monkeypatch.setattr(script_noise, "total", total)
    monkeypatch.setattr(dist, "all_reduce", never)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(noise, "_choose_parameters", lambda: 1 / 0)
    stepped(noise, chunk)
    assert sums == [[1.0]] and ended == ["ended"]
    stepped(noise, chunk)
    assert len(sums) == 1


def test_nothing_is_held_once_measuring_has_ended() -> None:
    chunk = DistributedDataParallel()
    noise, ended = made(chunk)
    chunk.zero_grad_buffer()
    assert noise._handles and noise._nodes
    noise.stop()
    assert not noise._handles and not noise._nodes and ended == ["ended"]
