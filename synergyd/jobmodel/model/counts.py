"""Parameter and FLOP counts of a ModelSpec.

Symbols: h hidden, a heads, e head width, k = kv_heads/a, f ffn, L layers, V vocabulary, s sequence; g = 3 weight matrices in a gated
unit, else 2. Checked by test against published counts and Megatron-LM's own formulas.
"""

from __future__ import annotations

from synergy_core.records import ModelSpec


def head_width(model: ModelSpec) -> int:
    """Return e: the width of one attention head."""
    return model.head_dim or model.hidden // model.heads


def query_width(model: ModelSpec) -> int:
    """Return the width of all heads' queries. Their keys are as wide, and repeated where there are fewer kv_heads."""
    return model.heads * (head_width(model) + model.rope_dim)


def value_width(model: ModelSpec) -> int:
    """Return the width of what all heads give the output projection."""
    return model.heads * (model.value_dim or head_width(model))


def dense_ffn(model: ModelSpec) -> int:
    """Return the width of the MLP of a layer without experts."""
    return model.dense_ffn or model.ffn


def moe_layers(model: ModelSpec) -> int:
    """Return the number of layers with experts, 0 in a dense model.

    Among the layers after the first dense_layers, these are numbers 0, moe_every, 2 moe_every, ... (Megatron's --moe-layer-freq).
    """
    return -(-(model.layers - model.dense_layers) // model.moe_every) if model.experts else 0


def latent_down_parameters(model: ModelSpec) -> int:
    """Return the part of `latent_parameters` that leads down to the latent widths, and to the keys' rotary part.

    Every tensor rank holds them whole (Megatron-LM's linear_q_down_proj and linear_kv_down_proj are duplicated). 0 without latent
    attention.
    """
    return model.hidden * (model.q_lora + model.kv_lora + model.rope_dim) if model.kv_lora else 0


def latent_parameters(model: ModelSpec) -> int:
    """Return the weights of one layer's multi-head latent attention (DeepSeek-V2, Liu et al.

    2024, section 2.1). They lead down to the latent widths, up to the heads (keys and values without the rotary part, which comes
    from the hidden state), and to the output.
    """
    h, up_kv = model.hidden, model.heads * head_width(model) + value_width(model)
    queries = (model.q_lora or h) * query_width(model)
    return latent_down_parameters(model) + queries + model.kv_lora * up_kv + value_width(model) * h


def attention_parameters(model: ModelSpec) -> int:
    """Return the weights of one layer's attention.

    These are h*a*e for queries and output each, k of that for keys and values each; biases only where the MLP is not gated (GPT,
    BERT); norms of the latent widths (multi-head latent attention).
    """
    if model.kv_lora:
        return latent_parameters(model) + model.q_lora + model.kv_lora
    inner = model.heads * head_width(model)
    kv = model.kv_heads * head_width(model)
    weights = 2 * model.hidden * inner + 2 * model.hidden * kv
    return weights if model.gated else weights + inner + 2 * kv + model.hidden


def mlp_parameters(model: ModelSpec) -> int:
    """Return the parameters of one expert, or of the MLP of a model without experts: g*h*f, with biases unless gated."""
    return _mlp(model, model.ffn)


def _mlp(model: ModelSpec, width: int) -> int:
    weights = (3 if model.gated else 2) * model.hidden * width
    return weights if model.gated else weights + width + model.hidden


def expert_parameters(model: ModelSpec) -> int:
    """Return the parameters of all routed experts of one MoE layer, which expert parallelism shards."""
    return model.experts * mlp_parameters(model)


def shared_parameters(model: ModelSpec) -> int:
    """Return the parameters of the router and shared expert of one MoE layer, which every rank has."""
    return model.hidden * model.experts + (3 if model.gated else 2) * model.hidden * model.shared_ffn


def norm_parameters(model: ModelSpec) -> int:
    """Return the parameters of the two norms of one layer.

    These are RMSNorm's weights where the MLP is gated, else LayerNorm's weights and biases.
    """
    return (2 if model.gated else 4) * model.hidden


def layer_parameters(model: ModelSpec) -> int:
    """Return the parameters of one dense layer; in MoE, of one layer with experts."""
    mlp = expert_parameters(model) + shared_parameters(model) if model.experts else mlp_parameters(model)
    return attention_parameters(model) + mlp + norm_parameters(model)


def layers_parameters(model: ModelSpec) -> int:
    """Return the parameters of all layers."""
    dense = attention_parameters(model) + _mlp(model, dense_ffn(model)) + norm_parameters(model)
    with_experts = moe_layers(model)
    return with_experts * layer_parameters(model) + (model.layers - with_experts) * dense


def embedding_parameters(model: ModelSpec) -> int:
    """Return the parameters of the token embedding. An untied output layer has as many again."""
    return model.vocab * model.hidden


def parameters(model: ModelSpec) -> int:
    """Return the number of all parameters.

    These are the embedding (and output layer if untied), learnt positions unless gated (rotary), layers, and the final norm; an
    encoder has two token types and a pooler besides (BERT). Layers of multi-token prediction are left out, as in published
    counts.
    """
    h = model.hidden
    positions = 0 if model.gated else model.seq * h
    final_norm = h * (1 if model.gated else 2)
    embeddings = embedding_parameters(model) * (1 if model.tied_embeddings else 2)
    encoder = 0 if model.causal else 2 * h + h * h + h
    return embeddings + positions + layers_parameters(model) + final_norm + encoder


def active_parameters(model: ModelSpec) -> int:
    """Return the parameters that one token passes through: all but the experts that the router does not pick."""
    idle = (model.experts - model.top_k) * mlp_parameters(model) if model.experts else 0
    return parameters(model) - moe_layers(model) * idle


def attention_flops_per_token(model: ModelSpec) -> float:
    """Return the FLOPs of the scores and of their product with the values, forward and backward, counted in full: 12 L s a e.

    A causal mask leaves half of it to do.
    """
    return 6.0 * (model.layers + model.mtp_layers) * model.seq * (query_width(model) + value_width(model))


def flops_per_token(model: ModelSpec) -> float:
    """Return the model FLOPs of one token, forward and backward, attention counted in full.

    12 L h a e (1 + k) + 12 L s a e + 6 g h (f of each MLP it passes) + 6 V h (Narayanan et al. SC'21, appendix,
    without recompute; GQA, head width, gated units and experts as in Megatron-LM's num_floating_point_operations,
    which leaves the router out).
    """
    h, k = model.hidden, model.kv_heads / model.heads
    gates = 3 if model.gated else 2
    layers = model.layers + model.mtp_layers
    projections = 12 * layers * h * model.heads * head_width(model) * (1 + k)
    if model.kv_lora:
        projections = 6 * layers * latent_parameters(model)
    with_experts = moe_layers(model)
    widths = (model.layers - with_experts) * dense_ffn(model)
    # a layer of multi-token prediction is like the last one, behind a projection of two hidden states (DeepSeek-V3, section 2.2)
    with_experts += model.mtp_layers if model.experts else 0
    widths += with_experts * (model.top_k * model.ffn + model.shared_ffn)
    widths += 0 if model.experts else model.mtp_layers * model.ffn
    ends = 6 * model.vocab * h * (1 + model.mtp_layers) + 12 * model.mtp_layers * h * h
    return projections + attention_flops_per_token(model) + 6 * gates * h * widths + ends


def flops_per_step(model: ModelSpec, global_batch: int) -> float:
    """Return the model FLOPs of one step over `global_batch` sequences (no recompute counted). MFU is measured against this."""
    return flops_per_token(model) * model.seq * global_batch


def hardware_flops_per_step(model: ModelSpec, global_batch: int, recompute: str) -> float:
    """Return the FLOPs done in one step.

    With full recompute each layer's forward runs twice, so a GPT's step is SC'21's 96 B s L h^2 (1 + s/6h + V/16Lh). With
    selective recompute (Korthikanti et al. 2022) only the attention core runs twice.
    """
    tokens = model.seq * global_batch
    extra = 0.0
    if recompute == "full":
        extra = (flops_per_token(model) - 6 * model.vocab * model.hidden) / 3
    elif recompute == "selective":
        extra = attention_flops_per_token(model) / 3
    return flops_per_step(model, global_batch) + tokens * extra
