"""Rates as they are computed from trials, with a torch whose work takes a known time of a known clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from synergy_launch.node_check import __main__ as child
from synergy_launch.node_check import measures
from synergy_launch.node_check.measures import COPY_BYTES, CPU, GPU_PRODUCTS, GPU_ROWS, rate_of_copies, rate_of_products

GPUS = ("cuda:0", "cuda:1")


class FakeTorch:
    """GPUs that work beside each other and are waited for. `seconds`: of a product or copy, by device; ten times that in `slow` trials."""

    float32, bfloat16, uint8 = "fp32", "bf16", "u8"

    def __init__(self, seconds: dict[str, float], slow: tuple[int, ...] = ()) -> None:
        self.now_s, self._seconds, self._slow = 0.0, seconds, slow
        self._busy = dict.fromkeys(seconds, 0.0)
        self.made: list[tuple[Any, ...]] = []
        self._trial = 0
        self.cuda = SimpleNamespace(synchronize=self._wait)

    def randn(self, *size: int, device: str, dtype: str) -> SimpleNamespace:
        self.made.append((*size, device, dtype))
        return SimpleNamespace(device=device, copy_=lambda source: self._work(source.device))

    ones = randn

    def empty_like(self, tensor: SimpleNamespace) -> SimpleNamespace:
        return tensor

    def mm(self, a: SimpleNamespace, _: SimpleNamespace, out: SimpleNamespace) -> None:
        assert out.device == a.device
        self._work(a.device)

    def _work(self, device: str) -> None:
        seconds = self._seconds[device] * (10 if self._trial in self._slow else 1)
        if device == "cpu":
            self.now_s += seconds
        else:
            self._busy[device] = max(self._busy[device], self.now_s) + seconds

    def _wait(self, device: str) -> None:
        self.now_s = max(self.now_s, self._busy[device])
        self._trial += device == GPUS[-1]


def test_gpus_multiply_at_once_in_bf16_and_the_slowest_sets_the_rate() -> None:
    torch = FakeTorch({"cuda:0": 0.002, "cuda:1": 0.004})
    assert rate_of_products(torch, GPUS, lambda: torch.now_s) == pytest.approx(2.0 * GPU_ROWS**3 / 0.004)
    assert torch.made == [(GPU_ROWS, GPU_ROWS, device, "bf16") for device in GPUS]
    assert torch.now_s < measures.TRIALS_S + 2 * 0.004 * GPU_PRODUCTS + 1e-9, "the trials, the first and the last one"


def test_cpus_multiply_in_fp32() -> None:
    torch = FakeTorch({"cpu": 0.01})
    assert rate_of_products(torch, CPU, lambda: torch.now_s) == pytest.approx(2.0 * measures.CPU_ROWS**3 / 0.01)
    assert torch.made == [(measures.CPU_ROWS, measures.CPU_ROWS, "cpu", "fp32")]


def test_a_copy_counts_read_and_written_bytes() -> None:
    torch = FakeTorch({"cuda:0": 0.001, "cuda:1": 0.002})
    assert rate_of_copies(torch, GPUS, lambda: torch.now_s) == pytest.approx(2.0 * COPY_BYTES / 0.002)


def test_trials_that_something_else_made_slow_do_not_count() -> None:
    quiet = FakeTorch({"cuda:0": 0.002, "cuda:1": 0.002})
    disturbed = FakeTorch({"cuda:0": 0.002, "cuda:1": 0.002}, slow=(0, 1, 3, 4))
    rates = [rate_of_products(each, GPUS, lambda each=each: each.now_s) for each in (quiet, disturbed)]  # type: ignore[misc]
    assert rates[0] == pytest.approx(rates[1])


def test_however_slow_a_device_is_there_are_few_trials() -> None:
    torch = FakeTorch({"cpu": 1.0})
    rate_of_copies(torch, CPU, lambda: torch.now_s)
    assert torch.now_s == 1.0 + measures.LEAST_TRIALS


def test_the_worst_gpu_speaks_for_the_node() -> None:
    states = (
        SimpleNamespace(sm_clock_hz=1.98e9, nvlinks=18, throttled=False),
        SimpleNamespace(sm_clock_hz=1.2e9, nvlinks=17, throttled=True),
        SimpleNamespace(sm_clock_hz=None, nvlinks=None, throttled=False),
    )
    driver: Any = SimpleNamespace(read_states=lambda: states)
    assert child._driver_figures(driver) == {"sm_clock_hz": 1.2e9, "nvlinks": 17, "throttled": True}
    nothing: Any = SimpleNamespace(read_states=lambda: states[2:])
    assert child._driver_figures(nothing) == {"sm_clock_hz": None, "nvlinks": None, "throttled": False}
