"""A model's sizes as numbers to calculate with: of one model, or of many at once, one per measured row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from synergy_core.records import ModelSpec

from synergyd.jobmodel.model.arrays import Floats
from synergyd.jobmodel.model.counts import dense_ffn, latent_down_parameters, latent_parameters, moe_layers


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Sizes of N models, each field of shape (N,), or of one model, each of shape ().

    `gates` is 3 with gated units else 2, `moe_share` the part of the layers that are MoE. `dense_parameters` and
    `expert_parameters` are means over the layers: what every tensor group holds, and what expert parallelism shares
    out; `head_parameters` are an untied output layer's, `embedding_parameters` the token embedding's.
    """

    layers: Floats
    hidden: Floats
    ffn: Floats
    heads: Floats
    query: Floats  # heads * head_dim
    kv: Floats  # kv_heads * head_dim, the mean of keys and values
    value: Floats  # width of the output projection's input
    q_lora: Floats  # 0: queries are not compressed
    kv_lora: Floats  # 0: no multi-head latent attention
    rope: Floats  # rotary part of the keys, from the hidden state, where there is one
    vocab: Floats
    seq: Floats
    gates: Floats
    causal: Floats  # 1 or 0
    experts: Floats  # at least 1
    top_k: Floats
    shared_ffn: Floats
    dense_ffn: Floats  # width in layers without experts
    mtp: Floats  # layers of multi-token prediction
    moe_share: Floats
    dense_parameters: Floats
    replicated_parameters: Floats  # the part of dense_parameters that every tensor rank holds whole
    expert_parameters: Floats
    embedding_parameters: Floats
    head_parameters: Floats
    positions: Floats


def _numbers(model: ModelSpec) -> dict[str, float]:
    h, f = model.hidden, model.ffn
    head_dim = model.head_dim or h / model.heads
    query, kv = model.heads * (head_dim + model.rope_dim), model.kv_heads * head_dim
    value = model.heads * (model.value_dim or head_dim)
    if model.kv_lora:
        kv = (query + value) / 2
    gates = 3 if model.gated else 2
    moe_share = moe_layers(model) / model.layers
    attention = latent_parameters(model) if model.kv_lora else 2 * h * query + 2 * h * kv
    # norms; GPT's biases of q, k, v, the output and (dense) both halves of the MLP
    small = 2 * h if model.gated else 4 * h + query + 2 * kv + h
    mlp = gates * h * f + (0 if model.gated else f + h)
    dense = dense_ffn(model)
    dense_mlp = gates * h * dense + (0 if model.gated else dense + h)
    router = h * model.experts + gates * h * model.shared_ffn
    return {
        "layers": model.layers,
        "hidden": h,
        "ffn": f,
        "heads": model.heads,
        "query": query,
        "kv": kv,
        "value": value,
        "q_lora": model.q_lora,
        "kv_lora": model.kv_lora,
        "rope": model.rope_dim,
        "vocab": model.vocab,
        "seq": model.seq,
        "gates": gates,
        "causal": float(model.causal),
        "experts": max(1, model.experts),
        "top_k": max(1, model.top_k),
        "shared_ffn": model.shared_ffn,
        "dense_ffn": dense,
        "mtp": model.mtp_layers,
        "moe_share": moe_share,
        "dense_parameters": attention + small + (1 - moe_share) * dense_mlp + moe_share * router,
        "replicated_parameters": latent_down_parameters(model),
        "expert_parameters": moe_share * model.experts * mlp,
        "embedding_parameters": model.vocab * h,
        "head_parameters": 0 if model.tied_embeddings else model.vocab * h,
        "positions": 0 if model.gated else model.seq * h,
    }


@lru_cache(maxsize=256)
def dims(model: ModelSpec) -> Dims:
    """Return the sizes of one model. Its arrays are shared and never written to."""
    return Dims(**{name: np.asarray(value, dtype=np.float64) for name, value in _numbers(model).items()})


def stack_dims(models: Sequence[ModelSpec]) -> Dims:
    """Return the sizes of N models."""
    rows = [_numbers(model) for model in models]
    return Dims(**{f.name: np.array([row[f.name] for row in rows], dtype=np.float64) for f in fields(Dims)})
