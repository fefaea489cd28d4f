"""Lightning's Trainer with SynergyCallback: a run whose data-parallel degree changes, under torchrun and gloo.

lightning and what it needs (25 MB) are looked for where Python finds them, or in the folder that SYNERGY_TEST_LIGHTNING names:
`pip install --target FOLDER --no-deps lightning pytorch-lightning lightning-utilities torchmetrics tqdm`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration import library_run
from tests.integration.seen_examples import seen_in
from tests.integration.test_training_pytorch import log_of, make_run_dir, status_of, wait_for
from tests.paths import ROOT, python_path

FOLDER = os.environ.get("SYNERGY_TEST_LIGHTNING", "")
FOUND = Path(FOLDER, "lightning").is_dir() if FOLDER else importlib.util.find_spec("lightning") is not None
pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FOUND, reason="lightning is not installed, nor in a folder of SYNERGY_TEST_LIGHTNING"),
]
SCRIPT: dict[str, Any] = {"script": ("training_lightning", "--output"), "needs": FOLDER}
training: Any = partial(library_run.training, **SCRIPT)
finished: Any = partial(library_run.finished, **SCRIPT)
until: Any = partial(library_run.until, **SCRIPT)


def losses_of(run_dir: Path) -> list[float]:
    return [entry["loss"] for entry in log_of(run_dir)]


def hooks_of(output: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (output / "hooks.jsonl").read_text().splitlines()]


def test_a_run_goes_on_with_other_degrees_as_if_left_alone(tmp_path: Path) -> None:
    """1 process, then 2 x 2 examples x 2 passes, asked for a checkpoint and ended in the first epoch (12 steps, of 100 examples); then
    4 x 2, then 2 x 4."""
    alone, resized, run_dir = tmp_path / "alone", tmp_path / "resized", make_run_dir(tmp_path / "job")
    left = make_run_dir(tmp_path / "left")
    finished(tmp_path, alone, 1, 8, left, "--workers", "1")
    until(tmp_path, resized, 1, 8, run_dir, 3)
    with training(tmp_path, resized, 2, 2, run_dir, "--delay", "0.2") as process:  # asked before step 12
        wait_for(lambda: status_of(run_dir)["step"] >= 5, "first steps", 240)
        (run_dir / "checkpoint-request").write_text("1")
        wait_for(lambda: status_of(run_dir)["checkpoint_requests"] == 1, "acknowledgement")
        status = status_of(run_dir)
        assert status["state"] == "waiting" and status["checkpoint_step"] == status["step"] < 12
        assert status["plan"] == {**status["plan"], "dp": 2, "micro_batch": 2, "global_batch": 8}
        assert (status["done"], status["total"]) == (8 * status["step"], 240) and status["noise_scale"] != 0
        assert status["rebatching"] and not status["resharding"]
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    (run_dir / "checkpoint-request").unlink()  # as the launcher does
    ended = status_of(run_dir)
    assert ended["note"] == f"stopped by SIGTERM at step {ended['step']}, last checkpoint: step {ended['step']}"
    assert ended["step"] == status["step"]
    # a checkpoint of a later step, killed while it was written
    half = resized / "checkpoints" / "step_00000025"
    shutil.copytree(resized / "checkpoints" / f"step_{ended['step']:08d}", half)
    (half / "complete").unlink()
    until(tmp_path, resized, 4, 2, run_dir, 16)
    finished(tmp_path, resized, 2, 4, run_dir, "--workers", "1")
    assert not half.exists()
    losses, expected = losses_of(run_dir), losses_of(left)
    worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    print("losses differ by", worst)
    assert len(losses) == 30 and losses[-1] < losses[0] - 0.5 and worst < 1e-5
    assert seen_in(resized) == seen_in(alone)
    # no example of the first pass is left out, though no epoch ends with it
    first = sorted(x for step in range(1, 14) for x in seen_in(resized)[step])
    assert set(first) == set(range(100)) and len(first) == 104
    assert {entry["dp"] for entry in log_of(run_dir)} == {1, 2, 4}
    status = status_of(run_dir)
    assert status["state"] == "done" and status["checkpoint_step"] == 30 and status["plan"]["dp"] == 2
    # an epoch begins and ends as often as without a resize
    assert hooks_of(resized) == hooks_of(alone)


@pytest.mark.parametrize("limit", [["--epochs", "3"], ["--steps", "18"]])
def test_epochs_and_validations_are_those_of_a_run_left_alone(tmp_path: Path, limit: list[str]) -> None:
    """Epochs of 6 steps, validated twice each; killed after the checkpoint of step 3 (a validation's), 6 (an epoch's last) and 10."""
    alone, resized, run_dir = tmp_path / "alone", tmp_path / "resized", make_run_dir(tmp_path / "job")
    more = (*limit, "--examples", "50", "--validate", "0.5")
    finished(tmp_path, alone, 1, 8, make_run_dir(tmp_path / "left"), *more)
    for dp, micro, step in [(1, 4, 3), (2, 2, 6), (1, 8, 10)]:
        dies = ("--interval", str(step), "--dies", str(step))
        finished(tmp_path, resized, dp, micro, run_dir, *more, *dies, code=137)
    finished(tmp_path, resized, 1, 8, run_dir, *more)
    # the run went on at the start of an epoch
    assert len(hooks_of(resized)) == len(hooks_of(alone)) + 1
    found = list(dict.fromkeys(map(tuple, hooks_of(resized))))
    assert found == list(map(tuple, hooks_of(alone)))
    assert seen_in(resized) == seen_in(alone)
    assert [name for name, *_ in found].count("validated") == 6
    losses, expected = losses_of(run_dir), losses_of(tmp_path / "left" / "run")
    assert len(losses) == 18 and max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-5


def test_the_batch_moves_between_two_steps_and_over_a_restart(tmp_path: Path) -> None:
    """16, then 24, then 8 on two processes: the weights are those of plain AdamW steps of these batches."""
    output, run_dir = tmp_path / "run", make_run_dir(tmp_path / "job")
    # validated at every third step, inside a batch
    more = ("--examples", "96", "--validate", "0.25", "--answer", "weights")
    with training(tmp_path, output, 1, 4, run_dir, *more, "--delay", "0.2", batch=16) as process:
        wait_for(lambda: (run_dir / "status.json").exists() and status_of(run_dir)["step"] >= 4, "first steps", 240)
        (run_dir / "batch").write_text(json.dumps({"global_batch": 30, "micro_batch": 1}))
        wait_for(lambda: log_of(run_dir)[-1]["global_batch"] == 24, "the batch has moved", 60)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    (run_dir / "batch").unlink()
    finished(tmp_path, output, 2, 2, run_dir, *more)
    seen, log = seen_in(output), log_of(run_dir)
    ends = [entry["step"] for entry in log]
    assert ends[:2] == [2, 4] and 12 in ends and ends[-2:] == [29, 30]
    assert {entry["global_batch"] for entry in log} == {8, 16, 24}
    assert [sorted(x for step in range(a, a + 12) for x in seen[step]) for a in (1, 13)] == [list(range(96))] * 2
    status = status_of(run_dir)
    assert (status["done"], status["total"], status["plan"]["global_batch"]) == (240, 240, 8)
    answer = json.loads((output / "answer.json").read_text())[0]
    print("weights differ by", answer)
    assert answer < 1e-6


@pytest.mark.parametrize(("dp", "micro", "batch"), [(1, 2, 8), (2, 2, 16)])
def test_noise_is_that_of_brute_force(tmp_path: Path, dp: int, micro: int, batch: int) -> None:
    """Weights that stay, four epochs; a batch of 16 takes two of Lightning's steps."""
    more = ("--examples", "96", "--steps", "48", "--learning-rate", "0", "--clip", "0.01", "--answer", "noise")
    finished(tmp_path, tmp_path / "run", dp, micro, make_run_dir(tmp_path / "job"), *more, batch=batch)
    found, truth = json.loads((tmp_path / "run" / "answer.json").read_text())
    print("noise", dp, batch, found, truth)
    assert found == pytest.approx(truth, rel=0.1)


