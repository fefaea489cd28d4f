"""All valid plans of a transformer on given shapes, as arrays, filtered by memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from synergyd.errors import UsageError
from synergyd.records import ModelSpec, Plan, Shape
from synergyd.task.arrays import Bools, Floats, Ints, PlanArrays
from synergyd.task.efficiency import batch_points
from synergyd.task.hardware import GpuFigures
from synergyd.task.memory import peak_memory

MAX_BATCH = 10_000_000  # sequences; keeps a stranger's number from costing time
MICRO_BATCH_LIMIT = 64  # larger ones gain nothing that a GEMM of 64 sequences does not have

# Why plans were ruled out, as `synergyctl plan` and `explain` print them.
NOT_GPUS = "tp x pp does not divide the GPUs"
LEAVES_NODE = "tp would leave the node"
NOT_BATCH = "no global batch in the range is a multiple of dp x micro-batch"
TOO_BIG = "does not fit the GPU's memory"


@dataclass(frozen=True)
class Limits:
    """What a search may choose from. `low == high` fixes the batch; None leaves a degree or the micro-batch free."""

    low: int
    high: int
    points: int = 12
    micro_batch: int | None = None
    tp: int | None = None
    pp: int | None = None


@dataclass(frozen=True)
class Candidates:
    """Plans that fit: `shape[i]` is plan i's index in the shapes asked for, `memory[i]` its peak in bytes.

    `ruled_out` counts (tp, pp, micro-batch, batch) choices by reason; `closest` is the smallest peak of those that did
    not fit: (bytes, parts by name, plan).
    """

    plans: PlanArrays
    shape: Ints
    memory: Floats
    ruled_out: Counter[str] = field(default_factory=Counter)
    closest: tuple[float, dict[str, float], Plan] | None = None


def divisors(n: int) -> list[int]:
    """Divisors of n >= 1, ascending."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return small + [n // i for i in reversed(small) if i * i != n]


def tensor_degrees(model: ModelSpec) -> list[int]:
    """Tensor-parallel degrees that Megatron-Core takes: dividing heads, ffn and sequence (sequence parallel), and a
    multiple or divisor of kv_heads (TransformerConfig's own check)."""
    return [
        t
        for t in divisors(model.heads)
        if model.ffn % t == 0 and model.seq % t == 0 and (model.kv_heads % t == 0 or t % model.kv_heads == 0)
    ]


def check_fixed(model: ModelSpec | None, limits: Limits, where: str, max_gpus: int | None = None) -> None:
    """UsageError naming the key if fixed degrees, micro-batch and batch contradict the model, each other or
    `max_gpus`."""
    for key in ("tp", "pp", "micro_batch"):
        value = getattr(limits, key)
        if value is not None and value < 1:
            raise UsageError(where, f"{key}={value}", "it must be at least 1")
    if not 1 <= limits.low <= limits.high:
        raise UsageError(where, f"global_batch={limits.low}:{limits.high}", "it must be LO:HI with 1 <= LO <= HI")
    if limits.high > MAX_BATCH:
        raise UsageError(where, f"global_batch={limits.high} is too large", f"at most {MAX_BATCH} sequences")
    if model is not None:
        if limits.tp is not None and limits.tp not in (good := tensor_degrees(model)):
            raise UsageError(
                where,
                f"tp={limits.tp} does not divide {model.name}'s {model.heads} heads, {model.kv_heads} kv_heads, "
                f"ffn {model.ffn} and sequence {model.seq}",
                f"tp may be {_listed(good)}",
            )
        if limits.pp is not None and model.layers % limits.pp:
            right = f"pp may be {_listed(divisors(model.layers))}"
            raise UsageError(where, f"pp={limits.pp} does not divide {model.name}'s {model.layers} layers", right)
    degrees = (limits.tp or 1) * (limits.pp or 1)
    if max_gpus is not None and degrees > max_gpus:
        what = f"tp={limits.tp or 1} x pp={limits.pp or 1} needs {degrees} GPUs, more than the {max_gpus} allowed"
        raise UsageError(where, what, "lower tp or pp, or raise max_gpus")
    if limits.micro_batch is not None and limits.high // limits.micro_batch * limits.micro_batch < limits.low:
        wrong = f"micro_batch={limits.micro_batch} does not divide global_batch={limits.low}"
        if limits.low != limits.high:
            wrong = f"no multiple of micro_batch={limits.micro_batch} lies in global_batch={limits.low}:{limits.high}"
        raise UsageError(where, wrong, f"micro_batch may be {_listed(_micro_divisors(limits.high))}")


