"""What the launcher's sampler says of a GPU that is idle, and of one whose load is known, and what a reading costs."""

from __future__ import annotations

import time
from typing import Any

import torch
from synergy_launch.launcher.gpus.nvml import Nvml
from synergy_launch.launcher.gpus.reading import GpuReading
from synergy_launch.launcher.gpus.samples import EVERY_S, GpuSampler

from tests.gpu import device

_OWN = {"CUDA_VISIBLE_DEVICES": "0"}
_READINGS = 50


def idle() -> dict[str, Any]:
    """The second of two readings, 2 s apart, while nothing runs."""
    return _between(lambda: time.sleep(2.0))


def matmuls(size: int, seconds: float = 4.0) -> dict[str, Any]:
    """The same over bf16 products of `size`, with the TFLOP/s that the products reached by the clock."""
    a, b = (torch.randn(size, size, device=device.DEVICE, dtype=torch.bfloat16) for _ in range(2))
    done, took_s = 0, 0.0

    def work() -> None:
        nonlocal done, took_s
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                a @ b
            device.settle()
            done += 20
        took_s = time.perf_counter() - began

    found = _between(work)
    return {**found, "tflops": 2 * size**3 * done / took_s / 1e12}


def copies(size_bytes: int, seconds: float = 4.0) -> dict[str, Any]:
    """The same over copies within the GPU, which use no tensor core."""
    a = torch.empty(size_bytes, device=device.DEVICE, dtype=torch.uint8)
    b = torch.empty_like(a)

    def work() -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                b.copy_(a)
            device.settle()

    return _between(work)


def cost() -> dict[str, float]:
    """CPU seconds of a reading, and the share of one CPU that a reading every EVERY_S takes."""
    reader = Nvml(_OWN)
    began = time.thread_time()
    for _ in range(_READINGS):
        reader.read()
    taken_s = (time.thread_time() - began) / _READINGS
    reader.close()
    return {"cpu_s": taken_s, "share": taken_s / EVERY_S}


def sampled(size: int) -> dict[str, Any]:
    """The sampler's own means, as reports carry them, of some seconds of products."""
    a = torch.randn(size, size, device=device.DEVICE, dtype=torch.bfloat16)
    sampler = GpuSampler(lambda: Nvml(_OWN), every_s=0.5)
    began = time.perf_counter()
    while time.perf_counter() - began < 4.0:
        a @ a
        device.settle()
    sampler.close()
    latest = sampler.latest
    if latest is None:
        raise RuntimeError("the sampler read nothing in 4 s")
    return {"samples": latest.samples, "utilisation": latest.utilisation, "sm": latest.sm, "tensor": latest.tensor}


def _between(work: Any) -> dict[str, Any]:
    reader = Nvml(_OWN)
    reader.read()
    work()
    (found,) = reader.read()
    reader.close()
    return _fields(found)


def _fields(one: GpuReading) -> dict[str, Any]:
    return {
        "utilisation": one.utilisation,
        "memory_gib": one.memory_bytes / 2**30 if one.memory_bytes is not None else None,
        "power_w": one.power_w,
        "sm": one.sm,
        "tensor": one.tensor,
    }
