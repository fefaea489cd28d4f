"""The device of this process: its memory, and batches on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def peak_memory() -> int | None:
    """Return the most bytes that torch had allocated; None without a GPU, where a plan's memory has nothing to compare with."""
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


def device_memory() -> int | None:
    """Return the bytes of the GPU; None without one."""
    return (
        int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
        if torch.cuda.is_available()
        else None
    )


def on_device(device: Any, batch: Any) -> Any:
    """Return `batch` with all tensors of nested mappings and sequences on `device`; a mapping that can't move itself becomes a dict."""
    if isinstance(batch, torch.Tensor) or (isinstance(batch, Mapping) and hasattr(batch, "to")):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: on_device(device, value) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a namedtuple
        return type(batch)(*(on_device(device, value) for value in batch))
    return [on_device(device, value) for value in batch] if isinstance(batch, (list, tuple)) else batch
