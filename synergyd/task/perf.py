"""Step time of transformer plans and where it goes, for whole arrays of plans at once.

Symbols: b sequences of s tokens a micro-batch, T = s*b, h hidden, f ffn, a heads, k = kv_heads/heads, L layers, V
vocabulary; t, p, d the tensor-, pipeline- and data-parallel degrees; m micro-batches. All times are seconds, all
arrays have shape (N,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synergyd.records import ModelSpec
from synergyd.task.arrays import Floats, Ints, PlanArrays
from synergyd.task.hardware import GpuFigures
from synergyd.task.model_spec import embedding_parameters, layer_parameters

# Bytes of Adam with fp32 master weights: read gradient, master, two moments; write master, two moments and the bf16
# copy.
_OPTIMIZER_BYTES = 4 * 4 + 3 * 4 + 2
_GRADIENT_BYTES = 4  # Megatron accumulates and reduces in fp32 when it trains in bf16
_WEIGHT_BYTES = 2


@dataclass(frozen=True)
class StepTime:
    """Parts of one step, seconds, (N,) each; `total` is their sum."""

    compute: Floats
    bubble: Floats
    tp: Floats
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
class _Links:
    """Bandwidth (bytes/s) and latency (s) of the three groups' links."""

    tp_rate: Floats
    tp_latency: Floats
    pp_rate: Floats
    pp_latency: Floats
    dp_rate: Floats
    dp_latency: Floats


