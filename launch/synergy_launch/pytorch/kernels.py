"""The kernels of a PyTorch loop, as its model and optimizer show them."""

from __future__ import annotations

from typing import Any

import torch
from synergy_core.kernels import TORCH_RMS_NORM, UNKNOWN, Kernels

_TORCH = tuple(int(part) if part.isdecimal() else 0 for part in torch.__version__.split(".")[:2])
_FUSED_NORMS = ("transformer_engine", "apex", "liger_kernel", "flash_attn", "torch.nn")
_FUSED_OPTIMIZERS = ("transformer_engine", "apex", "deepspeed")
_ATTENTION = {
    "eager": False,
    "sdpa": True,
    "flex_attention": True,
}  # config._attn_implementation of Hugging Face's models


def detect_kernels(model: torch.nn.Module, optimizer: Any = None) -> Kernels:
    """Return what the classes of the model's modules and of the optimizer tell; what they do not tell is not known.

    Attributes of a user's classes may run any code: where that fails, nothing is known, and training goes on.
    """
    try:
        return _detect(model, optimizer)
    except Exception:
        return UNKNOWN


def _detect(model: torch.nn.Module, optimizer: Any) -> Kernels:
    kinds = {type(module) for module in model.modules()}
    engine = any(_is_of(kind, ("transformer_engine",)) for kind in kinds)
    compiled = any(_is_of(kind, ("torch._dynamo",)) for kind in kinds)
    compiled = compiled or any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules())
    norms = [_is_fused_norm(kind) for kind in kinds if "LayerNorm" in kind.__name__ or "RMSNorm" in kind.__name__]
    return Kernels(
        transformer_engine=engine,
        attention=True if engine else _read_attention(model),
        norm=all(norms) if norms else None,
        optimizer=_is_fused_optimizer(getattr(optimizer, "optimizer", optimizer)),
        compiled=compiled,
    )


def _is_of(kind: type, packages: tuple[str, ...]) -> bool:
    """Return whether a class is defined in one of `packages`."""
    return any(kind.__module__ == name or kind.__module__.startswith(f"{name}.") for name in packages)


def _is_fused_norm(kind: type) -> bool:
    if _is_of(kind, ("torch.nn",)) and "RMSNorm" in kind.__name__:
        return _TORCH >= TORCH_RMS_NORM
    return _is_of(kind, _FUSED_NORMS)


def _read_attention(model: torch.nn.Module) -> bool | None:
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if not isinstance(name, str):
        return None
    return True if "flash" in name else _ATTENTION.get(name)


def _is_fused_optimizer(optimizer: Any) -> bool | None:
    """Return whether one kernel updates many parameters; None for an optimizer other than Adam."""
    kind = type(optimizer)
    if _is_of(kind, _FUSED_OPTIMIZERS):
        return True
    if kind not in (torch.optim.Adam, torch.optim.AdamW):
        return None
    return all(bool(group.get("fused")) for group in optimizer.param_groups)
