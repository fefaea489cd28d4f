"""GPU types' figures: the built-in table (hardware.toml), matching of Slurm's Gres names, an admin's overrides."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.kernels import Kernels
from synergy_core.link_names import LINK_CLASSES, parse_link

GIB = 2**30
KNOWN_NETWORK = 0.3  # inter_uncertainty once inter_gbs is given: reached are 0.75 to 0.9 (nccl-tests), less where groups share ports


@dataclass(frozen=True)
class GpuFigures:
    """One GPU type. TFLOP/s are 1e12 FLOP/s, GB/s 1e9 bytes/s in one direction, GiB 2^30 bytes.

    See hardware.toml for each figure.
    """

    gpu_type: str
    peak_tflops: float
    memory_gib: float
    bandwidth_gbs: float
    intra_gbs: float
    inter_gbs: float
    gemm_efficiency: float = 0.8
    attention_efficiency: float = 0.8
    bandwidth_efficiency: float = 0.8
    link_efficiency: float = 0.75
    intra_latency_s: float = 2e-5
    inter_latency_s: float = 5e-5
    inter_efficiency: float = 0.75
    dp_efficiency: float = 1.0
    dp_inter_efficiency: float = 1.0
    pp_efficiency: float = 1.0
    rail_use: float = 0.8
    zero3_rail_use: float = 0.8
    dp_rank_s: float = 0.0
    dp_partial_efficiency: float = 0.7
    gemm_traffic: float = 1.0
    misaligned_gemm: float = 1.4
    odd_gemm: float = 2.0
    unfused: float = 0.0
    score_traffic: float = 1.0
    norm_traffic: float = 1.0
    pointwise_traffic: float = 1.0
    optimizer_traffic: float = 1.0
    accumulation_bytes: float = 0.0
    tp_overlap: float = 0.0
    fp8_speedup: float = 1.6
    fp32_speed: float = 0.5
    kernel_s: float = 1e-5
    launch_s: float = 3e-4
    tp_launch_s: float = 1e-4
    micro_s: float = 2e-4
    optimizer_s: float = 1e-4
    fixed_s: float = 5e-3
    overlap: float = 0.0
    zero3_overlap: float = 0.9
    jitter: float = 0.003
    reserve_gib: float = 2.5
    base_gib: float = 0.0
    fragmentation: float = 0.05
    activation_scale: float = 1.0
    logit_bytes: float = 4.0
    scores_kept: float = 0.0
    state_scale: float = 1.0
    flash: bool = True
    watts: float = 0.0  # 0: not known
    uncertainty: float = 0.2
    inter_uncertainty: float = 0.8
    memory_uncertainty: float = 0.15
    note: str = ""  # why these figures are only a guess; "" if they are the type's own

    @property
    def usable_bytes(self) -> float:
        """Return the bytes that a training process may allocate on one GPU."""
        return max(0.0, self.memory_gib - self.reserve_gib) * GIB


def with_overlap(gpu: GpuFigures) -> GpuFigures:
    """Return the figures for a run that hides data-parallel traffic behind compute, as far as FSDP does.

    These are runs with Megatron-LM's --overlap-grad-reduce and --overlap-param-gather. Its published runs on H100 have them
    (tests/unit/jobmodel/test_published.py).
    """
    return replace(gpu, overlap=max(gpu.overlap, gpu.zero3_overlap))


def with_deepspeed(gpu: GpuFigures) -> GpuFigures:
    """Return the figures for DeepSpeed's ZeRO-3 instead of FSDP's.

    Its groups reach one port's share of the network, however many members a node has. 175B on 768 and on 1,536 A100 took the same
    67 s a step, 1.05 TB in and out of each GPU at 16 GB/s (Narayanan et al. SC'21, table 2).
    """
    return replace(gpu, zero3_rail_use=0.0)


# Of tensor-parallel traffic, the part behind GEMMs under Megatron-LM's --tp-comm-overlap: all but the last of 4 parts of the two
# reduce-scatters forward, of 8 collectives a layer (nemo_megatron/gpt3_175b_hydra.yaml of NVIDIA/dgxc-benchmarking).
_TP_OVERLAP = 15 / 16
# Bytes that the operators of megatron-core's local layers (softmax in fp32), or of torch's AdamW, read and write in a step over those of
# fused kernels (python -m tests.benchmarks.kernel_traffic). With them Megatron without Transformer Engine on an H100 is predicted 1 and 3 %
# too slow in place of 21 and 25 % too fast (docs/design/measurements/gpu.md).
_SCORES, _NORM, _POINTWISE, _OPTIMIZER = 2.4, 12.0, 2.0, 4.0
_ACCUMULATION = 10.0  # bytes a parameter and micro-batch: read a gradient in 2 and their sum in 4, write the sum


def with_kernels(gpu: GpuFigures, kernels: Kernels) -> GpuFigures:
    """Return the figures for a run whose `kernels` were detected. What is not known of them is as `gpu` says."""
    compiled = kernels.compiled is True  # what it fuses needs no kernel of its own
    changes: dict[str, Any] = {}
    if kernels.attention is True:
        changes |= {"unfused": 0.0, "scores_kept": 0.0}
    elif kernels.attention is False:
        changes |= {"flash": False, "unfused": 1.0}
    if kernels.softmax is False and kernels.attention is False and not compiled:
        changes["score_traffic"] = _SCORES
    if kernels.norm is False and not compiled:
        changes["norm_traffic"] = _NORM
    if kernels.pointwise is False and not compiled:
        changes["pointwise_traffic"] = _POINTWISE
    if kernels.optimizer is False:
        changes["optimizer_traffic"] = _OPTIMIZER
    if kernels.accumulation is False:
        changes["accumulation_bytes"] = _ACCUMULATION
    if kernels.tp_overlap is True:
        changes["tp_overlap"] = _TP_OVERLAP
    return replace(gpu, **changes) if changes else gpu


# The figures that an override may set, and those of them that may be zero.
_NUMBERS = frozenset(f.name for f in fields(GpuFigures)) - {"gpu_type", "flash", "note"}
_ZERO_IS_FINE = frozenset(
    {
        "intra_latency_s",
        "inter_latency_s",
        "kernel_s",
        "launch_s",
        "fixed_s",
        "overlap",
        "reserve_gib",
        "base_gib",
        "watts",
    }
    | {
        "fragmentation",
        "uncertainty",
        "inter_uncertainty",
        "memory_uncertainty",
        "gemm_traffic",
        "unfused",
        "tp_launch_s",
        "micro_s",
        "optimizer_s",
        "jitter",
    }
    | {"zero3_overlap", "scores_kept", "zero3_rail_use", "dp_rank_s", "accumulation_bytes", "tp_overlap"}
)
_AT_MOST_ONE = frozenset(
    {"gemm_efficiency", "attention_efficiency", "bandwidth_efficiency", "link_efficiency", "overlap", "fragmentation"}
    | {"inter_efficiency", "zero3_overlap", "rail_use", "scores_kept", "zero3_rail_use", "tp_overlap"}
)
_MIG = re.compile(r"(?P<parts>[1-7])g\.(?P<gib>[1-9]\d{0,3})gb")
_MIG_PARTS = 7  # of a GPU's multiprocessors


@cache
def _table() -> tuple[dict[str, GpuFigures], tuple[tuple[frozenset[str], str], ...]]:
    """Return the types of hardware.toml, and (words of a spelling, type) for matching."""
    text = files("synergyd.jobmodel.model").joinpath("hardware.toml").read_text(encoding="utf-8")
    data: dict[str, Any] = tomllib.loads(text)
    types: dict[str, GpuFigures] = {}
    spellings: list[tuple[frozenset[str], str]] = []
    for name, entry in data["types"].items():
        values = {**data["defaults"], **entry}
        spellings += [(frozenset(words.split()), name) for words in values.pop("names")]
        types[name] = GpuFigures(gpu_type=name, **values)
    return types, tuple(spellings)


def known_types() -> tuple[str, ...]:
    """Return the names of the built-in types, in the file's order."""
    return tuple(_table()[0])


def canonical(gpu_type: str) -> str | None:
    """Return the built-in type that Slurm's Gres name `gpu_type` means (`nvidia_a100-sxm4-40gb` is `a100-40`), or None.

    A MIG slice is a type of its own and is never matched (see `figures`).
    """
    types, spellings = _table()
    text = gpu_type.strip().lower()
    if text in types:
        return text
    if _MIG.search(text):
        return None
    words = frozenset(re.split(r"[-_\s:]+", text))
    matches = [(len(spelling), name) for spelling, name in spellings if spelling <= words]
    # `max` keeps the first of equals, which is the file's order
    return max(matches, key=lambda match: match[0])[1] if matches else None


def is_slice(gpu_type: str) -> bool:
    """Return whether a Gres name is that of a MIG slice, such as `a100_3g.20gb`.

    A process can use one slice, and NCCL connects no two of them.
    """
    return _MIG.search(gpu_type.lower()) is not None


def _slice_figures(gpu_type: str) -> GpuFigures | None:
    """Return the figures of a MIG slice, in proportion to its GPU's: multiprocessors by sevenths, memory by its size.

    Return None for other types and for slices whose Gres name does not name the GPU.
    """
    match = _MIG.search(gpu_type.lower())
    whole = canonical(_MIG.sub("", gpu_type.lower())) if match else None
    if match is None or whole is None:
        return None
    types, _ = _table()
    gpu, share, gib = types[whole], int(match["parts"]) / _MIG_PARTS, float(match["gib"])
    return replace(
        gpu,
        peak_tflops=gpu.peak_tflops * share,
        memory_gib=gib,
        bandwidth_gbs=gpu.bandwidth_gbs * min(1.0, gib / gpu.memory_gib),
        inter_gbs=gpu.inter_gbs * share,
        watts=gpu.watts * share,
        uncertainty=max(gpu.uncertainty, types["generic"].uncertainty),
    )


def figures(gpu_type: str, overrides: Mapping[str, Mapping[str, float]] | None = None) -> GpuFigures:
    """Return the figures of `gpu_type` as Slurm names it, with the admin's `overrides` (type name -> figure -> number) on top.

    Overrides of the Gres name win over those of the built-in name it stands for. A MIG slice has a part of its GPU's figures.
    Another type that is not known is taken for `generic`, and `note` says so, unless overrides give all five main figures. Raises
    UsageError: an override that names no figure, is not a finite number, or lies out of bounds.
    """
    types, _ = _table()
    name = canonical(gpu_type)
    part = _slice_figures(gpu_type) if name is None else None
    base = part or types[name or "generic"]
    changes: dict[str, float] = {}
    by_lower = {key.lower(): value for key, value in (overrides or {}).items()}
    spellings = {spelling: None for spelling in (name, gpu_type.strip().lower()) if spelling}
    for spelling in spellings:
        for figure, value in by_lower.get(spelling, {}).items():
            _check(spelling, figure, value)
            changes[figure] = float(value)
    if "inter_gbs" in changes:
        changes = {"inter_uncertainty": KNOWN_NETWORK, **changes}
    note = ""
    if name is None and part is None:
        missing = [
            f for f in ("peak_tflops", "memory_gib", "bandwidth_gbs", "intra_gbs", "inter_gbs") if f not in changes
        ]
        if missing:
            note = f"GPU type {gpu_type!r} is not known: taken for a generic GPU in {', '.join(missing)}"
    return replace(base, gpu_type=gpu_type, note=note, **changes)  # type: ignore[arg-type]


def _check(gpu_type: str, figure: str, value: float) -> None:
    where = f"figures of GPU type {gpu_type}"
    if figure not in _NUMBERS:
        raise UsageError(where, f"no figure is called {figure!r}", f"figures are {', '.join(sorted(_NUMBERS))}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(where, f"{figure} is {value!r}", "it must be a finite number")
    if value < 0 or (value == 0 and figure not in _ZERO_IS_FINE):
        raise UsageError(where, f"{figure} is {value:g}", "it must be positive")
    if value > 1 and figure in _AT_MOST_ONE:
        raise UsageError(where, f"{figure} is {value:g}", "it is a fraction, at most 1")


def link_figures(text: str, scope: str) -> dict[str, float]:
    """Return the figures of `scope` (intra: in the node, inter: between nodes) for the link that `text` names.

    `CLASS` (`4xCLASS`: four together), `CLASS/N` for a link that N GPUs share, or a rate in 1e9 bytes/s. Raise UsageError.
    """
    name, slash, shared = text.strip().lower().partition("/")
    among = int(shared) if shared.isascii() and shared.isdecimal() and len(shared) <= 6 else 0
    if slash and among < 1:
        raise UsageError(f"--set {scope}", f"{text!r}: {shared!r} GPUs share it", "write CLASS/N, such as ib-hdr/4")
    if (link_spec := parse_link(name)) is not None:
        count, link = link_spec[0], LINK_CLASSES[link_spec[1]]
        return {f"{scope}_gbs": count * link.gbs / max(1, among), f"{scope}_latency_s": link.latency_s}
    try:
        number = float(name)
    except ValueError:
        right = f"links are {', '.join(LINK_CLASSES)}; or give 1e9 bytes/s a GPU"
        raise UsageError(f"--set {scope}", f"no link is called {name!r}", right) from None
    if not (math.isfinite(number) and 0 < number <= 1e6):
        raise UsageError(f"--set {scope}", f"{text} is no rate", "give 1e9 bytes/s a GPU, such as 25")
    return {f"{scope}_gbs": number / max(1, among)}
