"""Step time of transformer plans and where it goes, for whole arrays of plans at once.

Symbols: b sequences of s tokens a micro-batch, T = s*b/c, h hidden, f ffn, a heads, L layers, V vocabulary; t, p, d, c, e
the tensor-, pipeline-, data-, context- and expert-parallel degrees; v virtual stages; m micro-batches. All times are
seconds, all arrays have shape (N,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from synergy_core.records import ModelSpec

from synergyd.jobmodel.model.arrays import Floats, Ints, PlanArrays
from synergyd.jobmodel.model.dims import Dims, dims
from synergyd.jobmodel.model.exchange_time import exchange_s
from synergyd.jobmodel.model.group_links import GroupLink, group_links, ring, ring_hops_s
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.layer_time import WEIGHT_BYTES, Kernels, LayerTime, kernels, layer_time
from synergyd.jobmodel.model.stages import layers_at_ends

# Bytes of Adam with fp32 master weights: read gradient, master, two moments; write master, two moments and the bf16
# copy.
_OPTIMIZER_BYTES = 4 * 4 + 3 * 4 + 2
# Parameters that Megatron-Core reduces together, at least, and for each rank (distributed_data_parallel.py, core_v0.12: the larger).
_BUCKET, _BUCKET_OF_A_RANK = 4e7, 1e6
# Gradients on links by precision: Megatron accumulates and reduces in fp32 when it trains in bf16.
_GRADIENT_BYTES = np.array([4.0, 2.0, 4.0, 4.0])


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
        """Return plan `i`'s parts by name, seconds."""
        return {name: float(value[i]) for name, value in vars(self).items()}


def step_time(model: ModelSpec, gpu: GpuFigures, plans: PlanArrays) -> StepTime:
    """Return the step time of each plan.

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
      behind the attention core as far as that lasts; or all-to-alls swap tokens for heads before the core and back behind it,
      forward and backward, and nothing hides them (DeepSpeed-Ulysses, Jacobs et al. 2023, section 3).
    - ep: 2 all-to-alls of the routed tokens forward and 2 backward (GShard, Lepikhin et al. 2020).
    - pp: 2*T*h bytes to and from the next stage, v times (/t with sequence parallel).
    - dp: fp32 gradients reduce-scattered and bf16 weights all-gathered (distributed optimizer), else fp32 gradients
      all-reduced; less the part that the last micro-batch's backward pass hides (gpu.overlap). ZeRO-3: every
      micro-batch gathers the weights twice and reduce-scatters once (Rajbhandari et al. 2020), hidden behind compute
      up to gpu.zero3_overlap of it. Where the optimizer is shared out, NCCL's rings take a hop at each rank for each bucket of
      gradients, and dp_rank_s for each further rank of the group.
      Shared out over fewer ranks than all: reduce-scattered and gathered among these, and all-reduced with the other groups'
      ranks that hold the same (MiCS, Zhang et al. 2022, section 3; PyTorch's HSDP). Experts' parameters by themselves among the
      d * c / e ranks that hold the same ones (Megatron-Core's expert data-parallel group, parallel_state.py).
      Less communication: exchange_time.py.
    - optimizer: bytes that Adam moves, at memory bandwidth, and optimizer_s a layer. fixed: fixed_s, and waiting for the
      slowest of n nodes, jitter * log2(n) of the step. A micro-batch costs micro_s more. Adding its gradients
      to the earlier ones' is part of their GEMMs (Megatron-LM's gradient_accumulation_fusion): a term of its own makes clusters
      never seen worse (tests.benchmarks.unseen_clusters: 13.8 % instead of 13.1).
    """
    return step_parts(dims(model), gpu, plans)