def test_fp16_leaves_the_batch_and_the_noise_alone(tmp_path: Path) -> None:
    """Its scaler is in the checkpoint; losses are still those of the whole batch."""
    run_dir = make_run_dir(tmp_path / "job")
    for dp, steps in [(1, 4), (2, 8)]:
        text = finished(tmp_path, tmp_path / "run", dp, 2, run_dir, "--wrong", "fp16", "--steps", str(steps), batch=16)
    assert "synergy: the batch stays, and its noise is not measured: fp16 scales the gradients" in text
    assert "synergy: global batch 8 in place of the plan's 16" in text
    assert [entry["global_batch"] for entry in log_of(run_dir)] == [8] * 8
    assert all(4 < loss < 7 for loss in losses_of(run_dir))
    assert not status_of(run_dir)["rebatching"] and status_of(run_dir)["noise_scale"] is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("manual", "LightningModule: manual optimization"),
        ("frequency", "configure_optimizers: frequency=2 of a schedule by steps counts micro-batches; frequency 1"),
        ("limit", "Trainer: limit_train_batches=4"),
        ("loader", "fit: its training data is not synergy.loader(dataset)"),
    ],
)
def test_what_does_not_go_is_one_line(tmp_path: Path, wrong: str, said: str) -> None:
    run_dir = make_run_dir(tmp_path / "job")
    text = finished(tmp_path, tmp_path / "run", 2, 4, run_dir, "--wrong", wrong, "--clip", "0", code=2)
    assert text.count(f"synergy: {said}") == 1 and "Traceback" not in text
    assert not (run_dir / "status.json").exists() or status_of(run_dir)["step"] == 0


