"""`make demo` as a test: real Slurm, real torchrun with megatron-core, real resizes. It checks its own claims."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slurm
@pytest.mark.training
@pytest.mark.timeout(920)
def test_the_demo_does_what_it_claims() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo"], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "every claim was checked against the step logs" in done.stdout
