"""The GPT of a run under one plan: its checks, its layers, and initial weights that are the same on every plan."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from typing import Any

import torch
from synergy_core.errors import UsageError
from synergy_core.pipeline_stages import stage_layers
from synergy_core.recompute import FULL, NONE, list_modules
from synergy_core.records import ModelSpec, Plan

from synergy_launch.agent.settings import check_degrees
from synergy_launch.megatron_core import cpu_backend

# Megatron orders communication before computation by it when tp > 1; it must be set before CUDA starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

with warnings.catch_warnings(action="ignore"):
    # "Transformer Engine and Apex are not installed": Megatron's own fallbacks are wanted then.
    CPU = cpu_backend.install()  # before the rest of megatron is imported; None where there is a GPU
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.enums import ModelType
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}
_INIT_STD = 0.02
RECOMPUTABLE = ("core_attn", "layernorm", "mlp")  # of a dense model's layer
# Two matrices feed each residual stream; theirs are scaled by 1/sqrt(2 layers), as GPT-2's and Megatron's are.
_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")


def check_model(spec: ModelSpec, plan: Plan) -> None:
    """Raise UsageError, in one line, where `plan` can't divide the model."""
    where = f"plan tp={plan.tp} pp={plan.pp} dp={plan.dp}"
    check_degrees(plan, ("tp", "pp"), "plan")
    if spec.experts:
        raise UsageError("model", f"{spec.experts} experts", "this script trains dense models")
    if spec.hidden % spec.heads:
        raise UsageError("model", f"{spec.heads} heads can't divide a hidden size of {spec.hidden}", "a multiple")
    if spec.heads % spec.kv_heads:
        raise UsageError("model", f"{spec.kv_heads} key-value heads can't divide {spec.heads} heads", "a divisor")
    for name, size in (("heads", spec.heads), ("key-value heads", spec.kv_heads), ("MLP width", spec.ffn)):
        if size % plan.tp:
            raise UsageError(where, f"tp={plan.tp} can't divide {size} {name}", f"tp must be a divisor of {size}")
    if stage_layers(spec.layers, plan.pp) is None:
        raise UsageError(where, f"pp={plan.pp} can't divide {spec.layers} layers", f"pp must divide {spec.layers}")
    if padded_vocab(spec) % plan.tp:
        raise UsageError(where, f"tp={plan.tp} can't divide a vocabulary of {padded_vocab(spec)}", "a power of two")
    if plan.sequence_parallel and spec.seq % plan.tp:
        raise UsageError(where, f"tp={plan.tp} can't divide sequences of {spec.seq}", f"tp must divide {spec.seq}")


