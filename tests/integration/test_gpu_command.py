"""`python -m tests.gpu` in sizes for a CPU: that it runs and what it writes, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from synergyd.jobmodel.fit.measured_runs import read_rows
from tests.gpu.sizes import TINY
from tests.paths import ROOT, python_path

pytestmark = pytest.mark.training


def test_the_tiny_run_writes_rows_and_a_table(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.gpu",
        "--tiny",
        "--only",
        "plain",
        "--only",
        "megatron",
        "--out",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = json.loads((tmp_path / "results.json").read_text())
    assert not found["failed"] and not found["out_of_memory"]
    # a run that was loaded goes on as the one that saved it
    checkpoint = found["parts"]["megatron"]["checkpoint"]
    assert checkpoint["next_after_load"] == pytest.approx(checkpoint["next"], rel=1e-5) != checkpoint["loss"]
    rows = read_rows(tmp_path / "gpu_rows.csv")
    assert len(rows) == len(TINY.plain) + len(TINY.megatron) == len(found["predictions"])
    assert {(row.plan.recompute, row.fused) for row in rows} == {
        ("none", True), ("full", True), ("none", False), ("selective", False)
    }  # fmt: skip
    assert all(p["step_s"] > 0 and p["predicted_s"] > 0 for p in found["predictions"])
    table = (tmp_path / "table.md").read_text()
    assert "megatron, overhead, 2 micro-batches" in table and "plain, checkpoint" in table
