"""Seconds of a restart in place: the old process ends, the launcher's torchrun starts the next one, which makes a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.paths import ROOT, python_path

_PHASES = ("python", "imports", "device", "build", "load", "step")
_START_S = 150.0
_END_S = 60.0  # torchrun kills its workers after 30 s


def _start(folder: Path, kind: str) -> Any:
    command = [sys.executable, "-m", "synergy_launch.launcher.torchrun", "--standalone", "--nproc-per-node", "1"]
    environment = {**os.environ, "PYTHONPATH": python_path(), "SYNERGY_GRACE_S": "0", "OMP_NUM_THREADS": "8"}
    return subprocess.Popen(
        [*command, "-m", "tests.gpu.restarted", str(folder), kind], cwd=ROOT, env=environment, start_new_session=True
    )


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
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measure(folder: Path, kind: str) -> dict[str, Any]:
    """`folder` may hold a checkpoint of the same model; both processes go on from there (no grace: the first saves nothing)."""
    folder.mkdir(parents=True, exist_ok=True)
    process = _start(folder, kind)
    try:
        _moments(folder, process)
        told = time.time()
        process.send_signal(signal.SIGTERM)
        process.wait(_START_S)
        ended = time.time()
        process = _start(folder, kind)
        found = _moments(folder, process)
    finally:
        _end(process)
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
        **{f"{phase}_s": seconds for phase, seconds in phases.items()},
    }
