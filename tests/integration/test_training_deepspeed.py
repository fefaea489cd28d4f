"""DeepSpeed's engine with DeepSpeedTask: runs whose data-parallel degree changes, under torchrun and gloo.

deepspeed and what it needs are looked for where Python finds them, or in the folder that SYNERGY_TEST_DEEPSPEED names:
`pip install --target FOLDER --no-deps deepspeed hjson py-cpuinfo msgpack ninja einops tqdm psutil packaging` and `pip install --target
FOLDER pydantic`. Its first run builds a C++ extension, which takes two minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration import library_run
from tests.integration.test_training_pytorch import log_of, make_run_dir, status_of, wait_for

FOLDER = os.environ.get("SYNERGY_TEST_DEEPSPEED", "")
FOUND = Path(FOLDER, "deepspeed").is_dir() if FOLDER else importlib.util.find_spec("deepspeed") is not None
pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FOUND, reason="deepspeed is not installed, nor in a folder of SYNERGY_TEST_DEEPSPEED"),
]


def run_of(
    folder: Path, dp: int, run_dir: Path, *arguments: str, checkpoint: str = "checkpoints", micro: int = 2, **more: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What library_run's functions are given for it."""
    known = {"script": ("training_deepspeed", "--checkpoint"), "needs": FOLDER, **more}
    return (folder, folder / checkpoint, dp, micro, run_dir, *arguments), known


def training(*args: Any, **more: Any) -> Any:
    given, known = run_of(*args, **more)
    return library_run.training(*given, **known)


def finished(*args: Any, **more: Any) -> str:
    """What it said, the runs before it in the same folder included."""
    given, known = run_of(*args, **more)
    return library_run.finished(*given, **known)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_run_goes_on_on_other_numbers_of_ranks_as_if_left_alone(tmp_path: Path, stage: int) -> None:
    """1, 2, 4, then 2 ranks, each start with other weights than the checkpoint's."""
    resized, alone = make_run_dir(tmp_path / "resized"), make_run_dir(tmp_path / "alone")
    model = ("--stage", str(stage), *(["--frozen"] if stage < 3 else []))
    said, own = "", f"run{stage}+lr[3"  # what are patterns elsewhere
    for i, (dp, steps) in enumerate([(1, 4), (2, 8), (4, 12), (2, 16)]):
        said = finished(
            tmp_path, dp, resized, "--steps", str(steps), "--draw", str(i + 1), *model,
            micro=1 if dp == 4 else 2, checkpoint=own,
        )  # fmt: skip
    finished(tmp_path, 1, alone, "--steps", "16", *model, "--plain", checkpoint="other", micro=8)
    log, reference = log_of(resized), log_of(alone)
    assert [entry["dp"] for entry in log] == [1] * 4 + [2] * 4 + [4] * 4 + [2] * 4
    difference = max(abs(a["loss"] - b["loss"]) for a, b in zip(log, reference, strict=True))
    times = re.findall(r"was converted from (\d) to (\d) ranks in ([\d.]+) s", said)
    print(stage, difference, times, status_of(resized)["noise_scale"], status_of(alone)["noise_scale"])
    assert difference < 1e-5 and log[-1]["loss"] < log[0]["loss"] - 0.1
    assert [pair[:2] for pair in dict.fromkeys(times)] == ([("1", "2"), ("2", "4"), ("4", "2")] if stage else [])
    status = status_of(resized)
    assert status["state"] == "done" and status["checkpoint_step"] == 16 and not status["resharding"]
    assert (status["done"], status["total"], status["rebatching"]) == (128, 128, True)
    assert '{"schedule": 16, "samples": 128}' in said
    assert not list((tmp_path / own).glob("universal*"))


def test_request_and_sigterm_under_torchrun(tmp_path: Path) -> None:
    """A request is acknowledged with a checkpoint and a wait; SIGTERM ends with one; a half-written one is passed over."""
    run_dir, alone, steps = make_run_dir(tmp_path / "job"), make_run_dir(tmp_path / "left"), ("--steps", "40")
    stages = ("--stage", "2")
    with training(tmp_path, 2, run_dir, *steps, *stages, "--delay", "0.2") as process:
        wait_for(lambda: process.poll() is not None or log_written(run_dir, 3), "first steps", 240)
        (run_dir / "checkpoint-request").write_text("1")
        wait_for(lambda: status_of(run_dir)["checkpoint_requests"] == 1, "acknowledgement")
        status = status_of(run_dir)
        assert status["state"] == "waiting" and status["checkpoint_step"] == status["step"]
        # to a rank: torchrun itself never ends with 0 on one
        os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]), signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    ended = status_of(run_dir)
    assert ended["note"].startswith(
        f"stopped by SIGTERM at step {ended['step']}, last checkpoint: step {ended['step']}"
    )
    assert ended["step"] < 40
    (run_dir / "checkpoint-request").unlink()
    half = tmp_path / "checkpoints" / "step_00000039"
    shutil.copytree(tmp_path / "checkpoints" / f"step_{ended['step']:08d}", half)
    (half / "complete").unlink()
    left = tmp_path / "checkpoints" / "universal_left"  # by a conversion that was killed
    left.mkdir()
    finished(tmp_path, 1, run_dir, *steps, *stages, "--draw", "2")
    finished(tmp_path, 1, alone, *steps, "--plain", checkpoint="other", micro=8)
    log, reference = log_of(run_dir), log_of(alone)
    assert [entry["step"] for entry in log] == list(range(1, 41)) and not left.exists() and not half.exists()
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(log, reference, strict=True)) < 1e-5


