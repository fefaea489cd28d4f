"""Lightning's Trainer in a script that knows nothing of Synergy: resized by synergy-launch, with no line changed.

It needs lightning, as tests/integration/test_training_lightning.py does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.hooked_run import run_to_end, run_until
from tests.integration.seen_examples import seen_in
from tests.integration.test_training_lightning import FOLDER, FOUND
from tests.paths import python_path

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FOUND, reason="lightning is not installed, nor in a folder of SYNERGY_TEST_LIGHTNING"),
]
SCRIPT = Path(__file__).with_name("plain_lightning.py")


def steps_of(output: Path) -> int:
    return max(seen_in(output), default=0) if output.is_dir() else 0


def rates_of(output: Path) -> dict[int, float]:
    return {step: rate for step, rate in map(json.loads, (output / "rates.jsonl").read_text().splitlines())}


def weights_of(output: Path) -> list[float]:
    return [value for part in json.loads((output / "weights.json").read_text()) for value in part]


def test_a_run_goes_on_on_other_gpus_as_if_left_alone(tmp_path: Path) -> None:
    """2 processes, then 1, then 4, against a run on 2 alone; and the rates of the same script under plain torchrun."""
    plain, alone, output = (tmp_path / name for name in ("plain", "alone", "run"))
    for folder in (plain, alone, output):
        folder.mkdir()
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(SCRIPT),
        str(plain),
    ]
    environment = {**os.environ, "PYTHONPATH": python_path(FOLDER), "OMP_NUM_THREADS": "1"}
    subprocess.run(argv, env=environment, check=True, timeout=240, cwd=tmp_path)
    run_to_end(tmp_path, [str(SCRIPT), str(alone)], 2, 0, needs=FOLDER)
    words, slow = [str(SCRIPT), str(output)], {"needs": FOLDER, "environment": {"DELAY": "0.2"}}
    run_until(tmp_path, lambda: steps_of(output) >= 4, words, 2, 0, **slow)
    run_until(tmp_path, lambda: steps_of(output) >= 15, words, 1, 1, **slow)  # in the second epoch
    text = run_to_end(tmp_path, words, 4, 2, needs=FOLDER)
    assert text.count("synergy: step 0:") == 2 and "dp=4 micro_batch=2 global_batch=8" in text, text[-3000:]
    assert seen_in(output) == seen_in(alone) and rates_of(output) == pytest.approx(rates_of(plain))
    assert sorted(row for step in range(1, 14) for row in seen_in(output)[step]) == list(range(104))  # an epoch
    assert weights_of(output) == pytest.approx(weights_of(alone), abs=1e-6)


def test_a_data_module_keeps_its_size(tmp_path: Path) -> None:
    script = tmp_path / "module.py"
    text = SCRIPT.read_text().replace("max_steps=20", "max_steps=2")
    loader = "torch.utils.data.DataLoader(Rows(), batch_size=4, drop_last=True)"
    hook = f"    def train_dataloader(self):\n        return {loader}\n\n    def configure_optimizers"
    script.write_text(
        text.replace(f"fit(module, {loader})", "fit(module)").replace("    def configure_optimizers", hook)
    )
    (tmp_path / "run").mkdir()
    shown = run_to_end(tmp_path, [str(script), str(tmp_path / "run")], 2, 0, needs=FOLDER)
    assert "synergy: the job keeps its size: its training data comes from a data module or a hook" in shown
    assert "synergy: step" not in shown and weights_of(tmp_path / "run")