def _micro_divisors(batch: int) -> list[int]:
    return [m for m in range(1, MICRO_BATCH_LIMIT + 1) if batch % m == 0]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(n) for n in numbers)


def enumerate_plans(
    model: ModelSpec, gpu: GpuFigures, shapes: Sequence[Shape], limits: Limits, memory_factor: float = 1.0
) -> Candidates:
    """All (tp, pp, dp, micro-batch, global batch) on each of `shapes` that fit `gpu`, with the least recompute that
    makes them fit.

    `memory_factor` is measured over predicted peak. Less recompute is never slower, so the others need no look. tp
    stays inside the node; where that leaves a shape with no plan at all, tp over whole nodes is tried. Batches are
    geometric points of [low, high] rounded to multiples of dp * micro-batch; a fixed batch must be one.
    """
    inside = _search(model, gpu, shapes, limits, memory_factor, leave_node=False)
    plenty = np.bincount(inside.shape, minlength=len(shapes))
    missing = [i for i in range(len(shapes)) if shapes[i].nodes > 1 and not plenty[i]]
    if not missing or (limits.tp is not None and all(limits.tp <= shapes[i].gpus_per_node for i in missing)):
        return inside
    outside = _search(model, gpu, [shapes[i] for i in missing], limits, memory_factor, leave_node=True)
    if not len(outside.plans):
        return replace(inside, closest=inside.closest or outside.closest)
    ruled_out = inside.ruled_out + outside.ruled_out
    # those were tried after all
    del ruled_out[LEAVES_NODE]
    return Candidates(
        plans=_joined(inside.plans, outside.plans),
        shape=np.concatenate([inside.shape, np.array(missing, dtype=np.int64)[outside.shape]]),
        memory=np.concatenate([inside.memory, outside.memory]),
        ruled_out=ruled_out,
        closest=inside.closest or outside.closest,
    )


def _joined(a: PlanArrays, b: PlanArrays) -> PlanArrays:
    return PlanArrays(**{name: np.concatenate([value, getattr(b, name)]) for name, value in vars(a).items()})


def _search(
    model: ModelSpec, gpu: GpuFigures, shapes: Sequence[Shape], limits: Limits, memory_factor: float, leave_node: bool
) -> Candidates:
    ruled_out: Counter[str] = Counter()
    plans, shape = _degrees(model, shapes, limits, leave_node, ruled_out)
    plans, shape = _with_batches(plans, shape, limits, ruled_out)
    limit = gpu.usable_bytes / memory_factor
    # flash attention keeps no scores, so selective recompute frees nothing
    codes = (0, 2) if gpu.flash else (0, 1, 2)
    memory = np.zeros(len(plans))
    open_: Ints = np.arange(len(plans), dtype=np.int64)
    recompute = plans.recompute.copy()
    for code in codes:
        trial = replace(plans.take(open_), recompute=np.full(len(open_), code, dtype=np.int64))
        peak = peak_memory(model, gpu, trial).total
        memory[open_], recompute[open_] = peak, code
        open_ = open_[peak > limit]
        if not len(open_):
            break
    plans = replace(plans, recompute=recompute)
    closest = None
    if len(open_):
        ruled_out[TOO_BIG] += len(open_)
        least = int(open_[np.argmin(memory[open_])])
        one = plans.take(np.array([least]))
        closest = (float(memory[least] * memory_factor), peak_memory(model, gpu, one).parts(0), one.plan(0))
    keep: Bools = np.ones(len(plans), dtype=np.bool_)
    keep[open_] = False
    return Candidates(plans.take(keep), shape[keep], memory[keep] * memory_factor, ruled_out, closest)