def step_parts(model: Dims, gpu: GpuFigures, plans: PlanArrays) -> StepTime:
    """Return `step_time` of one model, or of one model, GPU type and plan a row.

    In the second case every field of `model` and the fields of `gpu` may be arrays of shape (N,).
    """
    return passes(model, gpu, plans).step(plans)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The parts of plans' steps that no global batch changes, seconds, (N,) each, worked out once where several batches are compared."""

    model: Dims
    at: Kernels
    work: Floats  # a micro-batch on a stage that is none of the ends
    tp: Floats
    p2p: Floats
    last_work: Floats  # additional work of the last stage
    last_tp: Floats
    ends: Floats  # a step
    data: _DataParallel
    optimizer: Floats
    nodes: Floats

    def step(self, plans: PlanArrays) -> StepTime:
        """Return the steps of `plans`, which differ from those of this template only in their batches."""
        gpu, m = self.at.gpu, plans.micro_batches.astype(np.float64)
        parts = StepTime(
            compute=m * (self.work + self.last_work),
            bubble=(plans.pp - 1) * (self.work + self.tp + self.p2p) / plans.vpp,
            tp=m * (self.tp + self.last_tp),
            pp=m * self.p2p + self.ends,
            dp=np.where(plans.zero_stage >= 3, m * self.data.each, self.data.seconds_per_step(plans)),
            optimizer=self.optimizer,
            fixed=np.broadcast_to(np.asarray(gpu.fixed_s, dtype=np.float64), m.shape),
        )
        # the slowest of many nodes sets the pace
        waiting = gpu.jitter * np.log2(np.maximum(self.nodes, 1.0)) * parts.total
        return StepTime(**{**vars(parts), "fixed": parts.fixed + waiting})


def passes(model: Dims, gpu: GpuFigures, plans: PlanArrays) -> Passes:
    """Return what the steps of `plans` are made of, whatever their batches."""
    t, p, d, c, v = plans.tp, plans.pp, plans.dp, plans.cp, plans.vpp
    tokens = plans.micro_batch * model.seq / c
    per_stage = np.ceil(model.layers / p)
    # layers that the last stage has less than the others
    fewer = per_stage - layers_at_ends(model.layers, p, model.mtp)[1]
    links, at = group_links(gpu, plans), kernels(gpu, plans)
    layer = layer_time(model, at, plans, links, tokens)
    logits, tp_logits = _last_stage(model, at, plans, links["tp"], tokens, layer)
    # the activation forward and its gradient backward
    hop = layer.boundary / layer.spread / (links["pp"].rate * gpu.pp_efficiency) + links["pp"].latency

    # parameters that every tensor rank holds whole (down to the latent widths) are reduced and updated whole
    split = model.dense_parameters - model.replicated_parameters
    dense = per_stage * (split / t + model.replicated_parameters) + model.embedding_parameters / t
    experts = per_stage * model.expert_parameters / t / plans.ep
    gradient_bytes = _GRADIENT_BYTES[plans.precision]
    # both copies of a tied embedding add their gradients
    tied = (p > 1) & (model.head_parameters == 0) & (d > 0)
    embedding_bytes = gradient_bytes * model.embedding_parameters / t
    ends = np.where(tied, 2 * ring(links["ends"], np.full_like(p, 2), embedding_bytes), 0.0)
    # experts' optimizer is shared out over the ranks that hold the same ones
    of_expert = np.maximum(plans.shard / plans.ep, 1)
    shared = plans.zero_stage >= 1
    updated = dense / np.where(shared, plans.shard, 1) + experts / np.where(shared, of_expert, 1)
    updated = gpu.optimizer_traffic * _OPTIMIZER_BYTES * updated
    return Passes(
        model=model,
        at=at,
        work=per_stage * layer.work + gpu.micro_s + gpu.accumulation_bytes * (dense + experts) / at.memory_rate,
        tp=per_stage * layer.tp,
        p2p=np.where(p > 1, 2 * v * hop, 0.0),
        # the last stage has the logits, and fewer layers where the layout is uneven
        last_work=np.maximum(0.0, logits - fewer * layer.work),
        last_tp=np.maximum(0.0, tp_logits - fewer * layer.tp),
        ends=ends,
        data=_data_parallel(at, plans, links, dense, experts, per_stage, layer),
        optimizer=updated / at.memory_rate + gpu.optimizer_s * per_stage,
        nodes=t * p * d * c / plans.local,
    )