def _links(gpu: GpuFigures, plans: PlanArrays) -> _Links:
    """Two link classes: a group whose ranks span more GPUs than a node gives it goes over the network.

    Megatron's rank order is tp, dp, pp from inside out, so tp groups span t ranks, dp groups t*d and a pipeline the
    whole job. A collective's ring enters a node once per network port that its members there own, so a group with n
    members on a node has min(in-node rate, n * inter_gbs) (NCCL uses one channel per port).
    """
    gpus = plans.tp * plans.pp * plans.dp
    intra = gpu.intra_gbs * 1e9 * gpu.link_efficiency
    inter = gpu.inter_gbs * 1e9 * gpu.link_efficiency

    def link(spans: Ints, members: Ints | float) -> tuple[Floats, Floats]:
        leaves = spans > plans.local
        rate = np.where(leaves, np.minimum(intra, inter * members), intra)
        return rate, np.where(leaves, gpu.inter_latency_s, gpu.intra_latency_s)

    tp_rate, tp_latency = link(plans.tp, plans.local)
    pp_rate, pp_latency = link(gpus, 1.0)
    dp_rate, dp_latency = link(plans.tp * plans.dp, np.maximum(1, plans.local // plans.tp))
    return _Links(tp_rate, tp_latency, pp_rate, pp_latency, dp_rate, dp_latency)


def _ring(rate: Floats, latency: Floats, size: Ints, volume: Floats) -> Floats:
    """Reduce-scatter or all-gather of `volume` bytes over `size` ranks: (size-1)/size of them over the link, and one
    latency per doubling (NCCL's trees); nothing for a group of one."""
    several = size > 1
    return np.where(several, volume * (size - 1) / (size * rate) + latency * np.ceil(np.log2(np.maximum(size, 2))), 0.0)


def step_time(model: ModelSpec, gpu: GpuFigures, plans: PlanArrays) -> StepTime:
    """Step time of each plan.

    Whole (1F1B, Narayanan et al. SC'21 section 2.2): m * (L/p layers + logits + p2p) + (p-1) * (L/p layers + p2p)
    + dp + optimizer + fixed.
    - GEMM of x FLOPs: (x + x0) / (e * peak), the same as efficiency e*x/(x+x0) with x0 = kernel_s * e * peak;
      element-wise work and unfused scores by memory bandwidth; a pass through a layer takes at least launch_s.
      Backward is twice forward; full recompute adds a forward, selective (Korthikanti et al. 2022) the attention core
      alone.
    - tp: 2 all-reduces of 2*T*h bytes a layer forward and 2 backward, +2 with full recompute (Shoeybi et al. 2019;
      sequence parallel turns each into reduce-scatter + all-gather of the same volume).
    - pp: 2*T*h bytes to and from the next stage (/t with sequence parallel).
    - dp: fp32 gradients reduce-scattered and bf16 weights all-gathered (distributed optimizer), else fp32 gradients
      all-reduced; less the part that the last micro-batch's backward pass hides (gpu.overlap).
    - optimizer: bytes that Adam moves, at memory bandwidth.
    """
    s, h, f, layers, vocab = model.seq, model.hidden, model.ffn, model.layers, model.vocab
    k = model.kv_heads / model.heads
    gates = 3 if model.gated else 2
    t, p, d = plans.tp, plans.pp, plans.dp
    m = plans.micro_batches.astype(np.float64)
    tokens = (plans.micro_batch * s).astype(np.float64)
    per_stage = layers / p
    links = _links(gpu, plans)

    flops_rate = gpu.peak_tflops * 1e12 * gpu.gemm_efficiency
    memory_rate = gpu.bandwidth_gbs * 1e9 * gpu.bandwidth_efficiency
    # without sequence parallel the norms and residuals are repeated on every tensor rank
    spread = np.where(plans.sequence_parallel, t, 1)

    # one layer, forward
    gemm = tokens * (4 * h * h * (1 + k) + 2 * gates * h * f) / t / flops_rate + 4 * gpu.kernel_s
    if gpu.flash:
        # a causal mask skips half of the scores
        core = tokens * 2 * s * h / t / (flops_rate * gpu.attention_efficiency) + gpu.kernel_s
    else:
        # full scores: two batched GEMMs; the softmax, its mask and dropout read or write them five times in 2 bytes
        scores = tokens * s * model.heads / t
        core = (
            tokens * 4 * s * h / t / (flops_rate * gpu.attention_efficiency)
            + 10 * scores / memory_rate
            + 2 * gpu.kernel_s
        )
    # two norms (read, write), two dropout-residuals (read two, write one); bias, gelu or gate; rotary and biases of q,
    # k, v
    outer = tokens * 2 * h * (2 * 2 + 2 * 3) / spread
    inner = tokens * 2 * (2 * f * (gates - 1) + 2 * h * (1 + 2 * k)) / t
    elementwise = (outer + inner) / memory_rate
    forward = np.maximum(gemm + core + elementwise, gpu.launch_s)
    backward = np.maximum(2 * (gemm + core + elementwise), gpu.launch_s)
    again = np.where(plans.recompute == 2, forward, np.where(plans.recompute == 1, core, 0.0))
    layer = forward + backward + again

    # output layer and loss on the last stage: the GEMM forward and twice backward, logits in fp32 read and written
    # thrice
    logits = 3 * (tokens * 2 * vocab * h / t / flops_rate + gpu.kernel_s) + 3 * 8 * tokens * vocab / t / memory_rate

    boundary = 2 * tokens * h
    collectives = np.where(plans.recompute == 2, 6, 4)
    tp_layer = collectives * 2 * _ring(links.tp_rate, links.tp_latency, t, boundary)
    tp_logits = 2 * _ring(links.tp_rate, links.tp_latency, t, boundary)
    # the activation forward and its gradient backward
    p2p = np.where(p > 1, 2 * (boundary / spread / links.pp_rate + links.pp_latency), 0.0)

    stage = per_stage * (layer + tp_layer) + p2p
    shard = (per_stage * layer_parameters(model) + embedding_parameters(model)) / t
    gradient, weight = _GRADIENT_BYTES * shard, _WEIGHT_BYTES * shard
    reduce = _ring(links.dp_rate, links.dp_latency, d, gradient)
    gather = _ring(links.dp_rate, links.dp_latency, d, np.where(plans.distributed_optimizer, weight, gradient))
    hidden = gpu.overlap * per_stage * backward
    optimizer = _OPTIMIZER_BYTES * shard / np.where(plans.distributed_optimizer, d, 1) / memory_rate
    return StepTime(
        compute=m * (per_stage * layer + logits),
        bubble=(p - 1) * stage,
        tp=m * (per_stage * tp_layer + tp_logits),
        pp=m * p2p,
        dp=np.maximum(0.0, reduce + gather - hidden),
        optimizer=optimizer,
        fixed=np.full(len(plans), gpu.fixed_s),
    )
