"""Idle processes and GPUs of a node: CPU time from /proc, GPU utilisation from nvidia-smi or rocm-smi where there is one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

LEAST_S = 300.0
#: CPU seconds a second: a process that waits for its GPU spins on a core, one that polls a socket takes less
BUSY = 0.05
_LOOK_S = 15.0
_GPU_TIMEOUT_S = 20.0
# a tool, its arguments, and the utilisation of a GPU in what it prints
_TOOLS = (
    (
        ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"),
        re.compile(r"^\s*(\d+)\s*$", re.MULTILINE),
    ),
    (("rocm-smi", "--showuse", "--json"), re.compile(r'"GPU use \(%\)": *"?(\d+)')),
)
_TICKS_S = 1.0 / os.sysconf("SC_CLK_TCK")


def read_cpu_times(root: int) -> dict[int, float]:
    """Return the CPU seconds of each process below `root`, without `root` itself."""
    parents: dict[int, int] = {}
    cpu_s_by_pid: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(words[1])
                cpu_s_by_pid[int(entry.name)] = (int(words[11]) + int(words[12])) * _TICKS_S
    below, fresh = set[int](), {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - below
        below |= fresh
    return {pid: cpu_s_by_pid[pid] for pid in below}


class GpuUse:
    """GPU utilisation, asked from nvidia-smi or rocm-smi in a thread of its own: with a broken GPU it may never answer."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._most: float | None = None

    def ask(self) -> float | None:
        """Return the highest utilisation, 0 to 100, of the GPUs that this step can see, by the last answer; None where it is not known."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, name="gpu-use", daemon=True)
            self._thread.start()
        return self._most

    def _look(self) -> None:
        for words, use in _TOOLS:
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=_GPU_TIMEOUT_S, check=True)
                self._most = max(float(number) for number in use.findall(done.stdout))
                return
            except FileNotFoundError:
                continue  # the other vendor's
            except (OSError, subprocess.SubprocessError, ValueError):
                break
        self._most = None


class Idleness:
    """A watch over the processes below this one. Clock: seconds, monotonic. `least_s`: the shortest idle time that is told."""

    def __init__(
        self,
        now_s: float,
        least_s: float = LEAST_S,
        cpu: Callable[[], dict[int, float]] = lambda: read_cpu_times(os.getpid()),
        gpu: Callable[[], float | None] | None = None,
    ) -> None:
        self._least_s, self._cpu, self._gpu = least_s, cpu, gpu or GpuUse().ask
        self._every_s = min(_LOOK_S, least_s / 4)
        self._looked_s, self._since_s, self._told_s = now_s, now_s, 0.0
        self._used: dict[int, float] = {}
        self._moved: object = None

    def check(self, moved: object, now_s: float) -> float | None:
        """Return the seconds for which nothing was done, in strides that double; None where that is not long.

        `moved`: something that a running job changes, such as its step.
        """
        if moved != self._moved:
            self._moved, self._since_s = moved, now_s
        if now_s >= self._looked_s + self._every_s:
            self._look(now_s)
        idle_s = now_s - self._since_s
        if idle_s < self._least_s:
            self._told_s = 0.0
            return None
        if idle_s >= 2 * self._told_s:
            self._told_s = idle_s
        return round(self._told_s, 1)

    def _look(self, now_s: float) -> None:
        before, self._used = self._used, self._cpu()
        spent_s = sum(max(0.0, s - before.get(pid, 0.0)) for pid, s in self._used.items())
        busy = spent_s > BUSY * (now_s - self._looked_s)
        self._looked_s = now_s
        if busy or (self._gpu() or 0.0) > 1.0:
            self._since_s = now_s
