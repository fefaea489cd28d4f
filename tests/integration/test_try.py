"""`synergy-launch --try` of a plain DDP loop: the user's own proof, and its refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import python_path

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("plain_loop.py")


def tried(folder: Path, loop: str) -> subprocess.CompletedProcess[str]:
    batch, output = folder / "train.sh", folder / "run"
    batch.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:2\n#SYNERGY checkpoint={output} loop={loop}\n"
        f"srun synergy-launch python {SCRIPT} --out {output} --batch_size 4 --steps 100000\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))}
    environment |= {"PYTHONPATH": python_path(""), "DELAY": "0.01"}
    argv = [sys.executable, "-m", "synergy_launch.launcher.command", "--try", str(batch)]
    done = subprocess.run(argv, env=environment, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    assert not output.exists() and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def test_a_loop_that_keeps_its_batch_is_as_if_left_alone(tmp_path: Path) -> None:
    done = tried(tmp_path, "gpu:--batch_size,resume:--resume")
    assert done.returncode == 0 and "as if left alone (" in done.stdout, done.stdout + done.stderr[-3000:]
    assert "8 | 8 | the same" in done.stdout and "seen once: the same" in done.stdout


def test_a_wrong_directive_is_found(tmp_path: Path) -> None:
    """The script does not share out 8 by itself: on one process it trains 4."""
    done = tried(tmp_path, "global:8,resume:--resume")
    assert done.returncode == 1 and "NOT as if left alone (" in done.stdout, done.stdout + done.stderr[-3000:]
    assert "8 | 4 | DIFFERS" in done.stdout