def _last_stage(
    model: Dims, at: Kernels, plans: PlanArrays, link: GroupLink, tokens: Floats, layer: LayerTime
) -> tuple[Floats, Floats]:
    """Return (work, tensor traffic) that the last stage has besides its layers, a micro-batch.

    These are the output layer's GEMM forward and twice backward, the loss with logits in fp32 read and written thrice, and layers
    of multi-token prediction, each behind a projection of two hidden states and before logits.
    """
    h, t, vocab = model.hidden, plans.tp, model.vocab
    logits = 3 * at.gemm(tokens, vocab / t, h) + 3 * 8 * tokens * vocab / t / at.memory_rate
    tp_logits = 2 * ring(link, t, layer.boundary)
    if np.any(model.mtp > 0):
        further = layer.work + logits + 3 * at.gemm(tokens, h / t, 2 * h)
        logits, tp_logits = logits + model.mtp * further, tp_logits + model.mtp * (layer.tp + tp_logits)
    return logits, tp_logits


@dataclass(frozen=True, kw_only=True)
class _DataParallel:
    """Traffic of `shard` parameters that compute does not hide, seconds.

    `exact` is once a step below ZeRO-3, `each` is for each micro-batch with it. `hidden` of it is behind the backward pass.
    """

    shard: Floats
    gradient_bytes: Floats
    link: GroupLink
    ranks: Ints
    exact: Floats
    hidden: Floats
    shared_out: Floats
    each: Floats

    def seconds_per_step(self, plans: PlanArrays) -> Floats:
        """Return the seconds once a step, by what the replicas exchange."""
        less = exchange_s(
            plans,
            exact=self.exact,
            gradient_bytes=self.gradient_bytes,
            shard=self.shard,
            link=self.link,
            ranks=self.ranks,
            hidden=self.hidden,
        )
        return less + self.shared_out


