"""The child that measures this node: one JSON object a line on standard output, `{"begins": MEASURE}` before each measurement.

Its first line says that it is ready: its imports and the start of CUDA, which depend on file systems and on the driver's settings, are
over. It ends itself after LIFE_S, should its launcher be gone. Its errors are nobody's business: the job's output shows none.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any

from synergy_launch.launcher.gpus.nvml import Nvml
from synergy_launch.node_check import measures
from synergy_launch.node_check.adapters import read_network_rate
from synergy_launch.node_check.check import LIFE_S


def main() -> None:
    """Measure, and write each figure as soon as it is known."""
    signal.alarm(LIFE_S)
    with contextlib.suppress(OSError):  # it leads a group already, in a shell
        os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import torch

    cpus = len(os.sched_getaffinity(0))
    devices = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0))
    for each in devices:
        torch.ones(1, device=each)
    name = torch.cuda.get_device_name(0) if devices else ""
    torch.set_num_threads(cpus)
    _say(ready=True, gpus=len(devices), cpus=cpus, device=name)
    _measure(torch, devices)


def _measure(torch: Any, devices: tuple[str, ...]) -> None:
    driver = _open_driver() if devices else None
    _say(begins="network_bits_per_s")
    _say(network_bits_per_s=read_network_rate())
    _say(begins="gemm_flops")
    _say(gemm_flops=measures.rate_of_products(torch, devices or measures.CPU, time.perf_counter))
    if driver is not None:
        _say(begins="sm_clock_hz")
        _say(**_driver_figures(driver))
    if devices:
        _say(begins="device_bytes_per_s")
        _say(device_bytes_per_s=measures.rate_of_copies(torch, devices, time.perf_counter))
    _say(begins="host_bytes_per_s")
    _say(host_bytes_per_s=measures.rate_of_copies(torch, measures.CPU, time.perf_counter))


def _open_driver() -> Nvml | None:
    try:
        return Nvml(os.environ)
    except OSError:
        return None


def _driver_figures(driver: Nvml) -> dict[str, Any]:
    """Return what NVML says of the GPUs now, of the worst one."""
    states = driver.read_states()
    clocks = [state.sm_clock_hz for state in states if state.sm_clock_hz is not None]
    links = [state.nvlinks for state in states if state.nvlinks is not None]
    return {
        "sm_clock_hz": min(clocks, default=None),
        "nvlinks": min(links, default=None),
        "throttled": any(state.throttled for state in states),
    }


def _say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
