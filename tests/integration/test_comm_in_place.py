"""A plan's exchange that changes while a job runs: its launcher starts two gloo ranks again in place, and the losses go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile

from tests.integration import exchange_orders
from tests.integration.exchange_orders import ORDERS, PLAN, STEPS
from tests.integration.test_communication import trained
from tests.paths import python_path

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def test_the_exchange_is_taken_and_given_back_without_a_requeue(tmp_path: Path) -> None:
    checkpoints, notes = tmp_path / "checkpoints", tmp_path / "notes.jsonl"
    plan_file.write(PlanFile(9, PLAN, "daemon:1", checkpoint=str(checkpoints)), tmp_path)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))}
    slurm = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0",
             "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_GPUS_ON_NODE": "2"}  # fmt: skip
    here = {"PYTHONPATH": python_path(), "SYNERGY_STATE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, exchange_orders.__file__, "launcher", str(checkpoints), str(notes)],
        env={**kept, **slurm, **here},
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stderr.count("started again in place with another plan, by the daemon's order") == len(ORDERS)
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)), "no step is lost or made twice"
    runs = [[line for line in lines if line["pid"] == pid] for pid in dict.fromkeys(line["pid"] for line in lines)]
    assert [{line["told"] for line in run} for run in runs] == [{"exact"}, {"local:3"}, {"exact"}]
    assert {line["comm"] for run in (runs[0], runs[2]) for line in run} == {""}
    assert {line["comm"] for line in runs[1][1:]} == {"local:3"}, "in its first step the rate might still rise"
    # as far as the first change it is the run that nothing has interrupted
    changed, losses = len(runs[0]), [line["loss"] for line in lines]
    left_alone = trained(tmp_path / "alone", 2, "exact", None, STEPS)["losses"]
    assert losses[:changed] == pytest.approx(left_alone[:changed], abs=1e-6)
    assert losses[changed + 3 :] != pytest.approx(left_alone[changed + 3 :], abs=1e-4), "the test can tell them apart"
    # and from there on the one that each start of its own would have made
    ends = sorted({line["checkpoint_step"] for line in lines if line["checkpoint_step"]} | {STEPS})
    assert {changed, changed + len(runs[1])} <= set(ends)
    again: list[float] = []
    for first, last in pairwise([0, *ends]):
        told = lines[first]["told"]
        again += trained(tmp_path / f"to-{last}", 2, told, tmp_path / "by-hand", last)["losses"]
    assert losses == pytest.approx(again, abs=1e-6)
