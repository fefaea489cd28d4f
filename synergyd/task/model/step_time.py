"""Step time of transformer plans and where it goes, for whole arrays of plans at once.

Symbols: b sequences of s tokens a micro-batch, T = s*b/c, h hidden, f ffn, a heads, L layers, V vocabulary; t, p, d, c, e
the tensor-, pipeline-, data-, context- and expert-parallel degrees; v virtual stages; m micro-batches. All times are
seconds, all arrays have shape (N,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synergyd.records import ModelSpec
from synergyd.task.model.alignment import fused_slowdown, gemm_slowdown, gemm_slowdowns, not_fused
from synergyd.task.model.arrays import PRECISION, Floats, Ints, PlanArrays
from synergyd.task.model.dims import Dims, dims
from synergyd.task.model.hardware import GpuFigures
from synergyd.task.model.stages import layers_at_ends

# Bytes of Adam with fp32 master weights: read gradient, master, two moments; write master, two moments and the bf16
# copy.
_OPTIMIZER_BYTES = 4 * 4 + 3 * 4 + 2
# By precision: activations and weights on links, gradients on links (Megatron accumulates and reduces in fp32 when it
# trains in bf16), operands of a GEMM.
_WEIGHT_BYTES = np.array([2.0, 2.0, 4.0, 2.0])
_GRADIENT_BYTES = np.array([4.0, 2.0, 4.0, 4.0])
_OPERAND_BYTES = np.array([2.0, 2.0, 4.0, 1.0])
_LONGEST_UNFUSED = 4096  # tokens
_SMOOTH = 8  # exponent of the smooth maximum of GPU and host time


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Parts of one step, seconds, (N,) each; `total` is their sum."""

    compute: Floats
    bubble: Floats
    tp: Floats  # tensor and expert groups, and what context groups could not hide
    pp: Floats
    dp: Floats
    optimizer: Floats
    fixed: Floats

    @property
    def total(self) -> Floats:
        return self.compute + self.bubble + self.tp + self.pp + self.dp + self.optimizer + self.fixed

    def parts(self, i: int) -> dict[str, float]:
        """Plan `i`'s parts by name, seconds."""
        return {name: float(value[i]) for name, value in vars(self).items()}


@dataclass(frozen=True)
class _GroupLink:
    """A group's link: bandwidth (bytes/s) and latency (s)."""

    rate: Floats
    latency: Floats


