"""Peak memory of this process' GPU."""

from __future__ import annotations


def peak_memory() -> int | None:
    """Bytes that torch had allocated at most; None without a GPU, where a plan's memory has nothing to compare with."""
    import torch

    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None
