"""The best plans of a model on given GPU counts, with where their time and memory go: what `synergyctl plan` prints. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from synergy_core.errors import UsageError
from synergy_core.exchange import Exchange
from synergy_core.formatting import format_plan
from synergy_core.kernels import UNKNOWN, Kernels
from synergy_core.recompute import MODULES, NOT_WITH_FP8
from synergy_core.records import Cell, ModelSpec, Shape

from synergyd.jobmodel.cell_search import RankedPlans, rank
from synergyd.jobmodel.exchange_choice import limits_to_replicas, may_exchange_less
from synergyd.jobmodel.job_planner import memory_reason, needs
from synergyd.jobmodel.memory_belief import MemoryBelief
from synergyd.jobmodel.model.counts import flops_per_step
from synergyd.jobmodel.model.efficiency import UNKNOWN_NOISE
from synergyd.jobmodel.model.exchange_cost import options, prior_worth
from synergyd.jobmodel.model.hardware import GpuFigures, canonical, figures, with_kernels, with_overlap
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.plan_distance import best_measurement, sigmas
from synergyd.jobmodel.plan_limits import PlanLimits, check_fixed
from synergyd.jobmodel.plan_space import enumerate_plans

MAX_GPUS = 100_000
ZERO_STAGES = (1, 2, 3)  # 0 is never better than 1
_DOUBLINGS = 7
_WITHOUT_BF16 = frozenset(("v100", "v100-16", "v100-pcie", "v100-pcie-32", "rtx2080ti", "t4"))


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One plan. `time` seconds by part (compute, bubble, tp, pp, dp, optimizer, fixed) sums to the Cell's step_s.

    `memory` is bytes by part, `risk` the probability that it needs more than there is, `mfu` model FLOPs over peak.
    """

    rank: int  # 1 is the best of its GPU count
    cell: Cell
    time: dict[str, float]
    memory: dict[str, float]
    risk: float
    tokens_per_s: float
    mfu: float


@dataclass(frozen=True, kw_only=True)
class GpuCount:
    """The best plans on one GPU count.

    `why_none` is "" unless `rows` is empty. `ruled_out` counts choices by reason. `closest` describes the leanest of those that
    did not fit ("" if all did).
    """

    gpus: int
    rows: tuple[PlanRow, ...]
    fitting: int
    ruled_out: dict[str, int]
    why_none: str
    closest: str = ""


@dataclass(frozen=True, kw_only=True)
class PlanTable:
    """The answer for one model and GPU type.

    `usable_bytes` is the memory that a plan may use. `note` is not empty if the type's figures are a guess. `measure` is the single
    measurement that narrows the predictions most, with their one sigma before and after it, None where no plan fits. `kernels`: those
    that the predictions go by; the others are assumed to be fused.
    """

    model: ModelSpec
    gpu_type: str
    gpus_per_node: int
    usable_bytes: float
    counts: tuple[GpuCount, ...]
    note: str
    measure: tuple[str, float, float] | None = None
    kernels: Kernels = UNKNOWN

    def first(self, top: int) -> PlanTable:
        """Return the same table with at most `top` plans for each GPU count."""
        return replace(self, counts=tuple(replace(c, rows=c.rows[:top]) for c in self.counts))


def usual_precision(gpu_type: str) -> str:
    """Return bf16, or fp16 on GPUs whose tensor cores lack bf16 (before Ampere)."""
    return "fp16" if canonical(gpu_type) in _WITHOUT_BF16 else "bf16"


def plan_table(
    model: ModelSpec,
    gpu_type: str,
    gpus: Sequence[int],
    gpus_per_node: int,
    global_batch: tuple[int, int],
    *,
    noise_scale: float | None = None,
    tp: int | None = None,
    pp: int | None = None,
    vpp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
    zero: int | None = None,
    precision: str | None = None,
    micro_batch: int | None = None,
    top: int = 10,
    gpu: GpuFigures | None = None,
    comm: Sequence[str] = (),
    kernels: Kernels = UNKNOWN,
) -> PlanTable:
    """Return the `top` plans by goodput for each GPU count of `gpus` on nodes of `gpus_per_node` GPUs.

    Without `noise_scale` the batch is the smallest of the range that a plan divides, as for a job that never reported one. Degrees
    that are None are searched; precision None is the GPU type's usual one; `gpu` None are the built-in figures. `comm`: kinds of
    less communication to try beside the exact one, as a job may be given them, for replicas that no other degree splits. `kernels`: those
    of the runs, as far as they are known. Raises UsageError for numbers out of bounds and for fixed degrees that contradict the model, the
    GPU or the kernels.
    """
    for name, number in (("gpus", min(gpus, default=0)), ("gpus-per-node", gpus_per_node), ("top", top)):
        if number < 1:
            raise UsageError(name, f"{number} is too small", "it must be at least 1")
    if max(gpus) > MAX_GPUS:
        raise UsageError("gpus", f"{max(gpus)} is too many", f"at most {MAX_GPUS}")
    if noise_scale is not None and not 0 < noise_scale < 1e15:
        raise UsageError("noise-scale", f"{noise_scale:g}", "it must be a positive number of sequences")
    if kernels.transformer_engine is False:
        cp = _cp_without_engine(precision, cp)
    low, high = global_batch
    gpu = with_overlap(with_kernels(gpu or figures(gpu_type), kernels))  # as the launcher runs Megatron-LM
    limits = PlanLimits(
        low,
        high,
        micro_batch=micro_batch,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        zero_stages=ZERO_STAGES if zero is None else (zero,),
        precisions=(precision or usual_precision(gpu_type),),
        uneven=True,
        a2a=True,
        shards=True,
        blocks=True,
        modules=tuple(m for m in MODULES if precision != "fp8" or m not in NOT_WITH_FP8),
    )
    check_fixed(model, limits, "", max(gpus))
    if "fp8" in limits.precisions and gpu.fp8_speedup <= 1:
        raise UsageError("precision", f"{gpu_type} has no fp8", "it has come with Ada and Hopper (l40s, h100)")
    if noise_scale is None and low < high:
        noise_scale = UNKNOWN_NOISE
    less = options(comm)
    counts = [_count(model, gpu, gpu_type, n, gpus_per_node, limits, noise_scale, top, less) for n in sorted(set(gpus))]
    if not any(count.rows for count in counts):
        more = _enough(model, gpu, gpu_type, counts[-1].gpus, gpus_per_node, limits)
        if more is not None:
            counts[-1] = replace(counts[-1], why_none=f"{counts[-1].why_none}; {more} GPUs would do")
    return PlanTable(
        model=model,
        gpu_type=gpu_type,
        gpus_per_node=gpus_per_node,
        usable_bytes=gpu.usable_bytes,
        counts=tuple(counts),
        note=gpu.note,
        kernels=kernels,
        measure=best_measurement(model, gpu, [row.cell for count in counts for row in count.rows]),
    )


