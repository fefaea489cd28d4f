"""Hugging Face's Trainer with SynergyCallback: a run whose data-parallel degree changes, under torchrun and gloo.

transformers and what it needs (174 MB) are looked for where Python finds them, or in the folder that SYNERGY_TEST_HUGGINGFACE
names: `pip install --target FOLDER --no-deps transformers accelerate ...`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration import library_run
from tests.integration.seen_examples import seen_in
from tests.integration.test_training_pytorch import log_of, make_run_dir, status_of, wait_for

FOLDER = os.environ.get("SYNERGY_TEST_HUGGINGFACE", "")
FOUND = Path(FOLDER, "transformers").is_dir() if FOLDER else importlib.util.find_spec("transformers") is not None
pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FOUND, reason="transformers is not installed, nor in a folder of SYNERGY_TEST_HUGGINGFACE"),
]
TRAINER: dict[str, Any] = {"script": ("training_trainer", "--output"), "needs": FOLDER}
training: Any = partial(library_run.training, **TRAINER)
finished: Any = partial(library_run.finished, **TRAINER)
until: Any = partial(library_run.until, **TRAINER)


def losses_of(output: Path, step: int) -> list[float]:
    state = json.loads((output / f"checkpoint-{step}" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def test_a_run_goes_on_with_other_degrees_as_if_left_alone(tmp_path: Path) -> None:
    """1 process, then 2 x 2 examples x 2 passes, asked for a checkpoint and ended in the first epoch (13 steps); then 4 x 2, then 2 x 4."""
    alone, resized, run_dir = tmp_path / "alone", tmp_path / "resized", make_run_dir(tmp_path / "job")
    batch = (
        "--global-batch",
        "8",
        "--examples",
        "104",
    )  # which 8 divides: else Accelerate fills an epoch's last step by dp
    finished(tmp_path, alone, 1, 8, make_run_dir(tmp_path / "left"), *batch)
    until(tmp_path, resized, 1, 8, run_dir, 3, *batch)
    with training(tmp_path, resized, 2, 2, run_dir, *batch, "--delay", "0.2") as process:  # asked before step 13
        wait_for(lambda: status_of(run_dir)["step"] >= 5, "first steps", 240)
        (run_dir / "checkpoint-request").write_text("1")
        wait_for(lambda: status_of(run_dir)["checkpoint_requests"] == 1, "acknowledgement")
        status = status_of(run_dir)
        assert status["state"] == "waiting" and status["checkpoint_step"] == status["step"] < 13
        assert status["plan"] == {**status["plan"], "dp": 2, "micro_batch": 2, "global_batch": 8}
        assert (status["done"], status["total"]) == (8 * status["step"], 240) and status["noise_scale"] != 0
        assert status["rebatching"] and not status["resharding"]
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    ended = status_of(run_dir)
    assert ended["note"] == f"stopped by SIGTERM at step {ended['step']}, last checkpoint: step {ended['step']}"
    assert ended["step"] == status["step"]
    # a checkpoint of a later step, killed while it was written, as Trainer leaves it
    half = resized / "checkpoint-25"
    shutil.copytree(resized / f"checkpoint-{ended['step']}", half)
    (half / "complete").unlink()
    (half / "trainer_state.json").unlink()
    until(tmp_path, resized, 4, 2, run_dir, 16, *batch)
    finished(tmp_path, resized, 2, 4, run_dir, *batch)
    assert not half.exists() and (resized / "unusable-checkpoint-25").is_dir()
    expected, losses = losses_of(alone, 30), losses_of(resized, 30)
    assert len(losses) == 30 and losses[-1] < losses[0] - 1
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-5
    assert seen_in(resized) == seen_in(alone)
    assert sorted(x for step in range(1, 14) for x in seen_in(resized)[step]) == list(range(104))
    status = status_of(run_dir)
    assert status["state"] == "done" and status["checkpoint_step"] == 30 and status["plan"]["dp"] == 2
    assert (resized / "checkpoint-30" / "complete").exists()


def test_the_batch_moves_between_two_steps_and_over_a_restart(tmp_path: Path) -> None:
    """16, then 24, then 8 on two processes: the weights are those of plain AdamW steps of these batches."""
    output, run_dir = tmp_path / "run", make_run_dir(tmp_path / "job")
    more = ("--global-batch", "8", "--examples", "96", "--save-steps", "3", "--answer", "weights")
    with training(tmp_path, output, 1, 8, run_dir, *more, "--delay", "0.2", batch=16) as process:
        # step 3 is in the middle of a batch
        wait_for(lambda: (output / "checkpoint-4" / "complete").exists(), "a put off checkpoint, sealed", 240)
        (run_dir / "batch").write_text(json.dumps({"global_batch": 30, "micro_batch": 1}))
        wait_for(lambda: log_of(run_dir)[-1]["global_batch"] == 24, "the batch has moved", 60)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    (run_dir / "batch").unlink()
    finished(tmp_path, output, 2, 4, run_dir, *more)
    seen, log = seen_in(output), log_of(run_dir)
    ends = [entry["step"] for entry in log]
    assert ends[:2] == [2, 4] and 12 in ends and ends[-2:] == [29, 30]
    assert {entry["global_batch"] for entry in log} == {8, 16, 24}
    assert [sorted(x for step in range(a, a + 12) for x in seen[step]) for a in (1, 13)] == [list(range(96))] * 2
    assert not (output / "checkpoint-3").exists() and (output / "checkpoint-30" / "complete").exists()
    status = status_of(run_dir)
    assert (status["done"], status["total"], status["plan"]["global_batch"]) == (240, 240, 8)
    assert json.loads((output / "answer.json").read_text())[0] < 1e-6


@pytest.mark.parametrize(("dp", "micro", "batch"), [(1, 2, 8), (2, 2, 16)])
def test_noise_is_that_of_brute_force(tmp_path: Path, dp: int, micro: int, batch: int) -> None:
    """Weights that stay, four epochs; a batch of 16 takes two of Trainer's steps."""
    more = ("--global-batch", "8", "--examples", "96", "--steps", "48", "--learning-rate", "0", "--answer", "noise")
    finished(tmp_path, tmp_path / "run", dp, micro, make_run_dir(tmp_path / "job"), *more, batch=batch)
    found, truth = json.loads((tmp_path / "run" / "answer.json").read_text())
    print(dp, batch, found, truth)
    assert found == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("more", [(), ("--fsdp2",)])
