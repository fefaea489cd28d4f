"""The choices of a plan search: the degrees a model allows, limits from a directive, and contradictions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

from synergy_core.errors import UsageError
from synergy_core.pipeline_stages import can_hold_virtual_stages, stage_layers
from synergy_core.records import ModelSpec

from synergyd.jobmodel.model.arrays import PRECISION

MAX_BATCH = 10_000_000  # sequences; keeps a stranger's number from costing time
MICRO_BATCH_LIMIT = 64  # larger ones gain nothing that a GEMM of 64 sequences does not have
# A context-parallel rank with fewer tokens than this spends its time on exchanging keys and values (Megatron-Core's
# guide: "long context", from 8K tokens).
LONG_SEQUENCE = 4096

# Why plans were ruled out, as `synergyctl plan` and `explain` print them.
NOT_GPUS = "tp x pp x cp does not divide the GPUs"
LEAVES_NODE = "tp would leave the node"
NOT_BATCH = "no global batch in the range is a multiple of dp x micro-batch"
NOT_INTERLEAVED = "virtual stages need a multiple of pp micro-batches"
TOO_BIG = "does not fit the GPU's memory"


@dataclass(frozen=True)
class PlanLimits:
    """The choices open to a search. `low == high` fixes the batch; None leaves a degree or the micro-batch free.

    The defaults beyond tp and pp are what every script takes: no virtual stages, context or expert parallelism, the
    optimizer shared out (ZeRO-1).
    """

    low: int
    high: int
    _: KW_ONLY
    points: int = 12
    batch_unit: int = 1  # the batch is a multiple of it; replicas divide it where it is not 1
    micro_batch: int | None = None
    max_micro_batch: int | None = None  # for jobs whose memory can't be predicted
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = 1
    cp: int | None = 1
    ep: int | None = 1
    zero_stages: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("bf16",)
    uneven: bool = False  # pipeline stages may have unlike numbers of layers (pipeline_stages.py)
    a2a: bool = False  # context-parallel ranks may exchange by all-to-all
    shards: bool = False  # ZeRO may share out over one node's ranks alone
    #: number of groups of ranks, each of which shares out by itself where they divide; 1: all ranks together
    groups: int = 1
    blocks: bool = False  # full recompute may cover some of the layers
    modules: tuple[
        str, ...
    ] = ()  # modules of a layer that may be computed again, besides the attention's core (recompute.py)
    #: the recompute of every plan, of all layers where it is full; None: as memory requires
    recompute: str | None = None


def divisors(n: int) -> list[int]:
    """Return the divisors of n >= 1, ascending."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return small + [n // i for i in reversed(small) if i * i != n]


def tensor_degrees(model: ModelSpec) -> list[int]:
    """Return the tensor-parallel degrees that Megatron-Core takes.

    These divide heads, ffn and sequence (sequence parallel), and are a multiple or divisor of kv_heads (TransformerConfig's own
    check).
    """
    return [
        t
        for t in divisors(model.heads)
        if model.ffn % t == 0
        and model.seq % t == 0
        and model.shared_ffn % t == 0
        and model.dense_ffn % t == 0
        and (model.kv_heads % t == 0 or t % model.kv_heads == 0)
    ]


def pipeline_degrees(model: ModelSpec, uneven: bool) -> list[int]:
    """Return the divisors of the layers.

    With `uneven`, add the powers of two on which the ends have fewer layers (pipeline_stages.py), because GPU counts have few
    other divisors.
    """
    degrees = divisors(model.layers)
    if uneven:
        powers = [2**i for i in range(2, model.layers.bit_length())]
        degrees += [
            p for p in powers if model.layers % p and stage_layers(model.layers, p, model.mtp_layers) is not None
        ]
    return sorted(degrees)


def context_degrees(model: ModelSpec, least: int = LONG_SEQUENCE) -> list[int]:
    """Return the context-parallel degrees.

    These are 1, and powers of two that cut a decoder's sequence into 2*cp equal chunks (Megatron-LM's own check) and leave each
    rank at least `least` tokens.
    """
    degrees = [1]
    while model.causal and model.seq % (4 * degrees[-1]) == 0 and model.seq // (2 * degrees[-1]) >= least:
        degrees.append(2 * degrees[-1])
    return degrees


def expert_degrees(model: ModelSpec) -> list[int]:
    """Return the expert-parallel degrees: divisors of the experts; 1 for a dense model."""
    return divisors(model.experts) if model.experts else [1]


