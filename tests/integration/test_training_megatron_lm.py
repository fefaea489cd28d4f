"""synergy-launch, real torchrun and a script that behaves as Megatron-LM's pretrain_gpt.py does from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from synergy_core.records import Plan
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile

from tests.paths import ROOT, python_path
from tests.unit.launch.megatron_lm.test_supervisor import SCRIPT

pytestmark = pytest.mark.training

# Two workers: both save and leave together, the last one prints; the arguments are what the launcher made of them.
TWO = """
import json, os, sys
options = dict(zip(sys.argv[1:], [*sys.argv[2:], ""]))
save = options["--save"]
rank = int(os.environ["RANK"])
if rank == 0:
    with open(save + "/options.jsonl", "a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\\n")
    save += "/other"  # rank 1 keeps the tracker here
    os.makedirs(save, exist_ok=True)
    sys.stdout = open(os.devnull, "w")
sys.argv = [sys.argv[0], save, "200"]
"""


def test_a_request_reaches_the_workers_and_not_torchrun(tmp_path: Path) -> None:
    script, save, state = tmp_path / "pretrain_gpt.py", tmp_path / "save", tmp_path / "state"
    script.write_text(TWO + SCRIPT)
    save.mkdir()
    plan = Plan(dp=2, micro_batch=1, global_batch=8)
    path = plan_file.write(PlanFile(0, plan, "", str(save)), state)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))},
        "PYTHONPATH": python_path(), "SYNERGY_PLAN": str(path), "CUDA_VISIBLE_DEVICES": "0,1", "TMPDIR": str(tmp_path),
        "SYNERGY_HOLD_S": "0.5",
    }  # fmt: skip
    user = ["--num-layers", "4", "--num-attention-heads", "4", "--micro-batch-size", "8", "--global-batch-size", "8"]
    user += ["--seq-length", "64", "--hidden-size", "64"]
    command = [sys.executable, "-m", "synergy_launch.launcher.command", "--checkpoint", str(save), str(script), *user]
    with (tmp_path / "out").open("wb") as out:
        job = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
        try:
            deadline = time.monotonic() + 150
            while (tmp_path / "out").read_bytes().count(b"| lm loss: ") < 3:
                assert job.poll() is None and time.monotonic() < deadline, (tmp_path / "out").read_text()
                time.sleep(0.1)
            job.send_signal(signal.SIGUSR2)
            assert job.wait(120) == 0, (tmp_path / "out").read_text()
        finally:
            job.kill()
            job.wait()
    output = (tmp_path / "out").read_text()
    starts = [int(x) for x in (save / "starts").read_text().split()]
    assert len(starts) == 2 and starts[0] == 0 and starts[1] >= 3, output
    first, second = (json.loads(line) for line in (save / "options.jsonl").read_text().splitlines())
    assert first == second
    assert first[first.index("--micro-batch-size") + 1] == "1" and "--exit-signal-handler" in first
    log = [json.loads(line)["step"] for line in (save / "steps.jsonl").read_text().splitlines()]
    assert log == list(range(1, 201))  # none is lost, none made twice
