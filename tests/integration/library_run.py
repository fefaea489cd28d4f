"""Runs of a training library's own loop under torchrun and gloo, with Synergy's adapter for it, and what their ranks saw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.test_training_pytorch import status_of, wait_for
from tests.paths import ROOT, python_path


@contextmanager
def started(
    folder: Path, command: list[str], environment: dict[str, str], cwd: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a group of processes, with its output in FOLDER/out; the group is killed when the block ends."""
    with (folder / "out").open("a") as out:
        process = subprocess.Popen(command, env=environment, cwd=cwd, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_end(folder: Path, process: subprocess.Popen[bytes], code: int) -> str:
    """Wait for the exit code `code`. Return the output of all runs so far."""
    ended = process.wait(timeout=240)
    text = (folder / "out").read_text()
    assert ended == code, text[-4000:]
    return text


@contextmanager
def training(
    folder: Path,
    output: Path,
    dp: int,
    micro: int,
    run_dir: Path,
    *arguments: str,
    script: tuple[str, str],
    needs: str = "",
    batch: int = 8,
) -> Iterator[Any]:
    """A run of `script` (a module of this folder, and its option for `output`); it is killed when the block ends. `needs`: a folder of
    packages."""
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(needs),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "DS_ACCELERATOR": "cpu",
        "SYNERGY_RUN_DIR": str(run_dir),
        "SYNERGY_HOLD_S": "60",
        "SYNERGY_PLAN_JSON": json.dumps({"dp": dp, "global_batch": batch, "micro_batch": micro}),
    }
    command = [sys.executable, "-m", "synergy_launch.launcher.torchrun", "--standalone", "--nproc-per-node", str(dp)]
    command += ["-m", f"tests.integration.{script[0]}", script[1], str(output), *arguments]
    with started(folder, command, environment, ROOT) as process:
        yield process


def finished(folder: Path, *args: Any, code: int = 0, **more: Any) -> str:
    """A run to its end, with this exit code; what it has printed."""
    with training(folder, *args, **more) as process:
        return wait_for_end(folder, process, code)


def until(
    folder: Path, output: Path, dp: int, micro: int, run_dir: Path, step: int, *arguments: str, **more: Any
) -> None:
    """The run is ended as a preempted one is, at this step or soon after."""
    with training(folder, output, dp, micro, run_dir, *arguments, "--delay", "0.2", **more) as process:

        def reached() -> bool:
            return (run_dir / "status.json").exists() and status_of(run_dir)["step"] >= step

        wait_for(lambda: process.poll() is not None or reached(), f"step {step}", 240)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    assert status_of(run_dir)["checkpoint_step"] == status_of(run_dir)["step"] < 30, (folder / "out").read_text()[
        -4000:
    ]