def _data_parallel(
    at: Kernels,
    plans: PlanArrays,
    links: dict[str, GroupLink],
    dense: Floats,
    experts: Floats,
    per_stage: Floats,
    layer: LayerTime,
) -> _DataParallel:
    """Return the traffic of `dense` parameters and of `experts`, which fewer ranks replicate."""
    gpu, ranks, shard = at.gpu, plans.dp * plans.cp, dense + experts
    apart = (plans.ep > 1) & (experts > 0)
    some = bool(apart.any())
    common = np.where(apart, dense, shard) if some else shard
    once, per_layer = _traffic(gpu, plans, links, common, per_stage)
    if some:
        further = _traffic(gpu, plans, links, np.where(apart, experts, 0.0), per_stage, "expert_")
        once, per_layer = (a + np.where(apart, b, 0.0) for a, b in zip((once, per_layer), further, strict=True))
    hidden = gpu.overlap * per_stage * layer.backward
    each = np.maximum(0.0, per_layer - gpu.zero3_overlap * per_stage * layer.work)
    return _DataParallel(
        shard=shard,
        gradient_bytes=_GRADIENT_BYTES[plans.precision],
        link=_reached_link(gpu, plans, links, "dp", plans.local // (plans.tp * plans.cp)),
        ranks=ranks,
        exact=np.maximum(0.0, once - hidden),
        hidden=hidden,
        shared_out=gpu.dp_rank_s * np.where(plans.zero_stage >= 1, plans.shard - 1, 0),
        each=each,
    )


def _between_nodes(gpu: GpuFigures, plans: PlanArrays, members: Ints) -> Floats:
    """Return the share of their link that data-parallel groups with `members` ranks on a node reach."""
    partial = np.where((members > 1) & (members < plans.local), gpu.dp_partial_efficiency, 1.0)
    leaves = plans.tp * plans.cp * plans.dp > plans.local
    return np.asarray(np.where(leaves, gpu.dp_inter_efficiency * partial, 1.0))


def _reached_link(
    gpu: GpuFigures, plans: PlanArrays, links: dict[str, GroupLink], name: str, members: Ints
) -> GroupLink:
    return GroupLink(links[name].rate * gpu.dp_efficiency * _between_nodes(gpu, plans, members), links[name].latency)


def _traffic(
    gpu: GpuFigures,
    plans: PlanArrays,
    links: dict[str, GroupLink],
    parameters: Floats,
    per_stage: Floats,
    kind: str = "",
) -> tuple[Floats, Floats]:
    """Return the seconds of (gradients reduced and weights gathered once a step below ZeRO-3, the layers of a micro-batch with it).

    `kind` "expert_": among the ranks that hold the same experts.
    """
    gradient_bytes, weight_bytes = _GRADIENT_BYTES[plans.precision], WEIGHT_BYTES[plans.precision]
    inner, total, ep = plans.tp * plans.cp, plans.dp * plans.cp, plans.ep if kind else 1
    ranks, shard = np.maximum(1, total // ep), np.maximum(1, plans.shard // ep)
    members = plans.local // (plans.tp * ep if kind else inner)
    reached = _reached_link(gpu, plans, links, f"{kind}dp", members)
    reduce = ring(reached, ranks, gradient_bytes * parameters)
    gather = ring(reached, ranks, np.where(plans.zero_stage >= 1, weight_bytes, gradient_bytes) * parameters)
    smaller = (plans.shard < total) & (plans.zero_stage >= 1)
    among, others = links.get(f"{kind}shard", reached), links.get(f"{kind}replicas", reached)
    efficiency = gpu.dp_efficiency * _between_nodes(gpu, plans, members)

    def in_shard_groups(volume: Floats) -> tuple[Floats, Floats]:
        """Return the seconds of (collective inside a group, all-reduce between groups).

        The first is a reduce-scatter or all-gather of `volume` bytes; the second is of what each rank then has, with the other
        groups.
        """
        inside = plans.tp * plans.shard <= plans.local
        near = GroupLink(among.rate * np.where(inside, 1.0, efficiency), among.latency)
        far = GroupLink(others.rate * efficiency, others.latency)
        return ring(near, shard, volume), 2 * ring(far, total // plans.shard, volume / shard)

    if smaller.any():
        scattered, added = in_shard_groups(gradient_bytes * parameters)
        gather_in, _ = in_shard_groups(weight_bytes * parameters)
        reduce, gather = np.where(smaller, scattered + added, reduce), np.where(smaller, gather_in, gather)
    # the more ranks share the optimizer, the more hops has each bucket's reduce-scatter and all-gather; they need no bandwidth, so
    # overlapped ones are hidden
    buckets = np.ceil(parameters / np.maximum(_BUCKET, _BUCKET_OF_A_RANK * shard))
    hops = 2 * buckets * ring_hops_s(shard, np.minimum(shard, plans.tp * plans.shard / plans.local))
    gather = gather + np.where(plans.zero_stage >= 1, (1 - gpu.overlap) * hops, 0.0)
    if not np.any(plans.zero_stage >= 3):
        return reduce + gather, np.zeros_like(reduce)
    three = _reached_link(gpu, plans, links, f"{kind}zero3", members)
    nodes = inner * plans.dp / plans.local
    nodes = np.minimum(nodes, ranks) if kind else nodes
    layer_bytes = weight_bytes * parameters / per_stage
    per_layer = per_stage * 3 * (ring(three, ranks, layer_bytes) + ring_hops_s(ranks, nodes))
    if smaller.any():
        one, added = in_shard_groups(layer_bytes)
        nodes = plans.tp * plans.shard / plans.local
        hops = ring_hops_s(shard, np.minimum(nodes, shard) if kind else nodes)
        per_layer = np.where(smaller, per_stage * (3 * (one + hops) + added), per_layer)
    return reduce + gather, per_layer
