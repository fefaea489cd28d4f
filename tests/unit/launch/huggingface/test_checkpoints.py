"""Which of the Trainer's checkpoints is taken up again, and how a batch is divided."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synergy_launch.agent.checkpoint import CheckpointError
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.settings import micro_batch
from synergy_launch.huggingface.checkpoints import TrainerCheckpoints, latest_good

from tests.unit.test_layering import ROOT


def written(directory: Path, step: int) -> Path:
    """As Trainer leaves it."""
    folder = directory / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_text(f"{name} of {step}")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 100}))
    return folder


def sealed(directory: Path, step: int, batch: int = 8) -> Path:
    folder = written(directory, step)
    TrainerCheckpoints(directory, OneProcess()).save(step, lambda _: {"batch": [batch, 2]})
    return folder


def step_taken(directory: Path) -> int | None:
    found = latest_good(directory).checkpoint
    return found.step if found else None


def test_the_newest_by_number_is_taken_with_what_the_seal_keeps(tmp_path: Path) -> None:
    sealed(tmp_path, 9)
    sealed(tmp_path, 10, batch=16)
    found = latest_good(tmp_path)
    assert found.checkpoint is not None and not found.note
    assert (found.checkpoint.step, found.checkpoint.meta["batch"]) == (10, [16, 2])


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda f: (f / "trainer_state.json").unlink(), "it was not finished"),
        (lambda f: (f / "trainer_state.json").write_text('{"global_st'), "can't be read"),
        (lambda f: (f / "trainer_state.json").write_text("[]"), "can't be read"),
        (lambda f: (f / "trainer_state.json").write_text('{"global_step": 19}'), "it was not finished"),
        (lambda f: (f / "checkpoint-is-incomplete.txt").write_text("x"), "it was not finished"),
        (lambda f: (f / "model.safetensors").unlink(), "it has no weights"),
        (lambda f: (f / "optimizer.pt").write_text(""), "optimizer.pt is empty"),
    ],
)
def test_an_unfinished_one_is_passed_over_and_renamed(tmp_path: Path, harm: Callable[[Path], object], why: str) -> None:
    sealed(tmp_path, 10)
    harm(written(tmp_path, 20))
    found = TrainerCheckpoints(tmp_path, OneProcess()).find()
    assert found.checkpoint is not None and found.checkpoint.step == 10
    assert why in found.note and found.note.endswith("the last good one, of step 10, is used")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-10", "unusable-checkpoint-20"]


def test_a_sealed_one_must_have_what_was_sealed(tmp_path: Path) -> None:
    sealed(tmp_path, 10)
    folder = sealed(tmp_path, 20)
    (folder / "optimizer.pt").write_text("other weights...")
    assert step_taken(tmp_path) == 10


def test_one_without_a_seal_counts_if_finished_and_the_batch_is_known_from_before(tmp_path: Path) -> None:
    sealed(tmp_path, 10, batch=32)
    written(tmp_path, 20)
    found = latest_good(tmp_path).checkpoint
    assert found is not None and (found.step, found.meta["batch"]) == (20, [32, 2])


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "runs").mkdir()
    assert latest_good(tmp_path).checkpoint is None
    (written(tmp_path, 5) / "trainer_state.json").unlink()
    assert latest_good(tmp_path).note.endswith("no good one is left, training starts from step 0")
    fresh = tmp_path / "a" / "b"
    assert TrainerCheckpoints(fresh, OneProcess()).find().checkpoint is None and fresh.is_dir()


def test_written_twice_is_sealed_twice(tmp_path: Path) -> None:
    store = TrainerCheckpoints(tmp_path, OneProcess())
    folder = written(tmp_path, 10)
    store.save(10, lambda _: {"batch": [8, 2]})
    (folder / "model.safetensors").write_text("the same step at the end of its epoch")
    assert store.sealed_step == 10 and step_taken(tmp_path) is None
    store.reseal(10)
    assert step_taken(tmp_path) == 10


def test_what_trainer_did_not_write_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Trainer has not written checkpoint-10"):
        TrainerCheckpoints(tmp_path, OneProcess()).save(10, lambda _: {})


@pytest.mark.parametrize(
    ("batch", "dp", "most", "expected"),
    [(64, 4, 4, 4), (64, 2, 12, 8), (64, 3, 4, None), (2, 4, 1, None), (9, 3, 8, 3)],
)
def test_micro_batch(batch: int, dp: int, most: int, expected: int | None) -> None:
    assert micro_batch(batch, dp, most) == expected


@pytest.mark.training
def test_without_transformers_it_is_one_line() -> None:
    program = "import sys; sys.modules['transformers'] = None; import synergy_launch.huggingface.trainer"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith(
        "synergy: synergy_launch.huggingface.trainer: transformers can't be imported"
    )
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("; pip install transformers accelerate\n")
