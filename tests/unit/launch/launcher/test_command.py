"""synergy-launch on the command line: dry run, mistakes, which task of a step does what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from synergy_core.records import Shape
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile
from synergy_launch.agent import run_folder
from synergy_launch.launcher import command


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SYNERGY_", "CUDA_")):
            monkeypatch.delenv(name)


def test_dry_run_prints_and_leaves_a_running_jobs_folder_alone(
    outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in (("SLURM_JOB_ID", "9"), ("SLURM_JOB_NODELIST", "n1"), ("SYNERGY_STATE_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    running = run_folder.make(9, 0, 0)
    (running / "status.json").write_text("{}")
    done = CliRunner().invoke(command.command, ["--dry-run", "--checkpoint", "/a b", "train.py", "it's"])
    assert done.exit_code == 0 and "SYNERGY_CHECKPOINT_DIR='/a b'" in done.output and """'it'"'"'s'""" in done.output
    assert (running / "status.json").exists()


OWN = ("--num-layers", "2", "--num-attention-heads", "4", "--micro-batch-size", "2", "--global-batch-size", "16",
       "--tensor-model-parallel-size", "2", "--rampup-batch-size", "4", "4", "90")  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "report", "prepared"), [("4", "ctl:7321", True), ("2", "ctl:7321", False), ("4", "", False)]
)
def test_a_megatron_script_without_a_plan_can_be_resized_later(
    outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, report: str, prepared: bool
) -> None:
    """At the size asked for, its degrees, batch and ramp are its own, and it saves when it is asked to."""
    plan_file.write(PlanFile(9, None, report, "/ck", asked=Shape("a100", 1, 4)), tmp_path)
    for name, value in (
        ("JOB_ID", "9"), ("JOB_NODELIST", "n1"), ("STEP_ID", "0"), ("PROCID", "0"), ("NODEID", "0"),
        ("STEP_NUM_NODES", "1"), ("STEP_NUM_TASKS", "1"), ("GPUS_ON_NODE", gpus),
    ):  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SYNERGY_STATE_DIR", str(tmp_path))
    done = CliRunner().invoke(command.command, ["--dry-run", "pretrain_gpt.py", *OWN])
    assert done.exit_code == 0, done.output
    argv = done.output.splitlines()[-1]
    assert ("--exit-signal-handler" in argv and "--ckpt-format torch_dist" in argv and "--save /ck" in argv) is prepared
    for words in (
        "--micro-batch-size 2",
        "--global-batch-size 16",
        "--tensor-model-parallel-size 2",
        "--rampup-batch-size 4 4 90",
    ):
        assert words in argv


def test_runs_a_script_end_to_end(outside: None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print(sys.argv[1:], os.environ['SYNERGY_RESTARTS']); sys.exit(6)\n")
    done = subprocess.run([sys.executable, "-m", "synergy_launch.launcher.command", "--runner", "python", str(script), "--help", "$(x)"],
                          env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=30)  # fmt: skip
    assert (done.returncode, done.stdout) == (6, "['--help', '$(x)'] 0\n")
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["missing.py"], "missing.py"), (["x" * 5000], "xxx"), ([], "SCRIPT"), (["--nope", "a"], "nope")],
)
def test_mistakes_are_one_line_and_exit_code_two(outside: None, words: list[str], says: str) -> None:
    done = CliRunner().invoke(command.command, words)
    assert done.exit_code != 0
    shown = done.output + str(done.exception)
    assert says in shown and "Traceback" not in shown


@pytest.mark.slow
def test_a_task_too_many_leaves_and_the_leader_starts_a_step(
    outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "N=${SLURM_NTASKS-none}" > "$OUT"; exit 9\n')
    srun.chmod(0o755)
    (tmp_path / "t.py").write_text("")
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path / "out"), "SLURM_JOB_ID": "9", "SLURM_NTASKS": "8",
        "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "0",
    }  # fmt: skip
    argv = [sys.executable, "-m", "synergy_launch.launcher.command", str(tmp_path / "t.py"), "a b"]
    extra = subprocess.run(argv, env={**environment, "SLURM_PROCID": "3"}, capture_output=True, timeout=30)
    assert (extra.returncode, (tmp_path / "out").exists()) == (0, False)
    leader = subprocess.run(argv, env={**environment, "SLURM_PROCID": "0"}, capture_output=True, timeout=30)
    words = (tmp_path / "out").read_text().splitlines()
    assert leader.returncode == 9 and {"--nodes=2", "--ntasks=2"} <= set(words) and words[-2:] == ["a b", "N=none"]
