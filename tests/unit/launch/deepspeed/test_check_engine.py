"""What a run of DeepSpeed can't go on with on another number of ranks is one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from synergy_core.errors import UsageError
from synergy_launch.deepspeed.refused import check_engine


class DeepSpeedZeroOptimizer:
    """As DeepSpeed's of this name."""


class PipelineEngine(SimpleNamespace):
    """As DeepSpeed's of this name."""


def engine(kind: type = SimpleNamespace, **more: Any) -> Any:
    """The parts that are looked at, of ZeRO 2 on four ranks."""
    values: dict[str, Any] = {
        "has_moe_layers": False, "dp_world_size": 4, "config": {}, "module": torch.nn.Linear(2, 2),
        "basic_optimizer": torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]), "optimizer": DeepSpeedZeroOptimizer(),
        "checkpoint_engine": SimpleNamespace(is_decoupled=lambda: False),
    }  # fmt: skip
    answers = {
        "zero_optimization_stage": 2, "zero_hpz_partition_size": 1, "fp16_enabled": False, "zero_offload_optimizer": None,
        "zero_offload_param": None, "bf16_master_weights_and_gradients": False, "bf16_optimizer_states": False,
        "managed_gradient_accumulation": True, "is_deepcompile_enabled": False, "use_node_local_storage": False,
        "torch_autocast_enabled": False, "torch_autocast_dtype": None,
    }  # fmt: skip
    values |= {name: more.pop(name) for name in list(more) if name in values}
    answers |= more
    return kind(**values, **{name: (lambda value=value: value) for name, value in answers.items()})


def frozen() -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.bias.requires_grad = False
    return module


def optimizer(kind: Any, **more: Any) -> Any:
    return kind([torch.nn.Parameter(torch.ones(1))], lr=1.0, **more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kind": PipelineEngine}, "its engine is a pipeline"),
        ({"has_moe_layers": True}, "its model has experts"),
        ({"dp_world_size": 2}, "2 of 4 ranks are data parallel; no tensor or sequence parallel"),
        ({"zero_hpz_partition_size": 2}, "within groups of ranks"),
        ({"config": {"zero_optimization": {"mics_shard_size": 2}}}, "within groups of ranks"),
        ({"fp16_enabled": True}, "fp16, whose loss scale is not proven over a change of ranks; bf16 or fp32"),
        ({"torch_autocast_enabled": True, "torch_autocast_dtype": torch.float16}, "fp16, whose loss scale"),
        ({"zero_offload_optimizer": SimpleNamespace(device="cpu")}, "offload to CPU or NVMe"),
        ({"zero_offload_param": SimpleNamespace(device="nvme")}, "offload to CPU or NVMe"),
        ({"basic_optimizer": None}, "the optimizer NoneType"),
        ({"basic_optimizer": optimizer(torch.optim.SGD)}, "the optimizer SGD: the universal checkpoint has Adam's two"),
        ({"basic_optimizer": optimizer(torch.optim.AdamW, amsgrad=True)}, "the optimizer AdamW with amsgrad"),
        (
            {"optimizer": SimpleNamespace()},
            "DeepSpeed's SimpleNamespace at ZeRO stage 2; ZeRO without grad_accum_dtype",
        ),
        ({"zero_optimization_stage": 0}, "DeepSpeed's DeepSpeedZeroOptimizer at ZeRO stage 0"),
        ({"bf16_optimizer_states": True}, "moments in bf16"),
        ({"zero_optimization_stage": 3, "module": frozen()}, "ZeRO 3 with frozen parameters such as bias"),
        ({"managed_gradient_accumulation": False}, "managed_gradient_accumulation is false"),
        ({"config": {"elasticity": {"enabled": True}}}, "DeepSpeed's own elasticity is on"),
        ({"is_deepcompile_enabled": True}, "DeepCompile"),
        ({"checkpoint_engine": SimpleNamespace(is_decoupled=lambda: True)}, "checkpoints that are written later"),
        ({"use_node_local_storage": True}, "to each node's own disk"),
    ],
)
def test_what_cannot_go_on(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_engine(engine(**more), 4)
    assert str(caught.value).startswith("DeepSpeedTask: ") and words in str(caught.value)


def test_a_model_is_no_engine() -> None:
    with pytest.raises(UsageError, match=r"Linear is no engine; what deepspeed\.initialize gives first"):
        check_engine(torch.nn.Linear(2, 2), 4)


def test_what_can_go_on() -> None:
    check_engine(engine(), 4)
    check_engine(engine(zero_offload_optimizer=SimpleNamespace(device="none"), module=frozen()), 4)
    check_engine(engine(torch_autocast_enabled=True, torch_autocast_dtype=torch.bfloat16), 4)
    plain = optimizer(torch.optim.Adam)
    check_engine(engine(zero_optimization_stage=0, basic_optimizer=plain, optimizer=plain), 4)


def test_an_engine_of_019_2_does_not_say_who_counts() -> None:
    older = engine()
    del older.managed_gradient_accumulation
    check_engine(older, 4)