def check_fixed(model: ModelSpec | None, limits: PlanLimits, where: str, max_gpus: int | None = None) -> None:
    """Raise UsageError naming the key if fixed degrees, micro-batch and batch contradict the model, each other or `max_gpus`."""
    for key in ("tp", "pp", "vpp", "cp", "ep", "micro_batch"):
        value = getattr(limits, key)
        if value is not None and value < 1:
            raise UsageError(where, f"{key}={value}", "it must be at least 1")
    if not 1 <= limits.low <= limits.high:
        raise UsageError(where, f"global_batch={limits.low}:{limits.high}", "it must be LO:HI with 1 <= LO <= HI")
    if limits.high > MAX_BATCH:
        raise UsageError(where, f"global_batch={limits.high} is too large", f"at most {MAX_BATCH} sequences")
    for stage in limits.zero_stages:
        if stage not in (0, 1, 2, 3):
            raise UsageError(where, f"zero stage {stage}", "it may be 0, 1, 2 or 3")
    for precision in limits.precisions:
        if precision not in PRECISION:
            raise UsageError(where, f"precision {precision}", f"it may be {', '.join(PRECISION)}")
    if model is not None:
        _check_model(model, limits, where)
    tp, pp, cp = limits.tp or 1, limits.pp or 1, limits.cp or 1
    degrees = tp * pp * cp * (limits.ep or 1)
    if max_gpus is not None and degrees > max_gpus:
        terms = [f"tp={tp}", f"pp={pp}"] + [f"cp={cp}"] * (cp > 1) + [f"ep={limits.ep}"] * ((limits.ep or 1) > 1)
        what = f"{' x '.join(terms)} needs {degrees} GPUs, more than the {max_gpus} allowed"
        raise UsageError(where, what, "lower tp or pp, or raise max_gpus")
    if pp > 1 and min(limits.zero_stages, default=1) > 1:
        what = f"zero stage {min(limits.zero_stages)} with pp={pp}"
        raise UsageError(
            where, what, "gradients can't be shared out between a pipeline's micro-batches: pp=1 or zero 1"
        )
    if limits.micro_batch is not None and limits.high // limits.micro_batch * limits.micro_batch < limits.low:
        wrong = f"micro_batch={limits.micro_batch} does not divide global_batch={limits.low}"
        if limits.low != limits.high:
            wrong = f"no multiple of micro_batch={limits.micro_batch} lies in global_batch={limits.low}:{limits.high}"
        raise UsageError(where, wrong, f"micro_batch may be {_format_numbers(_micro_divisors(limits.high))}")


def _check_model(model: ModelSpec, limits: PlanLimits, where: str) -> None:
    if limits.tp is not None and limits.tp not in (good := tensor_degrees(model)):
        raise UsageError(
            where,
            f"tp={limits.tp} does not divide {model.name}'s {model.heads} heads, {model.kv_heads} kv_heads, "
            f"ffn {model.ffn} and sequence {model.seq}",
            f"tp may be {_format_numbers(good)}",
        )
    if limits.pp is not None and limits.pp not in (good := pipeline_degrees(model, limits.uneven)):
        right = f"pp may be {_format_numbers(good)}"
        raise UsageError(where, f"pp={limits.pp} does not divide {model.name}'s {model.layers} layers", right)
    if limits.vpp is not None and limits.vpp > 1:
        if limits.pp == 1:
            raise UsageError(where, f"vpp={limits.vpp} with pp=1", "virtual stages need a pipeline: pp of 2 or more")
        if not can_hold_virtual_stages(model.layers, limits.pp or 1, limits.vpp, model.mtp_layers):
            stages = f"pp={limits.pp} x vpp={limits.vpp}" if limits.pp else f"vpp={limits.vpp}"
            layout = stage_layers(model.layers, limits.pp or 1, model.mtp_layers)
            good = (
                [
                    v
                    for v in divisors(layout.middle)
                    if can_hold_virtual_stages(model.layers, limits.pp or 1, v, model.mtp_layers)
                ]
                if layout
                else []
            )
            right = f"vpp may be {_format_numbers(good)}"
            raise UsageError(where, f"{stages} does not divide {model.name}'s {model.layers} layers", right)
    if limits.cp is not None and limits.cp > 1 and limits.cp not in (good := context_degrees(model, 1)):
        what = f"cp={limits.cp} can't cut {model.name}'s sequence of {model.seq}"
        what = what if model.causal else f"cp={limits.cp} with an encoder ({model.name})"
        raise UsageError(where, what, f"cp may be {_format_numbers(good)}")
    if limits.ep is not None and limits.ep > 1 and limits.ep not in (good := expert_degrees(model)):
        what = f"{model.experts} experts" if model.experts else "experts: it has none"
        raise UsageError(
            where, f"ep={limits.ep} does not divide {model.name}'s {what}", f"ep may be {_format_numbers(good)}"
        )


def micro_batches(limits: PlanLimits) -> list[int]:
    """Return the micro-batches to try: the fixed one; divisors of a fixed batch; else powers of two."""
    if limits.micro_batch is not None:
        return [limits.micro_batch]
    if limits.low == limits.high:
        return _micro_divisors(limits.low)
    return [m for m in (2**i for i in range(MICRO_BATCH_LIMIT.bit_length())) if m <= limits.high]


def _micro_divisors(batch: int) -> list[int]:
    return [m for m in range(1, MICRO_BATCH_LIMIT + 1) if batch % m == 0]


def _format_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(str(n) for n in numbers)