def padded_vocab(spec: ModelSpec) -> int:
    """Return the vocabulary as laid out: a multiple of 128 on every plan, or padding would change losses with tp."""
    return -(-spec.vocab // 128) * 128


def build_model(spec: ModelSpec, config: TransformerConfig, device: torch.device) -> GPTModel:
    """Build this pipeline stage's part of the model, on `device`; Megatron's groups must be there."""
    model = GPTModel(
        config=config,
        transformer_layer_spec=_layers(config),
        vocab_size=padded_vocab(spec),
        max_sequence_length=spec.seq,
        pre_process=bool(parallel_state.is_pipeline_first_stage()),
        post_process=bool(parallel_state.is_pipeline_last_stage()),
        share_embeddings_and_output_weights=spec.tied_embeddings,
        position_embedding_type="rope",
    )
    model.model_type = ModelType.encoder_or_decoder
    model.to(device, config.params_dtype)
    return model


def transformer_config(spec: ModelSpec, plan: Plan, dtype: torch.dtype) -> TransformerConfig:
    stages = stage_layers(spec.layers, plan.pp)
    uneven = stages is not None and not stages.is_even
    with warnings.catch_warnings(action="ignore"):
        return TransformerConfig(
            num_layers=spec.layers,
            hidden_size=spec.hidden,
            num_attention_heads=spec.heads,
            num_query_groups=spec.kv_heads,
            ffn_hidden_size=spec.ffn,
            gated_linear_unit=spec.gated,
            activation_func=torch.nn.functional.silu if spec.gated else torch.nn.functional.gelu,
            add_bias_linear=not spec.gated,
            normalization="RMSNorm" if spec.gated else "LayerNorm",
            # Dropout would draw other numbers on other plans.
            hidden_dropout=0.0,
            attention_dropout=0.0,
            tensor_model_parallel_size=plan.tp,
            pipeline_model_parallel_size=plan.pp,
            num_layers_in_first_pipeline_stage=stages.first if stages is not None and uneven else None,
            num_layers_in_last_pipeline_stage=stages.last if stages is not None and uneven else None,
            sequence_parallel=plan.sequence_parallel and plan.tp > 1,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            bf16=dtype is torch.bfloat16,
            use_cpu_initialization=True,
            # Not skipped although initialise() overwrites it: it also marks what is split, for clipping counts by that.
            perform_initialization=True,
            # Fusions need apex, Transformer Engine or a compiler.
            gradient_accumulation_fusion=False,
            bias_dropout_fusion=False,
            bias_activation_fusion=False,
            masked_softmax_fusion=False,
            apply_rope_fusion=False,
            **recompute_fields(spec, plan),
        )


def recompute_fields(spec: ModelSpec, plan: Plan) -> dict[str, Any]:
    """Return TransformerConfig's fields for what `plan` computes again. Raises UsageError."""
    if plan.recompute == FULL:
        method = "block" if plan.recompute_layers else "uniform"
        return {
            "recompute_granularity": "full",
            "recompute_method": method,
            "recompute_num_layers": plan.recompute_layers or 1,
        }
    if plan.recompute == NONE:
        return {}
    modules = list_modules(plan.recompute)
    # a bias that the MLP hands on beside its output makes Megatron's checkpoint of it call itself without end
    able = [name for name in RECOMPUTABLE if spec.gated or name != "mlp"]
    if not set(modules) <= set(able):
        raise UsageError("plan", f"recompute={plan.recompute}", f"none, full, or of {'+'.join(able)}")
    return {"recompute_granularity": "selective", "recompute_modules": list(modules)}


class _TorchNorm:
    """torch's norm in every place of the model, on all machines alike; made as Megatron makes its own.

    Megatron's wrapper of it refuses sequence parallelism, which asks only that the parameters be marked: their
    gradients are then summed over the tensor-parallel ranks, each of which has seen a part of the sequence.
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **others: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm: torch.nn.Module = kind(hidden_size, eps=eps)
        for parameter in norm.parameters():
            setattr(parameter, "sequence_parallel", config.sequence_parallel)  # noqa: B010
        return norm


def _layers(config: TransformerConfig) -> Any:
    """Return the layers and the norm of this pipeline stage."""
    layer = get_gpt_layer_local_spec(normalization=config.normalization)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = _TorchNorm
    return TransformerBlockSubmodules([layer] * get_num_layers_to_build(config), _TorchNorm)


@torch.no_grad()
def initialise(model: Any, seed: int, layers: int) -> None:
    """Draw every weight from a generator seeded by its global name (and layer): the same model on every plan.

    Matrices: normal, std 0.02, those that feed the residual stream 0.02 / sqrt(2 layers) (Radford et al. 2019,
    section 2.3); norms one, biases zero.
    """
    for part in _sharded_tensors(model.sharded_state_dict(metadata=METADATA)):
        assert part.data is not None
        lead = part.prepend_axis_num
        shape = tuple(part.global_shape[lead:])
        if len(shape) < 2:
            part.data.fill_(1.0 if "norm" in part.key and part.key.endswith("weight") else 0.0)
            continue
        name = f"{seed}/{part.key}/{tuple(part.global_offset[:lead])}"
        generator = torch.Generator("cpu")
        generator.manual_seed(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big"))
        std = _INIT_STD / math.sqrt(2 * layers) if part.key.endswith(_RESIDUAL) else _INIT_STD
        full = torch.randn(shape, generator=generator, device="cpu") * std
        for axis, (offset, size) in enumerate(zip(part.global_offset[lead:], part.local_shape, strict=True)):
            full = full.narrow(axis, offset, size)
        part.data.copy_(full)


def _sharded_tensors(state: Any) -> list[Any]:
    """Return all sharded tensors in `state`; those that factories would make (a gated MLP's halves) view the same memory."""
    tensors: list[Any] = []
    for value in state.values() if isinstance(state, dict) else state if isinstance(state, list) else [state]:
        if isinstance(value, ShardedTensorFactory):
            value = value.build()
        if isinstance(value, ShardedTensor):
            tensors.append(value)
        elif isinstance(value, dict | list):
            tensors.extend(_sharded_tensors(value))
    return tensors