def test_an_accelerate_loop_goes_on_with_other_degrees_and_batches(tmp_path: Path, more: tuple[str, ...]) -> None:
    """On two processes 8, between two steps 16; on one 4: losses are those of plain AdamW steps at these batches."""
    run_dir, loop = make_run_dir(tmp_path / "job"), {"script": ("training_accelerate", "--checkpoint")}
    (run_dir / "batch").write_text(json.dumps({"global_batch": 16, "micro_batch": 4}))
    finished(tmp_path, tmp_path / "checkpoints", 2, 2, run_dir, "--steps", "5", *more, **loop)
    (run_dir / "batch").unlink()
    last = ("--steps", "7", "--hand", "8", "16", "16", "4", "4", "4", "4", *more)
    finished(tmp_path, tmp_path / "checkpoints", 1, 2, run_dir, *last, batch=4, **loop)
    log, found = log_of(run_dir), answer(tmp_path)
    assert [(entry["dp"], entry["global_batch"]) for entry in log] == [(2, 8), (2, 16), (2, 16)] + [(1, 4)] * 4
    print([entry["loss"] - right for entry, right in zip(log, found["hand"], strict=True)])
    assert [entry["loss"] for entry in log] == pytest.approx(found["hand"], abs=1e-5)
    # the schedule goes by the batch that its rates were tuned for
    assert (found["schedule"], found["samples"]) == (7, 56) and status_of(run_dir)["rebatching"]
    assert found["model"] == ("FSDPGpt" if more else "DistributedDataParallel")


@pytest.mark.parametrize("more", [(), ("--fsdp2",)])
def test_the_noise_of_an_accelerate_loop_is_that_of_brute_force(tmp_path: Path, more: tuple[str, ...]) -> None:
    loop = {"script": ("training_accelerate", "--checkpoint")}
    finished(
        tmp_path, tmp_path / "unused", 2, 1, make_run_dir(tmp_path / "job"), "--steps", "48", "--noise", *more, **loop
    )
    found, truth = answer(tmp_path)["noise"]
    print(found, truth)
    assert found == pytest.approx(truth, rel=0.1)


def answer(folder: Path) -> dict[str, Any]:
    """What the loop of Accelerate printed last."""
    lines = [line for line in (folder / "out").read_text().splitlines() if line.startswith('{"schedule"')]
    found = json.loads(lines[-1])
    assert isinstance(found, dict)
    return found
