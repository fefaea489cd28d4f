"""Plain PyTorch with SynergyTask: DDP and FSDP2 runs whose data-parallel degree changes; the agent under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration import training_ranks
from tests.integration.training_ranks import Call
from tests.paths import ROOT, python_path

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def ddp(folder: Path, dp: int, steps: int, checkpoint: Path, run_dir: Path, code: int = 0, own: bool = False) -> str:
    """`own`: its plan's batch was chosen by nobody."""
    environment = {
        "SYNERGY_RUN_DIR": str(run_dir),
        "SYNERGY_CHECKPOINT_DIR": str(checkpoint),
        "SYNERGY_PLAN_JSON": json.dumps({"dp": dp, "global_batch": 8 * dp if own else 8, "micro_batch": 1}),
        "SYNERGY_OWN_BATCH": "1" if own else "",
    }
    arguments = ["--steps", str(steps), "--hidden", "32", "--layers", "2", "--seq", "32", "--checkpoint", "/unused"]
    arguments += ["--global-batch", "8"]
    call = Call("example", "synergy_launch.examples.ddp", arguments)
    _, output = training_ranks.run(folder, dp, call, environment=environment, code=code)
    return output


def log_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir.parent / "steps.jsonl").read_text().splitlines()]


def status_of(run_dir: Path) -> dict[str, Any]:
    content = json.loads((run_dir / "status.json").read_text())
    assert isinstance(content, dict)
    return content


def make_run_dir(folder: Path) -> Path:
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    return run_dir


def test_ddp_goes_on_from_1_to_2_to_4_ranks_as_if_left_alone(tmp_path: Path) -> None:
    resized, alone = make_run_dir(tmp_path / "resized"), make_run_dir(tmp_path / "alone")
    for dp, steps in [(1, 4), (2, 7), (4, 10)]:
        ddp(tmp_path / f"dp{dp}", dp, steps, tmp_path / "checkpoints", resized, own=dp == 2)
    ddp(tmp_path / "left", 1, 10, tmp_path / "other", alone)
    log, reference = log_of(resized), log_of(alone)
    assert [entry["step"] for entry in log] == list(range(1, 11))
    assert [entry["dp"] for entry in log] == [1] * 4 + [2] * 3 + [4] * 3
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(log, reference, strict=True)) < 1e-5
    status = status_of(resized)
    assert status["state"] == "done" and status["checkpoint_step"] == 10 and not status["resharding"]
    # The noise estimate goes over the restarts too.
    assert status["noise_scale"] == pytest.approx(status_of(alone)["noise_scale"], rel=1e-3)


def test_fsdp_goes_on_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    losses: list[float] = []
    for world, steps in [(2, 3), (4, 6), (1, 8)]:
        result, _ = training_ranks.run(tmp_path / str(world), world, Call("sharded", tmp_path / "checkpoints", steps))
        losses += result
    reference, _ = training_ranks.run(tmp_path / "left", 1, Call("sharded", tmp_path / "other", 8))
    assert len(losses) == 8
    assert max(abs(a - b) for a, b in zip(losses, reference, strict=True)) < 1e-5


def test_tensor_parallel_plan_for_a_plain_job_is_one_clear_line(tmp_path: Path) -> None:
    environment = {"SYNERGY_PLAN_JSON": json.dumps({"tp": 2, "global_batch": 4})}
    call = Call("example", "synergy_launch.examples.ddp", ["--steps", "1"])
    _, output = training_ranks.run(tmp_path, 2, call, environment=environment, code=2)
    assert [line for line in output.splitlines() if line] == [
        "synergy: SYNERGY_PLAN_JSON: tp=2 pp=1 was given to a plain PyTorch job; such a job can change dp only"
    ]


def wait_for(condition: Any, what: str, timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.05)


def test_request_and_sigterm_under_torchrun(tmp_path: Path) -> None:
    """As in a job: a request is acknowledged with a checkpoint and a wait; SIGTERM ends with one: no step is lost."""
    run_dir = make_run_dir(tmp_path / "job")
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(),
        "OMP_NUM_THREADS": "1",
        "SYNERGY_RUN_DIR": str(run_dir),
        "SYNERGY_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "SYNERGY_HOLD_S": "5",  # longer than between two looks of this test
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "synergy_launch.examples.ddp", "--steps", "100000", "--step-delay", "0.02"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_for(lambda: (run_dir / "status.json").exists() and status_of(run_dir)["step"] >= 3, "first steps")
        (run_dir / "checkpoint-request").write_text("1")
        wait_for(lambda: status_of(run_dir)["checkpoint_requests"] == 1, "acknowledgement")
        status = status_of(run_dir)
        assert status["state"] == "waiting" and status["checkpoint_step"] == status["step"]
        assert (tmp_path / "checkpoints" / f"step_{status['step']:08d}" / "complete").exists()
        wait_for(lambda: status_of(run_dir)["step"] > status["step"], "training goes on after the hold")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    status = status_of(run_dir)
    said = f"stopped by SIGTERM at step {status['step']}, last checkpoint: step {status['step']}"
    assert status["note"].startswith(said + "; checkpoints every ")
    assert status["state"] == "waiting"
    assert log_of(run_dir)[-1]["step"] == status["step"]


def test_a_slow_node_is_named_by_its_own_time(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path / "job")
    environment = {"SYNERGY_RUN_DIR": str(run_dir)}
    result, _ = training_ranks.run(tmp_path / "run", 3, Call("straggling", 45, 0.15), environment=environment)
    assert set(result["slow"]) == {"node2"} and result["slow"]["node2"] > 2
    status = status_of(run_dir)
    assert status["slow_nodes"] == ["node2"] and "slow: node2 takes" in status["note"]


def test_fsdp_checkpoints_written_beside_training_go_on_on_another_number_of_ranks(tmp_path: Path) -> None:
    reference, _ = training_ranks.run(tmp_path / "left", 1, Call("sharded", tmp_path / "other", 8))
    call = Call("sharded", tmp_path / "checkpoints", 5, interval=3, die_at=5)
    with pytest.raises(training_ranks.Failed):
        training_ranks.run(tmp_path / "a", 2, call)
    losses, _ = training_ranks.run(tmp_path / "b", 4, Call("sharded", tmp_path / "checkpoints", 8))
    assert len(losses) == 5  # steps 4 to 8: the checkpoint of step 3 was good
    assert max(abs(a - b) for a, b in zip(losses, reference[3:], strict=True)) < 1e-5
