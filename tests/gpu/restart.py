"""Seconds of a restart in place: the old process ends, the launcher's torchrun starts the next one, which makes a step."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from synergy_launch.launcher.script.kind import heavy_imports
from synergy_launch.warm_start.client import ForkedProcess
from synergy_launch.warm_start.starter import Starter

from tests.paths import python_path

_PHASES = ("python", "imports", "device", "build", "load", "step")
_START_S = 150.0
_END_S = 60.0  # torchrun kills its workers after 30 s


def _start(folder: Path, kind: str, starter: Starter) -> Any:
    command = [sys.executable, "-m", "synergy_launch.launcher.torchrun", "--standalone", "--nproc-per-node", "1"]
    return starter.start(
        [*command, "-m", "tests.gpu.restarted", str(folder), kind], _environment(), output=False, errors=False
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path(), "SYNERGY_GRACE_S": "0", "OMP_NUM_THREADS": "1"}


def _moments(folder: Path, process: Any) -> dict[str, float]:
    deadline = time.monotonic() + _START_S
    while not (folder / "moments.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no first step: exit code {process.poll()}")
        time.sleep(0.01)
    found: dict[str, float] = json.loads((folder / "moments.json").read_text())
    (folder / "moments.json").unlink()
    return found


def _end(process: Any) -> None:
    """torchrun's workers are no members of its process group: it has to end them itself."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()


def measure(folder: Path, kind: str, *, warm: bool) -> dict[str, Any]:
    """`folder` may hold a checkpoint of the same model; both processes go on from there (no grace: the first saves nothing).

    `warm`: the second one is forked from a process that has made its imports while the first one trained.
    """
    folder.mkdir(parents=True, exist_ok=True)
    starter = Starter(heavy_imports("module:tests.gpu.restarted") if warm else ())
    process = _start(folder, kind, starter)
    try:
        _moments(folder, process)
        starter.prepare(_environment())
        starter.await_ready(_START_S)
        told = time.time()
        process.send_signal(signal.SIGTERM)
        process.wait(_START_S)
        ended = time.time()
        process = _start(folder, kind, starter)
        found = _moments(folder, process)
        forked = isinstance(process, ForkedProcess)
    finally:
        _end(process)
        starter.close()
    phases = dict(
        zip(
            _PHASES,
            (found[b] - (found[a] if a else ended) for a, b in zip(("", *_PHASES), _PHASES, strict=False)),
            strict=True,
        )
    )
    return {
        "stop_s": ended - told,
        "restart_s": found["step"] - ended,
        "went_on_from_step": found["first"],
        "warm": forked,
        **{f"{phase}_s": seconds for phase, seconds in phases.items()},
    }


@contextmanager
def memory_folder(least_bytes: float) -> Iterator[Path]:
    """A folder in /dev/shm. Raises RuntimeError where less than `least_bytes` are free."""
    free = shutil.disk_usage("/dev/shm").free
    if free < least_bytes:
        raise RuntimeError(f"/dev/shm has {free / 1e9:.1f} GB free, {least_bytes / 1e9:.1f} GB are needed")
    with tempfile.TemporaryDirectory(prefix="synergy-gpu-", dir="/dev/shm") as folder:
        yield Path(folder)