def _links(gpu: GpuFigures, plans: PlanArrays) -> dict[str, _GroupLink]:
    """Two link classes: a group whose ranks span more GPUs than a node gives it goes over the network.

    Megatron's rank order is tp, cp, dp, pp from inside out, so tp groups span t ranks, cp groups t*c, dp groups t*c*d
    and a pipeline the whole job. A collective's ring enters a node once per network port that its members there own, so
    a group with n members on a node has min(in-node rate, n^rail_use * inter_gbs) (NCCL uses one channel per port, but
    the ring's hops inside the node share the switches with the other groups').
    """
    inner = plans.tp * plans.cp
    intra = gpu.intra_gbs * 1e9 * gpu.link_efficiency
    inter = gpu.inter_gbs * 1e9 * gpu.inter_efficiency

    def link(spans: Ints, members: Ints | float) -> _GroupLink:
        leaves = spans > plans.local
        rate = np.where(leaves, np.minimum(intra, inter * members**gpu.rail_use), intra)
        return _GroupLink(rate, np.where(leaves, gpu.inter_latency_s, gpu.intra_latency_s))

    data = np.maximum(1, plans.local // inner)
    return {
        "tp": link(plans.tp, plans.local),
        "cp": link(inner, np.maximum(1, plans.local // plans.tp)),
        "ep": link(inner * plans.ep, data),
        "dp": link(inner * plans.dp, data),
        "pp": link(inner * plans.pp * plans.dp, 1.0),
        # where the tied embedding's two copies meet
        "ends": link(inner * plans.pp * plans.dp, 1.0),
    }


def _ring(link: _GroupLink, size: Ints, volume: Floats) -> Floats:
    """Reduce-scatter or all-gather of `volume` bytes over `size` ranks: (size-1)/size of them over the link, and a
    latency that grows with the ranks' logarithm (NCCL's trees; one latency for two ranks); nothing for a group of
    one."""
    hops = (1 + np.log2(np.maximum(size, 2))) / 2
    return np.where(size > 1, volume * (size - 1) / (size * link.rate) + link.latency * hops, 0.0)


def _at_least(gpu_s: Floats, host_s: Floats) -> Floats:
    """Smooth maximum: GPU and host work overlap, except for a part where both take about as long."""
    return np.asarray((gpu_s**_SMOOTH + host_s**_SMOOTH) ** (1 / _SMOOTH))


def step_time(model: ModelSpec, gpu: GpuFigures, plans: PlanArrays) -> StepTime:
    """Step time of each plan.

    Whole (1F1B, Narayanan et al. SC'21 section 2.2): m * (L/p layers + logits + p2p) + (p-1)/v * (L/p layers + p2p)
    + dp + optimizer + fixed.
    - GEMM (M, N, K): 2MNK / (e * peak) plus its operands once over memory bandwidth plus kernel_s, so efficiency rises
      with every one of M, N and K; element-wise work and unfused scores by memory bandwidth. A pass through a layer
      takes at least launch_s (the host's time for its kernels). Backward is twice forward; full recompute adds a
      forward, selective (Korthikanti et al. 2022) the attention core alone.
      Widths that are no multiple of 8, and heads between two kernels' widths, take longer (alignment.py).
    - Attention core: 4*T*s*a*head_dim FLOPs forward; fused and causal, half of them, and 2.5 times that backward
      (FlashAttention-2, Dao 2023).
    - tp: 2 all-reduces of 2*T*h bytes a layer forward and 2 backward, +2 with full recompute (Shoeybi et al. 2019;
      sequence parallel turns each into reduce-scatter + all-gather of the same volume).
    - Multi-head latent attention: down to the latent widths on every rank, up to its heads (DeepSeek-V2, 2024, section 2.1).
      Multi-token prediction: one more layer and logits on the last stage (DeepSeek-V3, 2024, section 2.2).
    - cp: keys and values pass round the ring once forward and twice backward (Ring Attention, Liu et al. 2023), hidden
      behind the attention core as far as that lasts.
    - ep: 2 all-to-alls of the routed tokens forward and 2 backward (GShard, Lepikhin et al. 2020).
    - pp: 2*T*h bytes to and from the next stage, v times (/t with sequence parallel).
    - dp: fp32 gradients reduce-scattered and bf16 weights all-gathered (distributed optimizer), else fp32 gradients
      all-reduced; less the part that the last micro-batch's backward pass hides (gpu.overlap). ZeRO-3: every
      micro-batch gathers the weights twice and reduce-scatters once (Rajbhandari et al. 2020), hidden behind compute
      up to gpu.zero3_overlap of it.
    - optimizer: bytes that Adam moves, at memory bandwidth, and optimizer_s a layer. fixed: fixed_s, and waiting for the
      slowest of n nodes, jitter * log2(n) of the step. A micro-batch costs micro_s more, and adds up its gradients.
    """
    return step_parts(dims(model), gpu, plans)


def step_parts(model: Dims, gpu: GpuFigures, plans: PlanArrays) -> StepTime:
    """`step_time` of one model, or of one model, GPU type and plan a row: then every field of `model` and the fields
    of `gpu` may be arrays of shape (N,).

    One long function on purpose: it follows the list in `step_time` term by term, and the terms share most symbols."""
    h, f, layers, vocab = model.hidden, model.ffn, model.layers, model.vocab
    t, p, d, c, v = plans.tp, plans.pp, plans.dp, plans.cp, plans.vpp
    m = plans.micro_batches.astype(np.float64)
    tokens = plans.micro_batch * model.seq / c
    per_stage = np.ceil(layers / p)
    fewer = per_stage - layers_at_ends(layers, p, model.mtp)[1]  # layers that the last stage has less than the others
    links = _links(gpu, plans)

    operand, weight_bytes = _OPERAND_BYTES[plans.precision], _WEIGHT_BYTES[plans.precision]
    gradient_bytes = _GRADIENT_BYTES[plans.precision]
    precision_rate = np.select(
        [plans.precision == PRECISION.index("fp8"), plans.precision == PRECISION.index("fp32")],
        [gpu.fp8_speedup, gpu.fp32_speed],
        1.0,
    )
    half_rate = gpu.peak_tflops * 1e12 * gpu.gemm_efficiency
    flops_rate = half_rate * precision_rate
    memory_rate = gpu.bandwidth_gbs * 1e9 * gpu.bandwidth_efficiency
    # scores of long sequences fit no memory: those are only ever trained with fused attention
    fused = gpu.flash & ~not_fused(model, plans.zero_stage)
    unfused = np.where(fused, gpu.unfused, 1.0) * np.minimum(1.0, (_LONGEST_UNFUSED / model.seq) ** 2)
    # without sequence parallel the norms and residuals are repeated on every tensor rank
    spread = np.where(plans.sequence_parallel, t, 1)

    def gemm(rows: Floats, columns: Floats, inner: Floats, slowdown: Floats | float = 1.0) -> Floats:
        moved = rows * columns + rows * inner + columns * inner
        flops_s = slowdown * 2 * rows * columns * inner / flops_rate
        return np.asarray(flops_s + gpu.gemm_traffic * operand * moved / memory_rate + gpu.kernel_s)

    # one layer, forward
    of_heads, of_dense, of_mlp, of_shared = gemm_slowdowns(model, gpu, t, operand)
    projections = gemm(tokens, (model.query + 2 * model.kv) / t, h, of_heads)
    projections = projections + gemm(tokens, h, model.query / t, of_heads)
    if np.any(
        model.kv_lora > 0
    ):  # every tensor rank goes down to the latent widths itself, with its part of the sequence
        below, width = np.where(model.q_lora > 0, model.q_lora, h), model.query / model.heads - model.rope
        down = gemm(tokens / spread, model.q_lora + model.kv_lora + model.rope, h)
        up = gemm(tokens, model.query / t, below) + gemm(tokens, (model.heads * width + model.value) / t, model.kv_lora)
        latent = down + up + gemm(tokens, h, model.value / t)
        projections = np.where(model.kv_lora > 0, latent, projections)
    wide = model.dense_ffn
    mlp = gemm(tokens, (model.gates - 1) * wide / t, h, of_dense) + gemm(tokens, h, wide / t, of_dense)
    if np.any(model.moe_share > 0):
        local_experts = np.maximum(1.0, model.experts / plans.ep)
        routed = tokens * model.top_k / local_experts
        expert = local_experts * (gemm(routed, (model.gates - 1) * f / t, h, of_mlp) + gemm(routed, h, f / t, of_mlp))
        shared = model.shared_ffn
        both = gemm(tokens, (model.gates - 1) * shared / t, h, of_shared) + gemm(tokens, h, shared / t, of_shared)
        beside = np.where(shared > 0, both, 0)
        mlp = (1 - model.moe_share) * mlp + model.moe_share * (expert + beside)
        wide = (1 - model.moe_share) * wide + model.moe_share * (f * model.top_k + shared)
    # a causal mask skips half of the scores, unless they are computed in full
    masked = 1 - 0.5 * model.causal * (1 - np.minimum(unfused, 1.0))
    in_full = np.minimum(unfused, 1.0)
    head = gemm_slowdown(
        model.query / model.heads, _OPERAND_BYTES[0], gpu
    )  # the core's operands are half precision under fp8
    slowdown = in_full * head + (1 - in_full) * fused_slowdown(model)
    core_flops = (
        slowdown
        * masked
        * tokens
        * 2
        * model.seq
        * (model.query + model.value)
        / t
        / (half_rate * gpu.attention_efficiency)
    )
    # unfused: the softmax, its mask and dropout read or write the scores five times in 2 bytes
    core = core_flops + unfused * 10 * tokens * model.seq * model.heads / t / memory_rate + gpu.kernel_s
    core_backward = core * (2 + 0.5 * (1 - np.minimum(unfused, 1.0)))
    # two norms (read, write), two dropout-residuals (read two, write one); bias, gelu or gate; rotary and biases of q,
    # k, v
    outer = tokens * weight_bytes * h * (2 * 2 + 2 * 3) / spread
    inner = tokens * weight_bytes * (2 * wide * (model.gates - 1) + 2 * (model.query + 2 * model.kv)) / t
    rest = projections + mlp + (outer + inner) / memory_rate

    # communication inside a layer, one pass
    boundary = tokens * weight_bytes * h
    tp_pass = 4 * _ring(links["tp"], t, boundary)
    routed_bytes = boundary * model.top_k / np.where(plans.sequence_parallel, t, 1)
    ep_pass = model.moe_share * 2 * _ring(links["ep"], plans.ep, routed_bytes)
    ring = 2 * _ring(links["cp"], c, c * tokens * weight_bytes * model.kv / t)
    cp_forward, cp_backward = np.maximum(0.0, ring - core), np.maximum(0.0, 2 * ring - core_backward)
    tp_pass = tp_pass + ep_pass

    host = gpu.launch_s + np.where(t > 1, gpu.tp_launch_s, 0.0)
    forward = _at_least(rest + core + tp_pass, host)
    backward = _at_least(2 * rest + core_backward + tp_pass, host)
    full, selective = plans.recompute == 2, plans.recompute == 1
    again = np.where(full, forward, np.where(selective, core, 0.0))
    tp_layer = (2 + full) * tp_pass
    layer = forward + backward + again - tp_layer
    tp_layer = tp_layer + (1 + full) * cp_forward + cp_backward

    # output layer and loss on the last stage: the GEMM forward and twice backward, logits in fp32 read and written
    # thrice
    logits = 3 * gemm(tokens, vocab / t, h) + 3 * 8 * tokens * vocab / t / memory_rate
    tp_logits = 2 * _ring(links["tp"], t, boundary)
    if np.any(
        model.mtp > 0
    ):  # the last stage's further layers, each behind a projection of two hidden states and before logits
        further = layer + logits + 3 * gemm(tokens, h / t, 2 * h)
        logits, tp_logits = logits + model.mtp * further, tp_logits + model.mtp * (tp_layer + tp_logits)
    # the activation forward and its gradient backward
    p2p = np.where(
        p > 1, 2 * v * (boundary / spread / (links["pp"].rate * gpu.pp_efficiency) + links["pp"].latency), 0.0
    )

    # what every tensor rank holds whole (down to the latent widths) is reduced and updated whole
    split = model.dense_parameters - model.replicated_parameters
    dense = per_stage * (split / t + model.replicated_parameters) + model.embedding_parameters / t
    experts = per_stage * model.expert_parameters / t / plans.ep
    shard = dense + experts
    sharded = plans.zero_stage >= 1
    everything = plans.zero_stage >= 3
    # gradients are added to those of earlier micro-batches: read and written
    accumulate = 2 * gradient_bytes * shard / memory_rate
    work = per_stage * layer + accumulate + gpu.micro_s

    leaves, members = t * c * d > plans.local, plans.local // (t * c)
    partial = np.where((members > 1) & (members < plans.local), gpu.dp_partial_efficiency, 1.0)
    beyond = np.where(leaves, gpu.dp_inter_efficiency * partial, 1.0)
    dp_rate = _GroupLink(links["dp"].rate * gpu.dp_efficiency * beyond, links["dp"].latency)
    reduce = _ring(dp_rate, d * c, gradient_bytes * shard)
    gather = _ring(dp_rate, d * c, np.where(sharded, weight_bytes, gradient_bytes) * shard)
    hidden = gpu.overlap * per_stage * backward
    once = np.maximum(0.0, reduce + gather - hidden)
    per_layer = 2 * _ring(dp_rate, d * c, weight_bytes * shard / per_stage)
    per_layer = per_stage * (per_layer + _ring(dp_rate, d * c, weight_bytes * shard / per_stage))
    each = np.maximum(0.0, per_layer - gpu.zero3_overlap * per_stage * layer)
    # both copies of a tied embedding add their gradients
    ends = np.where(
        (p > 1) & (model.head_parameters == 0) & (d > 0),
        2 * _ring(links["ends"], np.full_like(p, 2), gradient_bytes * model.embedding_parameters / t),
        0.0,
    )
    optimizer = _OPTIMIZER_BYTES * shard / np.where(sharded, d * c, 1) / memory_rate + gpu.optimizer_s * per_stage
    stage = work + per_stage * tp_layer + p2p
    nodes = t * p * d * c / plans.local
    parts = StepTime(
        # the last stage has the logits, and fewer layers where the layout is uneven
        compute=m * (work + np.maximum(0.0, logits - fewer * layer)),
        bubble=(p - 1) * stage / v,
        tp=m * (per_stage * tp_layer + np.maximum(0.0, tp_logits - fewer * tp_layer)),
        pp=m * p2p + ends,
        dp=np.where(everything, m * each, once),
        optimizer=optimizer,
        fixed=np.broadcast_to(np.asarray(gpu.fixed_s, dtype=np.float64), m.shape),
    )
    # the slowest of many nodes sets the pace
    waiting = gpu.jitter * np.log2(np.maximum(nodes, 1.0)) * parts.total
    return StepTime(**{**vars(parts), "fixed": parts.fixed + waiting})
