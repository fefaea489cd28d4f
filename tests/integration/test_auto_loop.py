"""A plain DDP loop that knows nothing of Synergy is resized at its own checkpoints, by `loop=` of the directive alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon_site import status, until_beat
from tests.integration.hooked_run import JOB, launched, run_to_end
from tests.integration.test_training_pytorch import wait_for
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("plain_loop.py")


def log_of(output: Path) -> list[list[Any]]:
    path = output / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def resized_after_a_request(folder: Path, argv: list[str], gpus: int, restarts: int, least: int, **more: Any) -> int:
    """Run, ask for a checkpoint once `least` steps are done, and end the job as a resize does. Return the step of the checkpoint."""
    output = Path(more["checkpoint"])
    with launched(folder, argv, gpus, restarts, environment={"DELAY": "0.025"}, **more) as process:
        wait_for(lambda: process.poll() is not None or (log_of(output) or [[0]])[-1][0] >= least, f"step {least}", 120)
        run_dir = next(folder.glob(f"synergy-*{JOB}*"))
        (run_dir / "checkpoint-request").write_text("1")

        def answered() -> bool:
            status = json.loads((run_dir / "status.json").read_text())
            return process.poll() is not None or (status["checkpoint_requests"] == 1 and status["state"] == "waiting")

        wait_for(answered, "the script's next checkpoint", 120)
        assert process.poll() is None, (folder / "out").read_text()[-3000:]
        status = json.loads((run_dir / "status.json").read_text())
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=120)
    assert status["step"] == status["checkpoint_step"] and status["accepts"]["own_size"] is False
    assert status["plan"] == {**status["plan"], "dp": gpus, "global_batch": 8, "micro_batch": 8 // gpus}
    return int(status["step"])


def test_a_loop_goes_on_from_its_own_checkpoint_on_other_gpus_and_loses_no_step(tmp_path: Path) -> None:
    """2 processes of 4 examples, then 1 of 8, then 4 of 2."""
    alone = tmp_path / "alone"
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*argv, str(SCRIPT), "--out", str(alone), "--batch_size", "4"], check=True, timeout=240)
    output = tmp_path / "run"
    words = [str(SCRIPT), "--out", str(output), "--batch_size", "4"]
    more: dict[str, Any] = {"checkpoint": str(output), "loop": "gpu:--batch_size,resume:--resume", "asked": 2}
    first = resized_after_a_request(tmp_path, words, 2, 0, 3, **more)
    second = resized_after_a_request(tmp_path, words, 1, 1, first + 3, **more)
    text = run_to_end(tmp_path, words, 4, 2, **more)
    assert (first, second) == (5, 10)
    assert f"goes on from the script's own checkpoint of step {second}" in text and f"the {8 * second} examples" in text
    found, expected = log_of(output), log_of(alone)
    # the step after a checkpoint may have begun, and no step is lost or done twice
    assert [(step, rows) for step, _, rows, _ in found] == [(step, rows) for step, _, rows, _ in expected]
    assert [world for _, world, _, _ in found] == [2] * first + [1] * (second - first) + [4] * (40 - second)
    assert [loss for *_, loss in found] == pytest.approx([loss for *_, loss in expected], abs=1e-6)


def test_a_batch_that_can_not_be_kept_ends_with_one_line(tmp_path: Path) -> None:
    more: dict[str, Any] = {"checkpoint": str(tmp_path / "run"), "loop": "gpu:--batch_size", "asked": 2, "plan": False}
    words = [str(SCRIPT), "--out", str(tmp_path / "run"), "--batch_size", "4"]
    text = run_to_end(tmp_path, words, 3, code=2, **more)
    line = "synergy: loop=: --batch_size 4 on 2 GPUs can't be kept on 3; --batch_size x GPUs must be a multiple of each number of GPUs"
    assert line in text.splitlines() and "Traceback" not in text


@pytest.mark.slurm
def test_the_daemon_resizes_it(tmp_path: Path) -> None:
    """On a real cluster: it asked for 1 GPU, names no model, and grows to 4 at its own checkpoint with the same global batch."""
    with make_cluster(epoch_s=1) as site, synergyd(site):
        until_beat(site)
        output = site.folder / "run"
        batch = (
            "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:1 --open-mode=append\n"
            f"#SYNERGY max_gpus=4 checkpoint={output} loop=gpu:--batch_size,resume:--resume\n"
            f"export DELAY=0.05\nsrun synergy-launch python {SCRIPT} --out {output} --batch_size 8 --steps 100000\n"
        )
        job = site.sbatch(batch, "--job-name=own-loop", f"--output={site.folder}/loop.out")

        def shown() -> str:
            return Path(site.folder, "loop.out").read_text()[-3000:]

        site.wait_for(lambda: 4 in {world for _, world, *_ in log_of(output)}, 180, "its steps on 4 GPUs")
        row, steps = row_of(site, job), [(step, rows) for step, _, rows, _ in log_of(output)]
        assert row["restart_cnt"] in (1, 2) and status(site)[job]["gpus"] == 4, shown()  # it may try 2 GPUs before
        assert [step for step, _ in steps] == list(range(1, len(steps) + 1))
        assert all(rows == sorted(i % 96 for i in range(8 * step - 8, 8 * step)) for step, rows in steps)
        site.run("scancel", str(job))
