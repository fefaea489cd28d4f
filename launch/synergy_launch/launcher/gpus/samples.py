"""Samples of this node's GPUs for the reports: a reading every 10 s, from a thread that takes less than a thousandth of a CPU."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from synergy_core.job_report import GpuActivity

from synergy_launch.launcher.gpus.amdgpu import AmdGpus
from synergy_launch.launcher.gpus.nvml import Nvml
from synergy_launch.launcher.gpus.reading import GpuReader, GpuReading

EVERY_S = 10.0
CPU_SHARE = 0.001  # of one CPU: where a reading takes longer, the pause after it is longer
RECENT = 30  # samples in the recent means: five minutes


class Means:
    """The means of readings: of the last RECENT samples, and of all."""

    def __init__(self) -> None:
        self._recent: deque[tuple[GpuReading, ...]] = deque(maxlen=RECENT)
        self._begun_s = 0.0
        self._run = {"utilisation": [0.0, 0], "power_w": [0.0, 0]}  # sum and number, by field

    def add(self, readings: tuple[GpuReading, ...], now_s: float) -> GpuActivity:
        """Take one reading of each GPU in. Return the means."""
        self._begun_s = self._begun_s or now_s
        self._recent.append(readings)
        run: dict[str, float | None] = {}
        for name, total in self._run.items():
            values = [value for each in readings if (value := getattr(each, name)) is not None]
            total[0] += sum(values)
            total[1] += len(values)
            run[name] = round(total[0] / total[1], 3) if total[1] else None
        recent = [each for sample in self._recent for each in sample]
        return GpuActivity(
            gpus=len(readings),
            samples=len(self._recent),
            utilisation=_mean(each.utilisation for each in recent),
            memory_bytes=max((each.memory_bytes for each in readings if each.memory_bytes is not None), default=None),
            power_w=_mean(each.power_w for each in recent),
            sm=_mean(each.sm for each in recent),
            tensor=_mean(each.tensor for each in recent),
            run_s=round(now_s - self._begun_s, 1),
            run_utilisation=run["utilisation"],
            run_power_w=run["power_w"],
        )


def open_driver(environ: Mapping[str, str]) -> GpuReader:
    """Return a reader of this job's GPUs, NVIDIA's or AMD's. Raises OSError where there is neither."""
    try:
        return Nvml(environ)
    except OSError:
        return AmdGpus(environ)


class GpuSampler:
    """A thread that reads the GPUs; with a broken one a reading may never end. `latest` is None as long as nothing is known.

    `make_reader` raises OSError where there is nothing to read: then the thread ends, and nothing is said.
    """

    def __init__(
        self, make_reader: Callable[[], GpuReader] = lambda: open_driver(os.environ), every_s: float = EVERY_S
    ) -> None:
        self.latest: GpuActivity | None = None
        self._busiest: tuple[float, float] | None = None  # in percent, and until when it counts (monotonic)
        self._make_reader, self._every_s = make_reader, every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpu-samples", daemon=True)
        self._thread.start()

    def busiest(self) -> float | None:
        """Return the highest utilisation of a GPU, 0 to 100, or None if none was read lately."""
        return self._busiest[0] if self._busiest is not None and time.monotonic() < self._busiest[1] else None

    def close(self) -> None:
        """End the thread after the reading that it may be at."""
        self._closed.set()

    def _loop(self) -> None:
        try:
            reader = self._make_reader()
        except OSError:
            return
        means = Means()
        pause_s = self._every_s
        while not self._closed.wait(pause_s):
            began_s = time.thread_time()
            readings = reader.read()
            self.latest = means.add(readings, time.monotonic())
            busy = [each.utilisation for each in readings if each.utilisation is not None]
            pause_s = max(self._every_s, (time.thread_time() - began_s) / CPU_SHARE)
            self._busiest = (100.0 * max(busy), time.monotonic() + 2 * pause_s) if busy else None
        reader.close()


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(sum(numbers) / len(numbers), 3) if numbers else None