def log_written(run_dir: Path, step: int) -> bool:
    return (run_dir / "status.json").exists() and status_of(run_dir)["step"] >= step


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_batch_moves_between_two_steps_and_over_a_restart(tmp_path: Path, stage: int) -> None:
    """From 8 to 24 after the third step, on two ranks in three micro-batches; then 16 on one rank. As SynergyTask does it on one."""
    moved, plain = make_run_dir(tmp_path / "moved"), make_run_dir(tmp_path / "plain")
    for run_dir, dps, more in [(moved, (2, 1), ("--stage", str(stage))), (plain, (1, 1), ("--plain",))]:
        own = f"of-{run_dir.parent.name}"
        finished(tmp_path, dps[0], run_dir, "--steps", "12", "--move", "3:24:4", *more, micro=1, checkpoint=own)
        (run_dir / "batch").unlink()
        said = finished(
            tmp_path, dps[1], run_dir, "--steps", "20", "--draw", "5", *more, batch=16, micro=4, checkpoint=own
        )
    log, reference = log_of(moved), log_of(plain)
    expected = [8] * 3 + [24] * 3 + [16] * 4
    assert [entry["global_batch"] for entry in log] == [entry["global_batch"] for entry in reference] == expected
    difference = max(abs(a["loss"] - b["loss"]) for a, b in zip(log, reference, strict=True))
    print(stage, difference)
    assert difference < 1e-5
    assert said.count("global batch 24 in place of 8: learning rate x 1.73 (sqrt)") == 2
    assert said.count('{"schedule": 12, "samples": 96}') == said.count('{"schedule": 20, "samples": 160}') == 2


@pytest.mark.parametrize(("stage", "dp", "micro"), [(0, 2, 2), (1, 2, 2), (2, 1, 1), (3, 2, 2)])
def test_noise_is_that_of_brute_force(tmp_path: Path, stage: int, dp: int, micro: int) -> None:
    """Weights that stay; two epochs."""
    answer = tmp_path / "noise.json"
    more = ("--stage", str(stage), "--steps", "48", "--examples", "192", "--noise", str(answer))
    finished(tmp_path, dp, make_run_dir(tmp_path / "job"), *more, micro=micro)
    found, truth = json.loads(answer.read_text())
    print(stage, dp, found, truth, found / truth - 1)
    assert found == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("stage", [2, 3])
def test_bf16_goes_on_on_more_ranks(tmp_path: Path, stage: int) -> None:
    """Sums of bf16 gradients depend on the number of ranks: the losses agree as far as these do."""
    resized, alone = make_run_dir(tmp_path / "resized"), make_run_dir(tmp_path / "alone")
    model = ("--stage", str(stage), "--config", json.dumps({"bf16": {"enabled": True}}))
    for dp, steps in [(1, 6), (2, 12)]:
        finished(tmp_path, dp, resized, "--steps", str(steps), "--draw", str(dp), *model)
    finished(tmp_path, 1, alone, "--steps", "12", *model, checkpoint="other")
    log, reference = log_of(resized), log_of(alone)
    difference = [abs(a["loss"] - b["loss"]) for a, b in zip(log, reference, strict=True)]
    print(stage, difference)
    assert max(difference[:7]) < 1e-5 and max(difference) < 2e-3


def test_what_cannot_go_on_is_one_line(tmp_path: Path) -> None:
    said = finished(
        tmp_path, 1, make_run_dir(tmp_path / "job"), "--steps", "1", "--stage", "1", "--optimizer", "SGD", code=2
    )
    lines = [line for line in said.splitlines() if line.startswith("synergy: ")]
    assert lines == [
        "synergy: DeepSpeedTask: the optimizer SGD: the universal checkpoint has Adam's two moments only; Adam, AdamW or FusedAdam"
    ]
    assert "Traceback" not in said
