"""The cost of widths that GPU kernels do not take well: GEMMs whose rows do not begin at 16 bytes, heads between two kernels' widths.

All factors are exactly 1 for widths that are multiples of 8 (bf16), and for heads of 32, 64, 96, 128, 192 and 256.
The vocabulary counts as padded (Megatron-LM pads it to a multiple of 128 t).
"""

from __future__ import annotations

import numpy as np
from synergy_core.records import ModelSpec

from synergyd.jobmodel.model.arrays import PRECISION, Bools, Floats, Ints, PlanArrays
from synergyd.jobmodel.model.dims import Dims, dims
from synergyd.jobmodel.model.hardware import GpuFigures

# bytes of one load of a tensor core's kernel (NVIDIA, "Matrix Multiplication Background User's Guide")
_VECTOR_BYTES = 16
_WORD_BYTES = 4  # the least that Ampere's asynchronous copy takes (PTX ISA, cp.async)
# head widths that FlashAttention-2 is compiled for (its csrc/flash_attn/src, from version 2.6 on); others are padded to the next
_KERNEL_WIDTHS = np.array([32.0, 64.0, 96.0, 128.0, 192.0, 256.0])
HEAD_MULTIPLE = 8
# PyTorch copies heads of other widths into padded ones: an H100 took twice as long as for the padded width
# itself (docs/design/measurements/gpu.md)
_PADDING_COPIES = 2.0


def gemm_slowdown(width: Floats | Ints, operand_bytes: Floats, gpu: GpuFigures) -> Floats:
    """Return the time of a GEMM with an inner or output dimension of `width` elements over that of the next aligned one, (N,)."""
    in_bytes = width * operand_bytes
    narrow = np.where(in_bytes % _WORD_BYTES == 0, gpu.misaligned_gemm, gpu.odd_gemm)
    return np.asarray(np.where(in_bytes % _VECTOR_BYTES == 0, 1.0, narrow))


def gemm_slowdowns(model: Dims, gpu: GpuFigures, t: Ints, operand_bytes: Floats) -> tuple[Floats, ...]:
    """Return the `gemm_slowdown` of the GEMMs of a layer that is split over `t` ranks: four arrays of (N,) or ().

    They are the projections, the MLP without and with experts, and the shared expert. Each is the worse of the hidden width and
    of a rank's part of the other width.
    """
    most = int(t.max()) if t.size else 1
    unit = most * _VECTOR_BYTES // (1 if np.any(operand_bytes < 2) else 2)
    widths = (model.query, model.dense_ffn, model.ffn, model.shared_ffn)
    if not (most % t).any() and not any(np.any(width % unit) for width in (model.hidden * most, *widths)):
        one = np.asarray(1.0)  # aligned for the most ranks, so for their divisors too
        return one, one, one, one
    whole = gemm_slowdown(model.hidden, operand_bytes, gpu)
    return tuple(np.maximum(whole, gemm_slowdown(width / t, operand_bytes, gpu)) for width in widths)


def not_fused(model: Dims, plans: PlanArrays) -> Bools:
    """Return whether head width or precision rule out fused attention, (N,).

    Transformer Engine's kernels take multiples of 8 alone, and it computes the scores in full otherwise. PyTorch's own attention,
    which FSDP's models use, pads. None of them takes fp32 (FlashAttention's kernels are of half precision).
    """
    unlike = (model.query / model.heads % HEAD_MULTIPLE != 0) & (plans.zero_stage < 3)
    return np.asarray(unlike | (plans.precision == PRECISION.index("fp32")))


def keeps_scores(model: Dims, plans: PlanArrays) -> Bools:
    """Return whether the attention's scores are kept, (N,): PyTorch's memory-efficient kernel takes fp32, and keeps none."""
    return np.asarray(not_fused(model, plans) & (plans.precision != PRECISION.index("fp32")))


def fuses(model: ModelSpec, plans: PlanArrays) -> bool:
    """Return whether attention is fused in all of `plans` of one model."""
    return not np.any(not_fused(dims(model), plans))


def fused_slowdown(model: Dims) -> Floats:
    """Return the FLOPs of fused attention's kernel over those that the head width needs, times what padding takes."""
    head = np.asarray(model.query / model.heads)
    place = np.minimum(np.searchsorted(_KERNEL_WIDTHS, head), len(_KERNEL_WIDTHS) - 1)
    padded = np.maximum(1.0, _KERNEL_WIDTHS[place] / head)
    return np.asarray(np.where(head % HEAD_MULTIPLE == 0, padded, padded * _PADDING_COPIES))
