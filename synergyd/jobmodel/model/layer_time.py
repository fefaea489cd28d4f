"""Time of one layer's passes, part by part. Symbols as in step_time.py, where each part has its source; seconds, (N,)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from synergy_core.recompute import CORE

from synergyd.jobmodel.model.alignment import fused_slowdown, gemm_slowdown, gemm_slowdowns, not_fused
from synergyd.jobmodel.model.arrays import (
    ALL_TO_ALL,
    FULL,
    OPERATORS,
    PRECISION,
    SELECTIVE,
    Bools,
    Floats,
    Ints,
    PlanArrays,
)
from synergyd.jobmodel.model.dims import Dims
from synergyd.jobmodel.model.group_links import GroupLink, ring
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.modules import beyond_core, count_separate_norms, find_recomputed

# By precision: activations and weights on links, operands of a GEMM.
WEIGHT_BYTES = np.array([2.0, 2.0, 4.0, 2.0])
_OPERAND_BYTES = np.array([2.0, 2.0, 4.0, 1.0])
_LONGEST_UNFUSED = 4096  # tokens
_SMOOTH = 8  # exponent of the smooth maximum of GPU and host time


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The rates that kernels reach, by plan: FLOP/s of GEMMs (`half_rate`: in half precision), bytes/s, bytes an operand."""

    gpu: GpuFigures
    half_rate: Floats | float
    flops_rate: Floats
    memory_rate: Floats | float
    operand: Floats

    def gemm(self, rows: Floats, columns: Floats, inner: Floats, slowdown: Floats | float = 1.0) -> Floats:
        """Return the seconds of a GEMM (rows, columns, inner)."""
        moved = rows * columns + rows * inner + columns * inner
        flops_s = slowdown * 2 * rows * columns * inner / self.flops_rate
        traffic_s = self.gpu.gemm_traffic * self.operand * moved / self.memory_rate
        return np.asarray(flops_s + traffic_s + self.gpu.kernel_s)


def kernels(gpu: GpuFigures, plans: PlanArrays) -> Kernels:
    """Return what `gpu` reaches in each plan's precision."""
    precision_rate = np.select(
        [plans.precision == PRECISION.index("fp8"), plans.precision == PRECISION.index("fp32")],
        [gpu.fp8_speedup, gpu.fp32_speed],
        1.0,
    )
    half_rate = gpu.peak_tflops * 1e12 * gpu.gemm_efficiency
    return Kernels(
        gpu=gpu,
        half_rate=half_rate,
        flops_rate=half_rate * precision_rate,
        memory_rate=gpu.bandwidth_gbs * 1e9 * gpu.bandwidth_efficiency,
        operand=_OPERAND_BYTES[plans.precision],
    )


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """The times of one layer and micro-batch.

    `work` is forward, backward and recomputed, without `tp`, which is the traffic of tensor, expert and context groups.
    `backward` is the backward pass alone, with that traffic. `boundary` is the bytes of a layer's output. `spread` is the number
    of tensor ranks over which the part outside of tensor parallelism is split.
    """

    work: Floats
    tp: Floats
    backward: Floats
    boundary: Floats
    spread: Ints


def layer_time(model: Dims, at: Kernels, plans: PlanArrays, links: dict[str, GroupLink], tokens: Floats) -> LayerTime:
    """Return the passes of one layer with `tokens` tokens a rank."""
    gpu, t = at.gpu, plans.tp
    slowdowns = gemm_slowdowns(model, gpu, t, at.operand)
    # without sequence parallel the norms and residuals are repeated on every tensor rank
    spread = np.where(plans.sequence_parallel, t, 1)
    weight_bytes = WEIGHT_BYTES[plans.precision]
    mlp, wide = _mlp(model, at, plans, tokens, slowdowns)
    core, core_backward = _attention_core(model, at, plans, tokens)
    gemms = _projections(model, at, t, tokens, spread, slowdowns[0]) + mlp
    element_wise = _element_wise(model, gpu, t, tokens * weight_bytes, spread, wide) / at.memory_rate
    rest = gemms + element_wise

    # communication inside a layer, one pass
    boundary = tokens * weight_bytes * model.hidden
    tp_pass = 4 * ring(links["tp"], t, boundary)
    if np.any(gpu.tp_overlap):
        tp_pass = np.maximum((1 - gpu.tp_overlap) * tp_pass, tp_pass - (np.asarray(gpu.tp_overlap) > 0) * gemms)
    routed_bytes = boundary * model.top_k / np.where(plans.sequence_parallel, t, 1)
    ep_pass = model.moe_share * 2 * ring(links["ep"], plans.ep, routed_bytes)
    passed_on = 2 * ring(links["cp"], plans.cp, plans.cp * tokens * weight_bytes * model.kv / t)
    cp_forward, cp_backward = np.maximum(0.0, passed_on - core), np.maximum(0.0, 2 * passed_on - core_backward)
    by_heads = plans.cp_comm == ALL_TO_ALL
    if by_heads.any():
        # heads for tokens and back: queries, keys and values, then the core's output; nothing to hide it behind
        token_bytes = tokens * weight_bytes / t
        swapped = ring(links["cp"], plans.cp, token_bytes * (model.query + 2 * model.kv))
        swapped = swapped + ring(links["cp"], plans.cp, token_bytes * model.value)
        cp_forward, cp_backward = np.where(by_heads, swapped, cp_forward), np.where(by_heads, swapped, cp_backward)
    tp_pass = tp_pass + ep_pass

    host = gpu.launch_s + np.where(t > 1, gpu.tp_launch_s, 0.0)
    forward = _at_least(rest + core + tp_pass, host)
    backward = _at_least(2 * rest + core_backward + tp_pass, host)
    full, selective, operators = (plans.recompute == code for code in (FULL, SELECTIVE, OPERATORS))
    share = _recomputed_share(model, plans, full)
    redone = np.where(full, share * forward, np.where(selective, core, 0.0))
    again_tp = share * tp_pass
    if beyond_core(plans):
        by_modules = _by_modules(model, at, plans, tokens, slowdowns, core, tp_pass - ep_pass, ep_pass)
        redone, again_tp = np.where(selective, by_modules[0], redone), np.where(selective, by_modules[1], again_tp)
    if operators.any():
        redone = np.where(operators, _at_least(gemms / 2 + element_wise, host), redone)
    tp_layer = 2 * tp_pass + again_tp
    work = forward + backward + redone - tp_layer
    tp_layer = tp_layer + (1 + share) * cp_forward + cp_backward
    return LayerTime(work=work, tp=tp_layer, backward=backward, boundary=boundary, spread=spread)


