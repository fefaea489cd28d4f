"""Whether the host has room for copies of the training state, made while a checkpoint is written beside training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from synergy_launch.agent.host_memory import free_bytes

_COPY_SHARE = 0.5  # of the host's free memory, for copies of the state while it is written


def not_copied(state: Mapping[str, Any]) -> str:
    """Why a copy of `state` by every process of this node would take more of the host's memory than half of what is left;
    "" where it would not. Each process copies all that it holds: under DDP that is everything."""
    needed, free = _bytes(state) * int(os.environ.get("LOCAL_WORLD_SIZE") or 1), free_bytes()
    if free is None or needed <= _COPY_SHARE * free:
        return ""
    return f"a copy beside training needs {needed / 2**30:.1f} GiB of host memory, and {free / 2**30:.1f} GiB are left"


def _bytes(state: Any) -> int:
    """Of all tensors in nested mappings and sequences, as far as this process holds them."""
    if isinstance(state, torch.Tensor):
        local = state.to_local() if hasattr(state, "to_local") else state
        return int(local.numel() * local.element_size())
    if isinstance(state, Mapping):
        return sum(_bytes(one) for one in state.values())
    return sum(_bytes(one) for one in state) if isinstance(state, (list, tuple)) else 0