def test_sigterm_saves_and_ends_with_code_0(tmp_path: Path) -> None:
    """Without torchrun, which ends with a code of its own."""
    run_dir = make_run_dir(tmp_path / "job")
    environment = {**os.environ, "PYTHONPATH": python_path(FOLDER), "SYNERGY_RUN_DIR": str(run_dir)}
    command = [sys.executable, "-m", "tests.integration.training_lightning", "--output", str(tmp_path / "run")]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen([*command, "--delay", "0.1"], env=environment, cwd=ROOT, stdout=out, stderr=out)
    try:
        wait_for(lambda: (run_dir / "status.json").exists() and status_of(run_dir)["step"] >= 2, "first steps", 240)
        process.terminate()
        assert process.wait(timeout=60) == 0, (tmp_path / "out").read_text()
    finally:
        process.kill()
    assert status_of(run_dir)["checkpoint_step"] == status_of(run_dir)["step"] < 30
    assert int((tmp_path / "run" / "ended").read_text()) == status_of(run_dir)["step"]  # the module's own hook


@pytest.mark.parametrize(("batch", "stops"), [(8, 11), (16, 10)])
def test_a_stop_inside_a_batch_goes_on_from_the_checkpoint_before_it(tmp_path: Path, batch: int, stops: int) -> None:
    """In step 6, or after the first step of two."""
    run_dir, more = make_run_dir(tmp_path / "job"), ("--interval", "2", "--steps", "8")
    text = finished(tmp_path, tmp_path / "run", 1, 4, run_dir, *more, "--stops", str(stops), batch=batch)
    assert ("checkpoint of step 5: fit: it was stopped inside a batch" in text) is (batch == 8)
    assert status_of(run_dir)["checkpoint_step"] == 4
    finished(tmp_path, tmp_path / "run", 2, 4, run_dir, *more, batch=batch)
    steps = [entry["step"] for entry in log_of(run_dir)]
    assert steps == ([1, 2, 3, 4, 5, 5, 6, 7, 8] if batch == 8 else [2, 4, 6, 8])


def test_a_checkpoint_that_is_not_used_is_one_line(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path / "job")
    finished(tmp_path, tmp_path / "run", 1, 8, run_dir, "--steps", "2")
    text = finished(tmp_path, tmp_path / "run", 1, 8, run_dir, "--wrong", "resume", code=2)
    assert "step_00000002 is the newest, but training starts at step 0; ckpt_path=synergy.resume_from()" in text
    text = finished(tmp_path, tmp_path / "run", 1, 8, run_dir, "--global-batch", "16", code=2)
    assert "synergy: fit: ckpt_path: its steps have 8 examples" in text and "Traceback" not in text


def test_lightning_s_own_checkpoints_are_taken_between_two_batches(tmp_path: Path) -> None:
    """ModelCheckpoint writes each step, of which two are a batch."""
    run_dir, output = make_run_dir(tmp_path / "job"), tmp_path / "run"
    finished(tmp_path, output, 1, 4, run_dir, "--steps", "6", "--every", "1", batch=16)
    shutil.rmtree(output / "checkpoints")
    text = finished(tmp_path, output, 2, 4, run_dir, "--from", str(output / "step=3.ckpt"), code=2)
    assert "synergy: fit: ckpt_path: it was written inside a batch" in text and "Traceback" not in text
    finished(tmp_path, output, 2, 4, run_dir, "--steps", "8", "--from", str(output / "step=4.ckpt"), batch=16)
    log = log_of(run_dir)
    assert [entry["step"] for entry in log] == [2, 4, 6, 6, 8] and abs(log[2]["loss"] - log[3]["loss"]) < 1e-5


def test_the_package_may_be_pytorch_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (Path(FOLDER, "pytorch_lightning").is_dir() if FOLDER else importlib.util.find_spec("pytorch_lightning")):
        pytest.skip("pytorch_lightning is not installed")
    monkeypatch.setenv("SYNERGY_TEST_LIGHTNING_NAME", "pytorch_lightning")
    run_dir = make_run_dir(tmp_path / "job")
    for dp, steps in [(1, 3), (2, 6)]:
        finished(tmp_path, tmp_path / "run", dp, 4, run_dir, "--steps", str(steps))
    assert [entry["dp"] for entry in log_of(run_dir)] == [1] * 3 + [2] * 3
