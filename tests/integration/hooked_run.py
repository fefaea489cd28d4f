"""Runs of unmodified scripts under synergy-launch as in a Slurm job of one node, under torchrun and gloo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from synergy_core.records import Plan, Shape
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile

from tests.integration.library_run import started, wait_for_end
from tests.integration.test_training_pytorch import wait_for
from tests.paths import python_path

JOB = 9


@contextmanager
def launched(
    folder: Path,
    words: Sequence[str],
    gpus: int,
    restarts: int = 0,
    *,
    asked: int = 2,
    needs: str = "",
    plan: bool = True,
    environment: dict[str, str] | None = None,
    **hand_over: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """`synergy-launch WORDS` on `gpus` processes in a job that asked for `asked`; output in FOLDER/out. Killed when the block ends."""
    chosen = Plan(dp=gpus, global_batch=8 * gpus, micro_batch=8) if plan else None
    plan_file.write(PlanFile(JOB, chosen, asked=Shape("a100", 1, asked), own_batch=True, **hand_over), folder / "state")
    slurm = {
        "JOB_ID": str(JOB), "JOB_NODELIST": "n1", "STEP_ID": "0", "PROCID": "0", "NODEID": "0", "STEP_NUM_NODES": "1",
        "STEP_NUM_TASKS": "1", "GPUS_ON_NODE": str(gpus), "RESTART_COUNT": str(restarts),
    }  # fmt: skip
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))}
    full = {
        **clean, **{f"SLURM_{name}": value for name, value in slurm.items()}, "SYNERGY_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": python_path(needs), "HF_HUB_OFFLINE": "1", "SYNERGY_HOLD_S": "60", "TMPDIR": str(folder), **(environment or {}),
    }  # fmt: skip
    with started(folder, [sys.executable, "-m", "synergy_launch.launcher.command", *words], full, folder) as process:
        yield process


def run_to_end(folder: Path, *args: Any, code: int = 0, **more: Any) -> str:
    """Run to the end, with this exit code. Return the output of all runs so far."""
    with launched(folder, *args, **more) as process:
        return wait_for_end(folder, process, code)


def run_until(folder: Path, is_reached: Callable[[], bool], *args: Any, **more: Any) -> None:
    """Run until `is_reached`, then end it as Slurm ends a preempted job: by SIGTERM to all processes of the step."""
    with launched(folder, *args, **more) as process:
        wait_for(lambda: process.poll() is not None or is_reached(), "the point at which it is ended", 240)
        assert process.poll() is None, (folder / "out").read_text()[-4000:]
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=120)
