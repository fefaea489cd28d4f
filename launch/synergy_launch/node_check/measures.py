"""Rates of matrix products and copies, on this job's GPUs or CPUs. torch and the clock are arguments.

A rate is the best of several short trials: what else runs for a moment makes a trial slow, and nothing makes one fast. All GPUs work at
once, and the slowest one sets the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Clock = Callable[[], float]
CPU = ("cpu",)
#: seconds of trials of one measurement, at the most; and the least number of trials, however long they take
TRIALS_S, LEAST_TRIALS = 0.5, 3
#: rows of the square matrices. Four products of 8192 in bf16 take an H100 7 ms (647 TFLOP/s, docs/design/measurements/gpu.md)
GPU_ROWS, GPU_PRODUCTS, CPU_ROWS, CPU_PRODUCTS = 8192, 4, 1024, 1
#: bytes of a copy: five times an H100's cache of 50 MB, and beyond a CPU's
COPY_BYTES = 256 << 20


def rate_of_products(torch: Any, devices: Sequence[str], clock: Clock) -> float:
    """Return the FLOP/s of matrix products on the slowest of `devices` ("cpu" or "cuda:N"): in bf16 on GPUs, in fp32 on CPUs."""
    on_cpu = devices == CPU
    rows, products, dtype = (
        (CPU_ROWS, CPU_PRODUCTS, torch.float32) if on_cpu else (GPU_ROWS, GPU_PRODUCTS, torch.bfloat16)
    )
    factors = [torch.randn(rows, rows, device=each, dtype=dtype) for each in devices]
    results = [torch.empty_like(each) for each in factors]

    def run() -> None:
        for factor, result in zip(factors, results, strict=True):
            for _ in range(products):
                torch.mm(factor, factor, out=result)
        _finish(torch, devices)

    return products * 2.0 * rows**3 / min(_trials(run, clock))


def rate_of_copies(torch: Any, devices: Sequence[str], clock: Clock) -> float:
    """Return the bytes read and written a second by copies in the memory of the slowest of `devices`."""
    sources = [torch.ones(COPY_BYTES, device=each, dtype=torch.uint8) for each in devices]
    targets = [torch.empty_like(each) for each in sources]

    def run() -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        _finish(torch, devices)

    return 2.0 * COPY_BYTES / min(_trials(run, clock))


def _finish(torch: Any, devices: Sequence[str]) -> None:
    for each in devices:
        if each not in CPU:
            torch.cuda.synchronize(each)


def _trials(run: Callable[[], None], clock: Clock) -> Iterator[float]:
    """Yield the seconds of each trial; the first call, which loads what it needs, is none."""
    run()
    began_s, trials = clock(), 0
    while trials < LEAST_TRIALS or clock() - began_s < TRIALS_S:
        start_s = clock()
        run()
        yield clock() - start_s
        trials += 1
