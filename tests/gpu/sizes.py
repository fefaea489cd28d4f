"""How large each part of the run is: on one H100 or H200, and small enough for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from synergy_core.records import ModelSpec

SELECTIVE_LONGEST = 2048  # tokens; longer unfused scores take the GPU's memory


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One step that is timed: `micro_batches` of `micro_batch` sequences on one GPU."""

    micro_batch: int
    seq: int
    recompute: str  # none, selective, full
    fused: bool  # attention
    micro_batches: int = 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One run of the command."""

    model: ModelSpec
    overhead_micro: int  # sequences of the overhead's micro-batches
    overhead_steps: int  # of each block; blocks of all ways take turns
    overhead_blocks: int
    plain: tuple[Setting, ...]
    megatron: tuple[Setting, ...]
    gemm: int  # M, N and K around which shapes vary
    gemm_step: int  # of the sweep over M
    attention: int  # tokens
    head_dims: tuple[int, ...]
    least_s: float  # of one timing
    noise_steps: int
    noise_after: int
    noise_samples: int  # of the brute force with Megatron


def _crossed(micro: tuple[int, ...], seqs: tuple[int, ...], kinds: tuple[tuple[str, bool], ...]) -> tuple[Setting, ...]:
    return tuple(
        Setting(micro_batch=b, seq=s, recompute=recompute, fused=fused)
        for b, s, (recompute, fused) in product(micro, seqs, kinds)
    )


_FUSED = (("none", True), ("full", True))
FULL = Sizes(
    model=ModelSpec("gpt-1b", layers=20, hidden=2048, heads=16, kv_heads=16, ffn=8192, vocab=50304, seq=2048),
    overhead_micro=4,
    overhead_steps=8,
    overhead_blocks=4,
    plain=(
        *_crossed((1, 2, 4), (1024, 2048, 4096), _FUSED),
        Setting(micro_batch=8, seq=1024, recompute="full", fused=True),
        Setting(micro_batch=1, seq=8192, recompute="full", fused=True),
        *_crossed((1, 2), (2048,), (("none", False), ("full", False))),
        Setting(micro_batch=2, seq=2048, recompute="none", fused=True, micro_batches=8),
    ),
    megatron=(
        *_crossed((1, 2, 4), (1024, 2048, 4096), _FUSED),
        Setting(micro_batch=1, seq=8192, recompute="full", fused=True),
        *_crossed((1, 2), (2048,), (("none", False), ("selective", False), ("full", False))),
        Setting(micro_batch=4, seq=1024, recompute="selective", fused=False),
        Setting(micro_batch=2, seq=2048, recompute="none", fused=True, micro_batches=8),
    ),
    gemm=4096,
    gemm_step=256,
    attention=4096,
    head_dims=(64, 72, 80, 88, 96, 104, 108, 112, 120, 128, 136, 144, 160, 192, 256),
    least_s=0.01,
    noise_steps=400,
    noise_after=150,
    noise_samples=128,
)
_SMALL = ModelSpec("gpt-tiny", layers=2, hidden=32, heads=2, kv_heads=2, ffn=128, vocab=256, seq=32)
TINY = replace(
    FULL,
    model=_SMALL,
    overhead_micro=2,
    overhead_steps=2,
    overhead_blocks=2,
    plain=(*_crossed((1,), (16, 32), _FUSED), Setting(micro_batch=1, seq=16, recompute="none", fused=False)),
    megatron=(*_crossed((1,), (16,), _FUSED), Setting(micro_batch=1, seq=16, recompute="selective", fused=False)),
    gemm=32,
    gemm_step=32,
    attention=32,
    head_dims=(8, 12),
    least_s=1e-4,
    noise_steps=12,
    noise_after=4,
    noise_samples=16,
)
