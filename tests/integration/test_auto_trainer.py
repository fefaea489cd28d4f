"""Hugging Face's Trainer in a script that knows nothing of Synergy: resized by synergy-launch, with no line changed.

It needs transformers, as tests/integration/test_training_huggingface.py does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.hooked_run import run_to_end, run_until
from tests.integration.seen_examples import seen_in
from tests.integration.test_training_huggingface import FOLDER, FOUND
from tests.paths import python_path

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FOUND, reason="transformers is not installed, nor in a folder of SYNERGY_TEST_HUGGINGFACE"),
]
SCRIPT = Path(__file__).with_name("plain_trainer.py")
USUAL = (
    "--max_steps", "20", "--per_device_train_batch_size", "4", "--learning_rate", "3e-3", "--warmup_steps", "4", "--logging_steps", "1",
    "--use_cpu", "--report_to", "none", "--disable_tqdm", "true", "--dataloader_pin_memory", "false", "--save_steps", "10000",
)  # fmt: skip


def words(output: Path, *more: str) -> list[str]:
    return [str(SCRIPT), "--output_dir", str(output), *USUAL, *more]


def log_of(output: Path, step: int) -> list[tuple[float, float]]:
    state = json.loads((output / f"checkpoint-{step}" / "trainer_state.json").read_text())
    return [(entry["loss"], entry["learning_rate"]) for entry in state["log_history"] if "loss" in entry]


def steps_of(output: Path) -> int:
    return max(seen_in(output), default=0) if output.is_dir() else 0


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same script under plain torchrun on two processes, left alone."""
    folder = tmp_path_factory.mktemp("alone")
    output = folder / "out"
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words(output)]
    environment = {**os.environ, "PYTHONPATH": python_path(FOLDER), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(argv, env=environment, check=True, timeout=240, cwd=folder)
    return output


@pytest.mark.parametrize(
    "more", [(), ("--enable_jit_checkpoint", "--resume_from_checkpoint", "true")], ids=["plain", "jit"]
)
def test_a_run_goes_on_on_other_gpus_as_if_left_alone(tmp_path: Path, alone: Path, more: tuple[str, ...]) -> None:
    """2 processes, then 1, then 4; with a newer checkpoint of another job in the folder, of which the script knows nothing."""
    output, options = tmp_path / "run", {"needs": FOLDER, "environment": {"DELAY": "0.2"}}
    first = more[:1]  # at the first start there is nothing to resume from
    if not more:
        shutil.copytree(alone / "checkpoint-20", output / "checkpoint-20")
    run_until(tmp_path, lambda: steps_of(output) >= 4, words(output, *first), 2, 0, **options)
    run_until(tmp_path, lambda: steps_of(output) >= 11, words(output, *more), 1, 1, **options)
    text = run_to_end(tmp_path, words(output, *more), 4, 2, needs=FOLDER)
    found, expected = log_of(output, 20), log_of(alone, 20)
    assert len(found) == 20 and text.count("synergy: step 0:") == 1 and "dp=4 micro_batch=2 global_batch=8" in text
    assert [rate for _, rate in found] == pytest.approx([rate for _, rate in expected], abs=1e-9)
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], abs=1e-5)
    assert seen_in(output) == seen_in(alone)


def test_a_use_that_depends_on_the_gpus_keeps_its_size(tmp_path: Path) -> None:
    """Its batch is as its user wrote it, and the reason is one line."""
    output = tmp_path / "run"
    more = ("--dataloader_drop_last", "true", "--max_steps", "3")
    text = run_to_end(tmp_path, words(output, *more), 2, 0, needs=FOLDER)
    assert "synergy: the job keeps its size: dataloader_drop_last: an epoch's length depends on the GPUs" in text
    assert "dp=2 micro_batch=4 global_batch=8" in text
