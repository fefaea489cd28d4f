"""A gated MLP under PyTorch's FSDP2, whose checkpoints load on as many processes as wrote them alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile
from synergy_launch.launcher import command
from synergy_launch.megatron_lm import fsdp2_checkpoint
from synergy_launch.megatron_lm.capabilities import accepts

GATED = ["--num-layers", "2", "--micro-batch-size", "1", "--global-batch-size", "8", "--use-torch-fsdp2", "--swiglu"]


def saved(folder: Path, processes: int) -> Path:
    inside = folder / "iter_0000040"
    inside.mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("40")
    for name in ("common.pt", *(f"__{rank}_{number}.distcp" for rank in range(processes) for number in (0, 1))):
        (inside / name).touch()
    return folder


@pytest.mark.parametrize("gate", ["--swiglu", "--quick-geglu"])
def test_it_goes_on_with_as_many_processes_alone(tmp_path: Path, gate: str) -> None:
    folder, arguments = saved(tmp_path / "a", 12), ["--use-torch-fsdp2", gate]
    fsdp2_checkpoint.check(arguments, folder, 12)
    fsdp2_checkpoint.check(arguments, tmp_path / "none", 8)
    for world in (1, 8):
        with pytest.raises(UsageError, match=f"iter_0000040 is of 12 processes, and would be mixed up on {world}"):
            fsdp2_checkpoint.check(arguments, folder, world)
    with pytest.raises(UsageError, match="start it on 12 GPUs"):
        fsdp2_checkpoint.check([*arguments, "--load", str(folder)], None, 8)
    # the others' rows are whole
    for others in (["--use-torch-fsdp2"], [gate], ["--use-megatron-fsdp", gate]):
        fsdp2_checkpoint.check(others, folder, 8)
    sizes = ["--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "64"]
    assert accepts([*sizes, *GATED]).own_size and not accepts([*sizes, *GATED[:-1]]).own_size


def test_the_launcher_says_so_before_it_starts_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SYNERGY_", "CUDA_"))]:
        monkeypatch.delenv(name)
    script, folder = tmp_path / "pretrain_gpt.py", saved(tmp_path / "save", 2)
    script.write_text("raise SystemExit('started')\n")
    done = CliRunner().invoke(command.command, ["--dry-run", "--checkpoint", str(folder), str(script), *GATED])
    assert isinstance(done.exception, UsageError) and "is of 2 processes" in str(done.exception)


def test_the_first_start_is_told_to_keep_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {
        "JOB_ID": 9,
        "JOB_NODELIST": "n",
        "STEP_ID": 0,
        "PROCID": 0,
        "NODEID": 0,
        "STEP_NUM_NODES": 1,
        "STEP_NUM_TASKS": 1,
    }
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    path = plan_file.write(PlanFile(9, Plan(global_batch=8), "", str(tmp_path / "save")), tmp_path)
    monkeypatch.setenv("SYNERGY_PLAN", str(path))
    script = tmp_path / "train.py"
    script.write_text("")
    for words, there in ((GATED, True), (GATED[:-1], False)):
        done = CliRunner().invoke(command.command, ["--runner", "python", str(script), *words])
        assert (fsdp2_checkpoint.REMARK in done.output) == there, done.output