def _cp_without_engine(precision: str | None, cp: int | None) -> int:
    """Return the only cp that runs without Transformer Engine. Raises UsageError for another one, and for fp8."""
    if precision == "fp8":
        raise UsageError("kernels", "local, with precision=fp8", "fp8 needs Transformer Engine")
    if cp is not None and cp > 1:
        raise UsageError("kernels", f"local, with cp={cp}", "cp needs Transformer Engine")
    return 1


def _enough(
    model: ModelSpec, gpu: GpuFigures, gpu_type: str, gpus: int, gpus_per_node: int, limits: PlanLimits
) -> int | None:
    """Return the fewest GPUs, doubled from `gpus` in whole nodes, on which a plan fits, or None if none does soon."""
    nodes = -(-gpus // gpus_per_node)
    for _ in range(_DOUBLINGS):
        nodes *= 2 if nodes * gpus_per_node <= gpus else 1
        if nodes * gpus_per_node > MAX_GPUS:
            return None
        if len(enumerate_plans(model, gpu, [Shape(gpu_type, nodes, gpus_per_node)], limits).plans):
            return nodes * gpus_per_node
        gpus = nodes * gpus_per_node
    return None


def _rows(model: ModelSpec, gpu: GpuFigures, ranked: RankedPlans, top: int) -> list[PlanRow]:
    """Return the best `top` plans; their `rank` is yet to be set."""
    best = ranked.order[:top]
    cells = tuple(ranked.cells(best))
    unsure = sigmas(model, gpu, (), cells)
    peaks = peak_memory(model, gpu, ranked.candidates.plans.take(best))
    rows: list[PlanRow] = []
    for position, i in enumerate(best):
        cell = replace(cells[position], uncertainty=unsure[position])
        achieved = flops_per_step(model, cell.plan.global_batch) / cell.step_s
        rows.append(
            PlanRow(
                rank=0,
                cell=cell,
                time=ranked.times.parts(int(i)),
                memory=peaks.parts(position),
                risk=float(ranked.candidates.risk[i]),
                tokens_per_s=cell.throughput * model.seq,
                mfu=achieved / (cell.shape.gpus * gpu.peak_tflops * 1e12),
            )
        )
    return rows


def _apply_worth(row: PlanRow, option: Exchange) -> PlanRow:
    """Return `row` with the worth of an example under `option` applied, before any worth was measured."""
    cell, worth = row.cell, prior_worth(option, row.cell.plan.dp)
    return replace(row, cell=replace(cell, efficiency=cell.efficiency * worth, goodput=cell.goodput * worth))


def _count(
    model: ModelSpec,
    gpu: GpuFigures,
    gpu_type: str,
    gpus: int,
    gpus_per_node: int,
    limits: PlanLimits,
    noise_scale: float | None,
    top: int,
    exchanges: Sequence[Exchange] = (),
) -> GpuCount:
    if gpus > gpus_per_node and gpus % gpus_per_node:
        return GpuCount(
            gpus=gpus, rows=(), fitting=0, ruled_out={}, why_none=f"{gpus} GPUs are not whole nodes of {gpus_per_node}"
        )
    shape = Shape(gpu_type, max(1, gpus // gpus_per_node), min(gpus, gpus_per_node))
    memory = MemoryBelief(sigma=gpu.memory_uncertainty)
    ranked = rank(model, gpu, [shape], limits, noise_scale=noise_scale, memory=memory)
    all_rows = _rows(model, gpu, ranked, top)
    alone = limits_to_replicas(limits)
    if alone is not None and may_exchange_less(gpu, shape):
        for option in exchanges:
            less = rank(model, gpu, [shape], alone, noise_scale=noise_scale, memory=memory, option=option)
            all_rows += [_apply_worth(row, option) for row in _rows(model, gpu, less, top)]
    all_rows.sort(key=lambda row: -row.cell.goodput)
    rows = [replace(row, rank=i) for i, row in enumerate(all_rows[:top], 1)]
    ruled_out = {reason: n for reason, n in ranked.candidates.ruled_out.most_common() if n}
    why, closest = "", ranked.candidates.closest
    if not rows:
        why = (
            memory_reason(model, gpu, *closest)
            if closest is not None
            else "no plan is valid: " + (", ".join(ruled_out) or "the fixed degrees need more GPUs")
        )
    lean = f"{format_plan(closest[2])} {needs(gpu, *closest[:2])}" if closest is not None else ""
    return GpuCount(
        gpus=gpus, rows=tuple(rows), fitting=len(ranked.goodput), ruled_out=ruled_out, why_none=why, closest=lean
    )
