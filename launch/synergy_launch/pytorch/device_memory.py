"""Memory of this process' GPU: what was used of it, and what there is."""

from __future__ import annotations


def peak_memory() -> int | None:
    """Return the most bytes that torch had allocated; None without a GPU, where a plan's memory has nothing to compare with."""
    import torch

    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


def device_memory() -> int | None:
    """Return the bytes of the GPU; None without one."""
    import torch

    return (
        int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
        if torch.cuda.is_available()
        else None
    )
