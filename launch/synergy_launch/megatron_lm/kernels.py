"""The kernels of a Megatron-LM run, from its command line and from what can be imported beside it (core_v0.16.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec

from synergy_core.kernels import TORCH_RMS_NORM, UNKNOWN, Kernels

from synergy_launch.megatron_lm.options import has_option, option_values

TRANSFORMER_ENGINE, APEX = "transformer_engine", "apex"
_SOFTMAX, _ACCUMULATION = (
    "scaled_upper_triang_masked_softmax_cuda",
    "fused_weight_gradient_mlp_cuda",
)  # Apex's extensions
_TE_BY_DEFAULT_FROM = (0, 6)  # core_v0.5: --transformer-impl local
_UNFUSED_ATTENTION = ("unfused", "local")  # --attention-backend
_IN_FP32 = ("--attention-softmax-in-fp32", "--apply-query-key-layer-scaling")
_MCORE_BY_DEFAULT_FROM = (
    0,
    8,
)  # before, --use-mcore-models; the older models alone have local layers with --use-flash-attn


def is_importable(name: str) -> bool:
    """Return whether the top-level module `name` can be found, without importing it."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # half installed
        return False


def torch_version() -> tuple[int, int] | None:
    """Return (major, minor) of torch, or None where it is not installed. It is not imported."""
    try:
        numbers = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", metadata.version("torch"))
    except (metadata.PackageNotFoundError, TypeError):  # TypeError: its metadata lack a version
        return None
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def detect_kernels(
    argv: Sequence[str],
    version: tuple[int, int] | None,
    is_there: Callable[[str], bool] = is_importable,
    torch: tuple[int, int] | None = None,
) -> Kernels:
    """Return the kernels that the command line `argv` runs with.

    `version`: Megatron-LM's, None where it is not known. `is_there`: whether a module can be imported. `torch`: its version. Nothing is
    known where Transformer Engine should be used, and can't be found from here.
    """
    implementation = (option_values(argv, "--transformer-impl") or [""])[-1]
    default = "" if version is None else TRANSFORMER_ENGINE if version >= _TE_BY_DEFAULT_FROM else "local"
    engine = (implementation or default) == TRANSFORMER_ENGINE
    if (implementation or default) not in (TRANSFORMER_ENGINE, "local") or (
        engine and not is_there(TRANSFORMER_ENGINE)
    ):
        return UNKNOWN
    backend = (option_values(argv, "--attention-backend") or [""])[-1]
    activation = "--no-bias-swiglu-fusion" if has_option(argv, "--swiglu") else "--no-bias-gelu-fusion"
    rms_norm = "RMSNorm" in option_values(argv, "--normalization")
    apart = not has_option(argv, "--no-masked-softmax-fusion") and (engine or is_there(_SOFTMAX))
    accumulates = not has_option(argv, "--no-gradient-accumulation-fusion")
    return Kernels(
        transformer_engine=engine,
        attention=backend not in _UNFUSED_ATTENTION if engine else _has_flash_attention(argv, version),
        softmax=apart or not any(has_option(argv, name) for name in _IN_FP32),
        norm=engine or not rms_norm or (None if torch is None else torch >= TORCH_RMS_NORM),
        pointwise=not (has_option(argv, "--no-bias-dropout-fusion") or has_option(argv, activation)),
        accumulation=accumulates and (engine or is_there(_ACCUMULATION)),
        optimizer=is_there(TRANSFORMER_ENGINE) or is_there(APEX),
        tp_overlap=engine and has_option(argv, "--tp-comm-overlap"),
        fp8=has_option(argv, "--fp8-format"),
    )


def _has_flash_attention(argv: Sequence[str], version: tuple[int, int] | None) -> bool:
    """Return whether local layers have FlashAttention: those of the models before megatron-core, if they are asked to."""
    old = version is not None and version < _MCORE_BY_DEFAULT_FROM and not has_option(argv, "--use-mcore-models")
    return has_option(argv, "--use-flash-attn") and (old or has_option(argv, "--use-legacy-models"))