def _recomputed_share(model: Dims, plans: PlanArrays, full: Bools) -> Floats:
    """Return the part of a full stage's layers that full recompute covers, (N,)."""
    some = plans.recompute_layers * plans.vpp
    if not some.any():
        return full.astype(np.float64)
    return np.where(full, np.where(some > 0, np.minimum(1.0, some / np.ceil(model.layers / plans.pp)), 1.0), 0.0)


def _by_modules(
    model: Dims,
    at: Kernels,
    plans: PlanArrays,
    tokens: Floats,
    slowdowns: tuple[Floats, ...],
    core: Floats,
    tp_pass: Floats,
    ep_pass: Floats,
) -> tuple[Floats, Floats]:
    """Return (seconds that the modules of selective recompute take again, the part of these in tensor and expert groups).

    An MLP has one of the layer's two all-reduces.
    """
    t, sparse = plans.tp, model.moe_share
    alone, token_bytes = find_recomputed(plans), tokens * WEIGHT_BYTES[plans.precision]
    spread = np.where(plans.sequence_parallel, t, 1)
    dense, experts, shared = _mlps(model, at, plans, tokens, slowdowns)
    routed = model.ffn * model.top_k
    acts = {name: model.gates * width / t * token_bytes / at.memory_rate for name, width in (
        ("mlp", model.dense_ffn), ("moe", routed + model.shared_ffn), ("moe_act", routed), ("shared_experts", model.shared_ffn)
    )}  # fmt: skip
    up = _up_projections(model, at, t, tokens)
    groups = {"mlp": (1 - sparse) * tp_pass / 2, "moe": sparse * tp_pass / 2 + ep_pass}
    takes = {
        CORE: core,
        "layernorm": count_separate_norms(model) * 2 * token_bytes * model.hidden / spread / at.memory_rate,
        "mla_up_proj": np.where(model.kv_lora > 0, up, 0.0),
        "mlp": (1 - sparse) * (dense + acts["mlp"]) + groups["mlp"],
        "moe": sparse * (experts + shared + acts["moe"]) + groups["moe"],
        "moe_act": sparse * acts["moe_act"],
        "shared_experts": sparse * (shared + acts["shared_experts"]),
    }
    whole = sum((np.where(alone[name], takes[name], 0.0) for name in takes), np.zeros(len(plans)))
    in_groups = sum((np.where(alone[name], groups[name], 0.0) for name in groups), np.zeros(len(plans)))
    return whole, in_groups


def _at_least(gpu_s: Floats, host_s: Floats) -> Floats:
    """Return a smooth maximum. GPU and host work overlap, except for a part where both take about as long."""
    return np.asarray((gpu_s**_SMOOTH + host_s**_SMOOTH) ** (1 / _SMOOTH))


def _projections(model: Dims, at: Kernels, t: Ints, tokens: Floats, spread: Ints, slowdown: Floats) -> Floats:
    """Return the forward seconds of the attention's queries, keys, values and output."""
    h = model.hidden
    forward_s = at.gemm(tokens, (model.query + 2 * model.kv) / t, h, slowdown)
    forward_s = forward_s + at.gemm(tokens, h, model.query / t, slowdown)
    if not np.any(model.kv_lora > 0):
        return forward_s
    # every tensor rank goes down to the latent widths itself, with its part of the sequence
    down = at.gemm(tokens / spread, model.q_lora + model.kv_lora + model.rope, h)
    latent = down + _up_projections(model, at, t, tokens) + at.gemm(tokens, h, model.value / t)
    return np.where(model.kv_lora > 0, latent, forward_s)


