"""All valid plans of a transformer on given shapes, as arrays, filtered by memory.

The plans left out are never better than those that stay (dominance):
- tensor parallelism without sequence parallelism: the same volume over the links, more memory, more element-wise work;
- more recompute than memory asks for: the same step with work added; unless the plan with less may run out of memory;
- an optimizer not shared out (ZeRO-0) beside one that is: no less volume, more memory, more work for each rank;
- context parallelism with an even micro-batch beside half of both with twice the replicas: the same tokens in the same
  GEMMs, and the keys and values stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from synergy_core.pipeline_stages import can_hold_virtual_stages, stage_layers
from synergy_core.records import ModelSpec, Plan, Shape

from synergyd.jobmodel.memory_belief import CERTAIN, MemoryBelief
from synergyd.jobmodel.model.arrays import ALL_TO_ALL, PRECISION, Floats, Ints, PlanArrays
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.plan_limits import (
    LEAVES_NODE,
    NOT_BATCH,
    NOT_GPUS,
    NOT_INTERLEAVED,
    TOO_BIG,
    PlanLimits,
    context_degrees,
    divisors,
    expert_degrees,
    micro_batches,
    pipeline_degrees,
    tensor_degrees,
)
from synergyd.jobmodel.recompute_choice import (
    Choices,
    choices,
    least_recompute,
    other_ways,
    with_fewer_layers,
    with_more,
)


@dataclass(frozen=True, kw_only=True)
class CandidatePlans:
    """Plans that fit.

    `shape[i]` is plan i's index in the shapes asked for, `memory[i]` its peak in bytes, `risk[i]` the probability that it runs out
    of memory. `smallest[i]` is the least batch in the range that plan i's degrees allow; its own is the largest. `ruled_out` counts
    choices by reason. `closest` is the smallest peak of those that did not fit: (bytes, parts by name, plan).
    """

    plans: PlanArrays
    shape: Ints
    memory: Floats
    risk: Floats
    smallest: Ints
    ruled_out: Counter[str] = field(default_factory=Counter)
    closest: tuple[float, dict[str, float], Plan] | None = None

    def take(self, index: Ints) -> CandidatePlans:
        """Return the candidates at `index`."""
        return replace(
            self,
            plans=self.plans.take(index),
            shape=self.shape[index],
            memory=self.memory[index],
            risk=self.risk[index],
            smallest=self.smallest[index],
        )


def unit(plans: PlanArrays, batch_unit: int = 1) -> Ints:
    """Return the number that each plan's global batch must be a multiple of, (N,).

    It is dp * micro-batch, times pp with virtual stages, and a multiple of `batch_unit` too.
    """
    own = plans.dp * plans.micro_batch * np.where(plans.vpp > 1, plans.pp, 1)
    return own if batch_unit == 1 else np.lcm(own, batch_unit)


def enumerate_plans(
    model: ModelSpec,
    gpu: GpuFigures,
    shapes: Sequence[Shape],
    limits: PlanLimits,
    belief: MemoryBelief = CERTAIN,
) -> CandidatePlans:
    """Return all (tp, pp, vpp, cp, ep, dp, ZeRO stage, precision, micro-batch) on each of `shapes` that fit `gpu`.

    Each has the least recompute that makes it fit and the largest batch of the range that it allows. A plan appears again where a
    smaller batch takes less recompute (a pipeline with fewer micro-batches than stages), or more recompute lowers the risk by
    `belief`. tp stays inside the node; where that leaves a shape with no plan at all, tp over whole nodes is tried. ZeRO stages 2
    and 3 are tried only without a pipeline, as in DeepSpeed. Sorted by shape, then tp, pp, cp.
    """
    inside = _search(model, gpu, shapes, limits, belief, leave_node=False)
    plenty = np.bincount(inside.shape, minlength=len(shapes))
    missing = [i for i in range(len(shapes)) if shapes[i].nodes > 1 and not plenty[i]]
    if not missing or (limits.tp is not None and all(limits.tp <= shapes[i].gpus_per_node for i in missing)):
        return inside
    outside = _search(model, gpu, [shapes[i] for i in missing], limits, belief, leave_node=True)
    if not len(outside.plans):
        return replace(inside, closest=inside.closest or outside.closest)
    ruled_out = inside.ruled_out + outside.ruled_out
    # those were tried after all
    del ruled_out[LEAVES_NODE]
    return CandidatePlans(
        plans=join_plans([inside.plans, outside.plans]),
        shape=np.concatenate([inside.shape, np.array(missing, dtype=np.int64)[outside.shape]]),
        memory=np.concatenate([inside.memory, outside.memory]),
        risk=np.concatenate([inside.risk, outside.risk]),
        smallest=np.concatenate([inside.smallest, outside.smallest]),
        ruled_out=ruled_out,
        closest=inside.closest or outside.closest,
    )


def join_plans(parts: Sequence[PlanArrays]) -> PlanArrays:
    """Return the plans of all `parts`, in their order."""
    names = [name for name, value in vars(parts[0]).items() if value is not None]
    return PlanArrays(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


def _search(
    model: ModelSpec,
    gpu: GpuFigures,
    shapes: Sequence[Shape],
    limits: PlanLimits,
    belief: MemoryBelief,
    leave_node: bool,
) -> CandidatePlans:
    ruled_out: Counter[str] = Counter()
    plans, shape = _degrees(model, shapes, limits, leave_node, ruled_out)
    plans, shape, smallest = _with_batches(plans, shape, limits, ruled_out)
    limit = belief.limit(gpu)
    kinds = choices(model, gpu, plans, limits)
    fitted, memory, kind_numbers = least_recompute(model, gpu, plans, limit, kinds)
    rows: Ints = np.flatnonzero(fitted)
    closest = None
    if len(rows) < len(plans):
        over: Ints = np.flatnonzero(~fitted)
        ruled_out[TOO_BIG] += len(over)
        least = int(over[np.argmin(memory[over])])
        leanest = kinds.apply_choice(plans.take(np.array([least])), kind_numbers[[least]])
        peak = float(memory[least] * belief.factor)
        closest = (peak, peak_memory(model, gpu, leanest).parts(0), leanest.plan(0))
    fitting, peaks = kinds.apply_choice(plans.take(rows), kind_numbers[rows]), memory[rows]
    fitting, peaks = with_fewer_layers(model, gpu, fitting, peaks, limit, kinds)
    groups = [(rows, fitting, peaks)]
    others = other_ways(model, gpu, fitting, kind_numbers[rows], limit, kinds)
    others += with_more(model, gpu, fitting, belief.risk(gpu, peaks), belief, kinds)
    groups += [(rows[at], some, peak) for at, some, peak in others]
    beaten = np.where(fitted, kind_numbers, kinds.nothing)
    small = _with_less(model, gpu, plans, smallest, limit, beaten, kinds, limits.batch_unit)
    groups += [small] if small is not None else []
    if len(groups) > 1:
        rows = np.concatenate([index for index, _, _ in groups])
        order = np.argsort(rows, kind="stable")
        fitting, rows = join_plans([some for _, some, _ in groups]).take(order), rows[order]
        peaks = np.concatenate([peak for _, _, peak in groups])[order]
    return CandidatePlans(
        plans=fitting,
        shape=shape[rows],
        memory=peaks * belief.factor,
        risk=belief.risk(gpu, peaks),
        smallest=smallest[rows],
        ruled_out=ruled_out,
        closest=closest,
    )


def _with_less(
    model: ModelSpec,
    gpu: GpuFigures,
    plans: PlanArrays,
    smallest: Ints,
    limit: float,
    beaten: Ints,
    kinds: Choices,
    batch_unit: int,
) -> tuple[Ints, PlanArrays, Floats] | None:
    """Return (index, plan, peak) of the plans that at their smallest batch fit with less recompute than `beaten`.

    Each is at the largest batch for which that holds. 1F1B holds one micro-batch more for each that it is given, up to pp; with
    virtual stages that ends before 2 pp. Without a pipeline memory is the same for any batch.
    """
    grows_to = np.where(plans.pp > 1, plans.pp * np.where(plans.vpp > 1, 2, 1), 1)
    index = np.flatnonzero(
        (smallest < plans.global_batch) & (smallest < plans.dp * plans.micro_batch * grows_to) & (beaten > 0)
    )
    if not len(index):
        return None
    few = replace(plans.take(index), global_batch=smallest[index])
    fitted, memory, kind_numbers = least_recompute(model, gpu, few, limit, kinds, below=beaten[index])
    index, memory = index[fitted], memory[fitted]
    few = kinds.apply_choice(few.take(fitted), kind_numbers[fitted])
    if not len(index):
        return None
    # between a multiple of the unit that fits and one that does not
    step = unit(few, batch_unit)
    good = few.global_batch // step
    most = np.minimum(plans.global_batch[index], few.dp * few.micro_batch * grows_to[index])
    bad = np.maximum(good + 1, most // step)
    while len(open_ := np.flatnonzero(bad - good > 1)):
        middle = (good[open_] + bad[open_]) // 2
        peak = peak_memory(model, gpu, replace(few.take(open_), global_batch=middle * step[open_])).total
        fits = peak <= limit
        good[open_], bad[open_] = np.where(fits, middle, good[open_]), np.where(fits, bad[open_], middle)
        memory[open_] = np.where(fits, peak, memory[open_])
    few = replace(few, global_batch=good * step)
    return (index, *with_fewer_layers(model, gpu, few, memory, limit, kinds))


def _degrees(
    model: ModelSpec, shapes: Sequence[Shape], limits: PlanLimits, leave_node: bool, ruled_out: Counter[str]
) -> tuple[PlanArrays, Ints]:
    """Return all (shape, tp, pp, cp, vpp, ep, ZeRO stage, precision) that divide, with micro-batch and batch still 1."""

    def ints(values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    tps = ints([limits.tp] if limits.tp else tensor_degrees(model))
    pps = ints([limits.pp] if limits.pp else pipeline_degrees(model, limits.uneven))
    cps = ints([limits.cp] if limits.cp else context_degrees(model))
    gpus, node = ints([s.gpus for s in shapes]), ints([s.gpus_per_node for s in shapes])
    grid = np.meshgrid(np.arange(len(shapes), dtype=np.int64), tps, pps, cps, indexing="ij")
    shape, tp, pp, cp = (axis.ravel() for axis in grid)
    replica_ranks = tp * pp * cp
    keep = (replica_ranks <= gpus[shape]) & (model.seq % (tp * cp) == 0)
    shape, tp, pp, cp, replica_ranks = shape[keep], tp[keep], pp[keep], cp[keep], replica_ranks[keep]
    divides = gpus[shape] % replica_ranks == 0
    # the second look, outside the node, is at the same degrees: they are counted once
    ruled_out[NOT_GPUS] += 0 if leave_node else int(np.count_nonzero(~divides))
    local = node[shape]
    in_node = local % tp == 0
    fine = (tp > local) & (tp % local == 0) if leave_node else in_node
    ruled_out[LEAVES_NODE] += int(np.count_nonzero(divides & ~in_node)) if not leave_node else 0
    keep = divides & fine
    shape, tp, pp, cp = shape[keep], tp[keep], pp[keep], cp[keep]
    dp = gpus[shape] // replica_ranks[keep]

    each = [p for p in (stage_layers(model.layers, int(p), model.mtp_layers) for p in pps) if p is not None]
    vpps = ints([limits.vpp] if limits.vpp else sorted({v for some in each for v in divisors(some.middle)}))
    eps = ints([limits.ep] if limits.ep else expert_degrees(model))
    zeros, precisions = ints(limits.zero_stages), ints([PRECISION.index(p) for p in limits.precisions])
    stages = np.unique(pp)
    # which vpp each pp allows, then looked up by each row
    fits = [[can_hold_virtual_stages(model.layers, int(p), int(v), model.mtp_layers) for v in vpps] for p in stages]
    allowed = np.array(fits, dtype=np.bool_).reshape(len(stages), len(vpps))
    allowed &= (stages[:, None] > 1) | (vpps[None, :] == 1)
    by_vpp = allowed[np.searchsorted(stages, pp)]
    by_ep = dp[:, None] % eps[None, :] == 0
    ranks = dp * cp
    # alone a rank has nothing to share out, so all stages are one
    by_zero = ((zeros[None, :] < 2) | (pp[:, None] == 1)) & ((ranks[:, None] > 1) | (zeros[None, :] == zeros.min()))
    free = by_vpp[:, :, None, None, None] & by_ep[:, None, :, None, None] & by_zero[:, None, None, :, None]
    free = np.broadcast_to(free, (*free.shape[:4], len(precisions)))
    row, which_vpp, which_ep, which_zero, which_precision = np.nonzero(free)
    tp, shape, ranks = tp[row], shape[row], ranks[row]
    if limits.groups > 1:
        groups = (ranks // eps[which_ep] % limits.groups == 0) & (zeros[which_zero] >= 1)
        ranks = np.where(groups, ranks // limits.groups, ranks)
    ones = np.ones_like(tp)
    plans = PlanArrays(
        tp=tp,
        pp=pp[row],
        dp=dp[row],
        micro_batch=ones,
        global_batch=ones,
        recompute=np.zeros_like(tp),
        recompute_layers=np.zeros_like(tp),
        modules=np.zeros_like(tp),
        local=node[shape],
        sequence_parallel=tp > 1,
        zero_stage=zeros[which_zero],
        vpp=vpps[which_vpp],
        cp=cp[row],
        ep=eps[which_ep],
        precision=precisions[which_precision],
        cp_comm=np.zeros_like(tp),
        shard=ranks,
    )
    for applies, variant in ((limits.shards, _over_nodes), (limits.a2a and cps.max() > 1, _with_all_to_all)):
        if applies:
            also, changed = variant(model, plans)
            plans, shape = _insert_changed(plans, shape, also, changed)
    return plans, shape


def _over_nodes(model: ModelSpec, plans: PlanArrays) -> tuple[Ints, PlanArrays]:
    """Return (index, plan) of the plans that may shard over the ranks of one node, changed to do so.

    Each group has all experts too: Megatron-Core cuts the ranks that hold the same ones into as many groups.
    """
    members = np.maximum(plans.local // plans.tp, 1)
    groups = np.maximum(plans.shard // members, 1)
    fits = (members > 1) & (groups > 1) & (plans.shard % members == 0) & (plans.zero_stage >= 1)
    index = np.flatnonzero(fits & (plans.shard // plans.ep % groups == 0))
    return index, replace(plans.take(index), shard=members[index])


def _with_all_to_all(model: ModelSpec, plans: PlanArrays) -> tuple[Ints, PlanArrays]:
    """Return (index, plan) of the plans that may swap tokens for heads, changed to do so.

    The condition is that cp divides a tensor rank's heads and its keys' (Transformer Engine's own check, which knows no heads of
    two widths).
    """
    heads, keys = model.heads // plans.tp, np.maximum(model.kv_heads // plans.tp, 1)
    fits = (plans.cp > 1) & (heads % plans.cp == 0) & (keys % plans.cp == 0) & (model.kv_lora == 0)
    index = np.flatnonzero(fits)
    return index, replace(plans.take(index), cp_comm=np.full(len(index), ALL_TO_ALL, dtype=np.int64))


def _insert_changed(plans: PlanArrays, shape: Ints, also: Ints, changed: PlanArrays) -> tuple[PlanArrays, Ints]:
    """Return `plans`, with the `changed` plan behind each one at `also`."""
    rows = np.concatenate([np.arange(len(plans)), also])
    order = np.argsort(rows, kind="stable")
    return join_plans([plans, changed]).take(order), shape[rows[order]]


def _with_batches(
    plans: PlanArrays, shape: Ints, limits: PlanLimits, ruled_out: Counter[str]
) -> tuple[PlanArrays, Ints, Ints]:
    """Return each of `plans` with each micro-batch, its shape, and the smallest batch.

    Each plan is at the largest batch of the range that is a multiple of its unit. The smallest batch is the least such multiple.
    """
    micro = np.array(micro_batches(limits), dtype=np.int64)
    share = plans.dp[:, None] * micro[None, :]
    whole = share * np.where(plans.vpp > 1, plans.pp, 1)[:, None]
    if limits.batch_unit > 1:
        whole, share = np.lcm(whole, limits.batch_unit), np.lcm(share, limits.batch_unit)
    largest = limits.high // whole * whole
    fine = largest >= limits.low
    if limits.cp is None and limits.micro_batch is None:
        fine &= (plans.cp[:, None] == 1) | (micro[None, :] % 2 == 1)
    without = limits.high // share * share >= limits.low
    ruled_out[NOT_BATCH] += int(np.count_nonzero(~without))
    ruled_out[NOT_INTERLEAVED] += int(np.count_nonzero(without & (largest < limits.low)))
    if limits.batch_unit > 1:
        fine &= limits.batch_unit % plans.dp[:, None] == 0
    which, micro_index = np.nonzero(fine)
    unit_of = whole[fine]
    plans_with_batch = replace(plans.take(which), micro_batch=micro[micro_index], global_batch=largest[fine])
    return plans_with_batch, shape[which], -(-limits.low // unit_of) * unit_of
