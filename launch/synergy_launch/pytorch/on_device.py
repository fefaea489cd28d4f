"""Batches on the device of a model."""

from __future__ import annotations

from typing import Any

import torch


def on_device(device: Any, batch: Any) -> Any:
    """`batch` with all tensors of nested mappings and sequences on `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: on_device(device, value) for name, value in batch.items()}
    return [on_device(device, value) for value in batch] if isinstance(batch, (list, tuple)) else batch