def _degrees(
    model: ModelSpec, shapes: Sequence[Shape], limits: Limits, leave_node: bool, ruled_out: Counter[str]
) -> tuple[PlanArrays, Ints]:
    """All (shape, tp, pp) that divide, micro-batch and batch still 1."""
    tps = np.array([limits.tp] if limits.tp else tensor_degrees(model), dtype=np.int64)
    pps = np.array([limits.pp] if limits.pp else divisors(model.layers), dtype=np.int64)
    gpus = np.array([s.gpus for s in shapes], dtype=np.int64)
    node = np.array([s.gpus_per_node for s in shapes], dtype=np.int64)
    shape, tp, pp = (
        grid.ravel() for grid in np.meshgrid(np.arange(len(shapes), dtype=np.int64), tps, pps, indexing="ij")
    )
    enough = tp * pp <= gpus[shape]
    shape, tp, pp = shape[enough], tp[enough], pp[enough]
    divides = gpus[shape] % (tp * pp) == 0
    # the second look, outside the node, is at the same degrees: they are counted once
    ruled_out[NOT_GPUS] += 0 if leave_node else int(np.count_nonzero(~divides))
    local = node[shape]
    in_node = local % tp == 0
    fine = (tp > local) & (tp % local == 0) if leave_node else in_node
    ruled_out[LEAVES_NODE] += int(np.count_nonzero(divides & ~in_node)) if not leave_node else 0
    keep = divides & fine
    shape, tp, pp = shape[keep], tp[keep], pp[keep]
    one = np.ones_like(tp)
    plans = PlanArrays(
        tp=tp,
        pp=pp,
        dp=gpus[shape] // (tp * pp),
        micro_batch=one,
        global_batch=one,
        recompute=np.zeros_like(tp),
        local=node[shape],
        sequence_parallel=tp > 1,
        zero_stage=one,
        vpp=one,
        cp=one,
        ep=one,
        precision=np.zeros_like(tp),
    )
    return plans, shape


def micro_batches(limits: Limits) -> list[int]:
    """Micro-batches to try: the fixed one; divisors of a fixed batch; else powers of two."""
    if limits.micro_batch is not None:
        return [limits.micro_batch]
    if limits.low == limits.high:
        return _micro_divisors(limits.low)
    return [m for m in (2**i for i in range(MICRO_BATCH_LIMIT.bit_length())) if m <= limits.high]


def _with_batches(plans: PlanArrays, shape: Ints, limits: Limits, ruled_out: Counter[str]) -> tuple[PlanArrays, Ints]:
    """Each of `plans` with each micro-batch and each batch that is a multiple of dp * micro-batch in the range."""
    micro = np.array(micro_batches(limits), dtype=np.int64)
    points = batch_points(limits.low, limits.high, limits.points)
    unit = plans.dp[:, None] * micro[None, :]
    batch = np.rint(points[None, None, :] / unit[:, :, None]).astype(np.int64) * unit[:, :, None]
    fine = (batch >= limits.low) & (batch <= limits.high) & (batch > 0)
    # points that round to the same multiple are one choice
    fine[:, :, 1:] &= batch[:, :, 1:] != batch[:, :, :-1]
    ruled_out[NOT_BATCH] += int(np.count_nonzero(~fine.any(axis=2)))
    which, micro_index, _ = np.nonzero(fine)
    chosen = replace(plans.take(which), micro_batch=micro[micro_index], global_batch=batch[fine])
    return chosen, shape[which]
