"""Scripts of frameworks without an adapter run as plain jobs; what they can't follow is one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_launch.launcher.script.no_adapter import check, find_framework

from tests.paths import python_path

STAND_IN = "import os, signal\nprint('trained', os.environ.get('SYNERGY_RUN_DIR', '') != '', os.listdir(os.environ['SYNERGY_RUN_DIR']))\n"


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import os\nimport deepspeed\n", "deepspeed"),
        ("def main():\n    from lightning import Trainer\n", "lightning"),
        ("from pytorch_lightning.callbacks import Callback\n", "pytorch_lightning"),
        ("import torchtitan.train\n", "torchtitan"),
        ("import lightning_utilities\n# import deepspeed\n", ""),
        ("import deepspeed\nfrom synergy_launch import SynergyTask\n", ""),
        ("from lightning import Trainer\nfrom synergy_launch.lightning import SynergyCallback\n", ""),
        ("import torch\n", ""),
    ],
)
def test_a_framework_is_known_by_its_import(tmp_path: Path, text: str, framework: str) -> None:
    assert find_framework(script(tmp_path, text)) == framework
    assert find_framework(str(tmp_path / "none.py")) == "" and find_framework("module:train") == ""
    assert find_framework("module:torchtitan.train") == "torchtitan"


def test_degrees_of_the_plan_that_are_not_applied_are_named(tmp_path: Path) -> None:
    path = script(tmp_path, "import torchtitan\n")
    said = f"{path} imports torchtitan, which has no adapter: the job keeps its size and its batch"
    assert check(path, None, "") == check(path, Plan(dp=4, global_batch=4), "") == said
    assert check(path, Plan(tp=2, pp=2, global_batch=4), "") == f"{said}; tp=2 pp=2 of its plan is not applied"
    with pytest.raises(UsageError, match=r"64:256: .* imports torchtitan, whose batch Synergy can't move"):
        check(path, None, "64:256")
    assert check(script(tmp_path, "import torch\n"), Plan(tp=2), "64:256") == ""
    with pytest.raises(UsageError, match=r"leave it out, or use DeepSpeedTask of synergy_launch\.deepspeed"):
        check(script(tmp_path, "import deepspeed\n"), None, "64:256")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("deepspeed", "and not DeepSpeedTask of synergy_launch.deepspeed"),
        ("torchtitan", "which has no adapter"),
        ("lightning", "and not SynergyCallback of synergy_launch.lightning"),
    ],
)
def test_the_launcher_runs_it_as_a_plain_job(tmp_path: Path, name: str, why: str) -> None:
    """No status is written, so no report tells the daemon that it could be resized."""
    (tmp_path / f"{name}.py").write_text("")
    path = script(tmp_path, f"import {name}\n{STAND_IN}")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))},
        "PYTHONPATH": python_path(tmp_path), "TMPDIR": str(tmp_path),
    }  # fmt: skip
    command = [sys.executable, "-m", "synergy_launch.launcher.command", "--runner", "python"]
    done = subprocess.run([*command, path], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "trained True []\n"), done.stderr
    assert f"synergy-launch: {path} imports {name}, {why}: the job keeps its size" in done.stderr
    refused = subprocess.run(
        [*command, "--global-batch", "64:256", path], env=environment, capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 2 and refused.stdout == "" and refused.stderr.count("\n") == 1
