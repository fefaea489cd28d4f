"""Peak memory of this process' GPU."""

from __future__ import annotations


def peak_memory() -> int | None:
    """Bytes that torch had allocated at most; None without a GPU, where there is nothing to compare a plan's memory with."""
    import torch

    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None