def _up_projections(model: Dims, at: Kernels, t: Ints, tokens: Floats) -> Floats:
    """Return the forward seconds of multi-head latent attention's projections from the latent widths to its heads."""
    below, width = np.where(model.q_lora > 0, model.q_lora, model.hidden), model.query / model.heads - model.rope
    up = at.gemm(tokens, model.query / t, below)
    return up + at.gemm(tokens, (model.heads * width + model.value) / t, model.kv_lora)


def _mlp(
    model: Dims, at: Kernels, plans: PlanArrays, tokens: Floats, slowdowns: tuple[Floats, ...]
) -> tuple[Floats, Floats]:
    """Return (seconds forward, width) of a layer's MLP, the mean over layers with experts and without."""
    wide = model.dense_ffn
    dense, expert, beside = _mlps(model, at, plans, tokens, slowdowns)
    if not np.any(model.moe_share > 0):
        return dense, wide
    mlp = (1 - model.moe_share) * dense + model.moe_share * (expert + beside)
    return mlp, (1 - model.moe_share) * wide + model.moe_share * (model.ffn * model.top_k + model.shared_ffn)


def _mlps(
    model: Dims, at: Kernels, plans: PlanArrays, tokens: Floats, slowdowns: tuple[Floats, ...]
) -> tuple[Floats, Floats, Floats]:
    """Return the forward seconds of an MLP without experts, of the routed experts, and of the shared expert that all tokens go to."""
    h, f, t = model.hidden, model.ffn, plans.tp
    _, of_dense, of_mlp, of_shared = slowdowns
    wide = model.dense_ffn
    dense = at.gemm(tokens, (model.gates - 1) * wide / t, h, of_dense) + at.gemm(tokens, h, wide / t, of_dense)
    if not np.any(model.moe_share > 0):
        return dense, np.zeros(()), np.zeros(())
    local_experts = np.maximum(1.0, model.experts / plans.ep)
    routed = tokens * model.top_k / local_experts
    expert = at.gemm(routed, (model.gates - 1) * f / t, h, of_mlp) + at.gemm(routed, h, f / t, of_mlp)
    expert = local_experts * expert
    shared = model.shared_ffn
    both = at.gemm(tokens, (model.gates - 1) * shared / t, h, of_shared) + at.gemm(tokens, h, shared / t, of_shared)
    return dense, expert, np.where(shared > 0, both, 0.0)


def _attention_core(model: Dims, at: Kernels, plans: PlanArrays, tokens: Floats) -> tuple[Floats, Floats]:
    """Return (forward, backward) seconds of the attention core."""
    gpu, t = at.gpu, plans.tp
    # scores of long sequences fit no memory: those are only trained with fused attention, unless software is known to have none
    fused = gpu.flash & ~not_fused(model, plans)
    likely = np.minimum(1.0, (_LONGEST_UNFUSED / model.seq) ** 2)
    unfused = np.where(fused, gpu.unfused, 1.0) * np.where(np.asarray(gpu.unfused) < 1.0, likely, 1.0)
    # a causal mask skips half of the scores, unless they are computed in full
    in_full = np.minimum(unfused, 1.0)
    masked = 1 - 0.5 * model.causal * (1 - in_full)
    # the core's operands are half precision under fp8
    head = gemm_slowdown(model.query / model.heads, _OPERAND_BYTES[0], gpu)
    slowdown = in_full * head + (1 - in_full) * fused_slowdown(model)
    flops = slowdown * masked * tokens * 2 * model.seq * (model.query + model.value) / t
    # unfused: the softmax, its mask and dropout read or write the scores five times in 2 bytes
    scores_s = unfused * 10 * gpu.score_traffic * tokens * model.seq * model.heads / t / at.memory_rate
    core = flops / (at.half_rate * gpu.attention_efficiency) + scores_s + gpu.kernel_s
    return core, core * (2 + 0.5 * (1 - in_full))


def _element_wise(model: Dims, gpu: GpuFigures, t: Ints, token_bytes: Floats, spread: Ints, wide: Floats) -> Floats:
    """Return the bytes that element-wise work of a layer moves forward.

    These are two norms (read, write), two dropout-residuals (read two, write one); bias, gelu or gate; rotary and biases of q, k,
    v.
    """
    outer = token_bytes * model.hidden * (2 * 2 * gpu.norm_traffic + 2 * 3 * gpu.pointwise_traffic) / spread
    inner = token_bytes * (2 * wide * (model.gates - 1) + 2 * (model.query + 2 * model.kv)) / t
    return outer + gpu.pointwise_traffic * inner
