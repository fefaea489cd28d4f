"""The device that a part runs on, and how its time and memory are had."""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
_FLUSH_BYTES = 1 << 28  # more than any L2


def name() -> str:
    return torch.cuda.get_device_name(0) if CUDA else f"CPU, {platform.machine()}"


def gpu_type() -> str:
    """As synergyd's hardware figures call it; a CPU borrows the H100's name, so that a tiny run reaches every line."""
    from synergyd.jobmodel.model.hardware import canonical

    return (canonical(name().lower().replace(" ", "_")) if CUDA else None) or "h100"


def settle() -> None:
    if CUDA:
        torch.cuda.synchronize()


def free_memory() -> None:
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def reset_peak() -> None:
    free_memory()
    if CUDA:
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int:
    """Bytes that torch had allocated at most since `reset_peak`; 0 on a CPU."""
    return int(torch.cuda.max_memory_allocated()) if CUDA else 0


def seconds_of_steps(step: Callable[[], Any], steps: int) -> float:
    """Seconds a step of `steps` in a row, without waiting for the device between them."""
    settle()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    settle()
    return (time.perf_counter() - began) / steps


def kernel_s(call: Callable[[], Any], least_s: float) -> float:
    """Median seconds of one `call`, its inputs not in the cache; by events on a GPU, of as many calls as take `least_s`."""
    for _ in range(3):
        call()
    settle()
    if not CUDA:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    flush = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device=DEVICE)
    taken: list[float] = []
    while len(taken) < 5 or (sum(taken) < least_s and len(taken) < 50):
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        stop.record()
        stop.synchronize()
        taken.append(float(start.elapsed_time(stop)) / 1000)
    return statistics.median(taken)
