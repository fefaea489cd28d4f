"""The memory and time of a layer's modules, one by one: what selective recompute frees, and what it costs.

Symbols as in step_time.py; bytes and seconds, (N,). The modules are those of launch/synergy_core/recompute.py, as Megatron-Core's
transformer layer applies them:

- core_attn: the scores and their softmax (Korthikanti et al. 2022, section 5).
- layernorm: the outputs of norms that are apart from the GEMM behind them: before experts, and before latent attention.
- mla_up_proj: queries, keys and values that come up from the latent widths (DeepSeek-V3, 2024, section 3.2.3).
- mlp: all inside of an MLP without experts; moe: inside of the experts and the shared one, with their traffic; shared_experts.
- moe_act: the activation function's outputs.
"""

from __future__ import annotations

import numpy as np
from synergy_core.recompute import MODULES

from synergyd.jobmodel.model.arrays import CORE_ALONE, SELECTIVE, Bools, Floats, Ints, PlanArrays
from synergyd.jobmodel.model.dims import Dims

# inside of experts: nothing more is freed where these are computed again whole
_OF_MOE = ("moe_act", "shared_experts")


def beyond_core(plans: PlanArrays) -> bool:
    """Return whether any of `plans` computes another module again than the attention's core."""
    return bool(np.any((plans.recompute == SELECTIVE) & (plans.modules != CORE_ALONE)))


def find_recomputed(plans: PlanArrays) -> dict[str, Bools]:
    """Return which modules are computed again by themselves, (N,) each."""
    masks = {name: (plans.modules >> i & 1).astype(np.bool_) for i, name in enumerate(MODULES)}
    return {name: mask & ~masks["moe"] if name in _OF_MOE else mask for name, mask in masks.items()}


def count_separate_norms(model: Dims) -> Floats:
    """Return how many norms of a layer Transformer Engine's layer specs do not fuse with the GEMM behind them, the mean over layers."""
    return (model.kv_lora > 0) + model.moe_share


def kept_elements(model: Dims, t: Ints, spread: Ints) -> dict[str, Floats]:
    """Return the elements a token that a layer keeps for each module but the core, the mean over layers.

    `spread`: tensor ranks over which everything outside of tensor parallelism is split.
    """
    sparse = model.moe_share
    return {
        "layernorm": count_separate_norms(model) * model.hidden / spread,
        "mla_up_proj": np.where(model.kv_lora > 0, (model.query + 2 * model.kv) / t, 0.0),
        "mlp": (1 - sparse) * model.gates * model.dense_ffn / t,
        "moe": sparse * model.gates * (model.ffn * model.top_k + model.shared_ffn) / t,
        "moe_act": sparse * model.ffn * model.top_k / t,
        "shared_experts": sparse * model.gates * model.shared_ffn / t,
    }
