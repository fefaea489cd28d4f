"""Checks for state that DeepSpeed's universal checkpoint does not carry to another number of ranks.

State that no test here has shown it to carry counts as such, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from synergy_core.errors import UsageError

_WHERE = "DeepSpeedTask"
# ds_to_universal.py (DeepSpeed 0.19.8) takes exp_avg, exp_avg_sq and step of each parameter, and nothing else
_ADAMS = ("Adam", "AdamW", "FusedAdam")
_ZERO = ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3")


def check_engine(engine: Any, world: int) -> None:
    """Raise UsageError where the run of `engine` on `world` ranks could not go on on another number of them."""
    if not hasattr(engine, "zero_optimization_stage"):
        raise UsageError(_WHERE, f"{type(engine).__name__} is no engine", "what deepspeed.initialize gives first")
    for wrong, what, right in (*_of_parallelism(engine, world), *_of_state(engine), *_of_checkpoints(engine)):
        if wrong:
            raise UsageError(_WHERE, what, right)


def _of_parallelism(engine: Any, world: int) -> Iterator[tuple[bool, str, str]]:
    pipeline = any(kind.__name__ == "PipelineEngine" for kind in type(engine).__mro__)
    yield pipeline, "its engine is a pipeline, whose stages a plan can't change", "a model that is no PipelineModule"
    yield (
        bool(engine.has_moe_layers),
        "its model has experts (MoE), which each rank holds other ones of",
        "a dense model",
    )
    what = f"{engine.dp_world_size} of {world} ranks are data parallel"
    yield engine.dp_world_size != world, what, "no tensor or sequence parallel: only the number of replicas changes"
    groups = engine.config.get("zero_optimization", {})
    within = engine.zero_hpz_partition_size() > 1 or groups.get("mics_shard_size", -1) > 0
    yield within, "it shares parameters out within groups of ranks (hpZ or MiCS)", "plain ZeRO 3"


def _of_state(engine: Any) -> Iterator[tuple[bool, str, str]]:
    stage = engine.zero_optimization_stage()
    autocast = engine.torch_autocast_enabled() and str(engine.torch_autocast_dtype()) == "torch.float16"
    yield (
        engine.fp16_enabled() or autocast,
        "fp16, whose loss scale is not proven over a change of ranks",
        "bf16 or fp32",
    )
    offloads = [
        config for config in (engine.zero_offload_optimizer(), engine.zero_offload_param()) if config is not None
    ]
    away = any(str(getattr(config.device, "value", config.device)) != "none" for config in offloads)
    yield away, "offload to CPU or NVMe, which is not proven over a change of ranks", "ZeRO without offload"
    basic, kind = engine.basic_optimizer, type(engine.basic_optimizer).__name__
    extra = any(group.get("amsgrad") for group in basic.param_groups) if basic is not None else False
    what = f"the optimizer {kind}{' with amsgrad' * extra}: the universal checkpoint has Adam's two moments only"
    yield kind not in _ADAMS or extra, what, "Adam, AdamW or FusedAdam"
    wrapper = type(engine.optimizer).__name__
    is_supported = wrapper in _ZERO if stage else engine.optimizer is basic
    yield (
        not is_supported,
        f"DeepSpeed's {wrapper} at ZeRO stage {stage}",
        "ZeRO without grad_accum_dtype, or fp32 without ZeRO",
    )
    low = engine.bf16_master_weights_and_gradients() or engine.bf16_optimizer_states()
    yield low, "master weights or moments in bf16, which the universal checkpoint keeps in fp32", "fp32 ones"
    frozen = [name for name, parameter in engine.module.named_parameters() if not parameter.requires_grad]
    what = (
        f"ZeRO 3 with frozen parameters such as {frozen[0] if frozen else ''}: the universal checkpoint leaves them out"
    )
    yield stage == 3 and bool(frozen), what, "ZeRO 2, which holds them whole"


def _of_checkpoints(engine: Any) -> Iterator[tuple[bool, str, str]]:
    manages = getattr(engine, "managed_gradient_accumulation", None)  # not in 0.19.2, whose engine always does
    caller = manages is not None and not manages()
    yield caller, "managed_gradient_accumulation is false", "true: task.step counts the micro-batches"
    elastic = engine.config.get("elasticity", {}).get("enabled")
    yield bool(elastic), "DeepSpeed's own elasticity is on, which chooses a batch", "without it: the plan has the batch"
    yield engine.is_deepcompile_enabled(), "DeepCompile, which is not proven with this", "an engine without it"
    late = engine.checkpoint_engine.is_decoupled() or engine.use_node_local_storage()
    yield late, "checkpoints that are written later, or to each node's own disk", "the default checkpoint engine"
