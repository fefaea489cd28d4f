"""Commands of other launchers, as users write them behind synergy-launch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Shape
from synergy_launch.launcher.commands.other_launchers import Translation, check_script, translate, with_processes
from synergy_launch.launcher.job.allocation import JobAllocation

OWN = sys.executable


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: OWN if "/" not in name else name)


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("train.py --lr 1", "train.py --lr 1"),
        ("torchrun train.py --lr 1", "train.py --lr 1"),
        (
            "/opt/bin/torchrun --nproc_per_node=gpu --nnodes 2 --rdzv-backend c10d --rdzv_endpoint=a:1 train.py -x",
            "train.py -x",
        ),
        ("torchrun --standalone --nproc-per-node 4 -m my.train --lr 1", "-m my.train --lr 1"),
        ("torchrun --max-restarts=3 -- train.py --nnodes 7", "train.py --nnodes 7"),
        ("python train.py -u", "train.py -u"),
        ("python3 -u -m my.train a", "-m my.train a"),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", "train.py"),
        ("-m torch.distributed.run --nproc_per_node 2 train.py", "train.py"),
        (
            "accelerate launch --multi_gpu --num_processes 8 --mixed_precision bf16 run_clm.py --do_train",
            "run_clm.py --do_train",
        ),
        ("deepspeed --num_gpus=4 --hostfile h train.py --deepspeed ds.json", "train.py --deepspeed ds.json"),
        ("ft_launcher --nproc-per-node=8 train.py", "train.py"),
        ("--nproc_per_node=8 --nnodes 2 train.py --lr 1", "train.py --lr 1"),
    ],
)
def test_the_script_and_its_arguments_remain(line: str, script: str) -> None:
    made = _translate(line)
    assert " ".join(["-m"] * made.module + [made.script, *made.arguments]) == script


def _translate(line: str) -> Translation:
    words = line.split()
    module = words[0] == "-m"
    words = words[1:] if module else words
    return translate(words[0], words[1:], module)


def test_what_a_launcher_adds_is_added() -> None:
    assert translate("deepspeed", ["train.py"]).local_rank == "--local_rank"
    assert translate("deepspeed", ["--no_local_rank", "train.py"]).local_rank == ""
    assert translate("python", ["-m", "torch.distributed.launch", "train.py"]).local_rank == "--local-rank"
    assert translate("torch.distributed.launch", ["--use_env", "train.py"], module=True).local_rank == ""
    assert translate("python", ["-uB", "train.py"]).environment == {
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    accelerated = translate("accelerate", ["launch", "--mixed_precision", "bf16", "a.py"])
    assert accelerated.environment == {"ACCELERATE_MIXED_PRECISION": "bf16"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "torchrun --tee 3 train.py",
            "torchrun: option --tee has no equivalent here; synergy-launch train.py ..., without --tee",
        ),
        ("torchrun --nproc-per-node", "option --nproc-per-node has no value"),
        ("torchrun --nproc-per-node 2", "torchrun: names no script; synergy-launch train.py ..."),
        ("python -c pass", "python: without a script"),
        ("python -I train.py", "python: option -I can't be passed on"),
        ("/elsewhere/bin/python train.py", "/elsewhere/bin/python: is not the python of the launcher"),
        ("accelerate config", "'accelerate config' starts no training"),
        (
            "accelerate launch --use_fsdp train.py",
            "accelerate launch: option --use_fsdp has no equivalent here; set it in",
        ),
        ("deepspeed --include localhost:0 train.py", "deepspeed: option --include has no equivalent"),
        (
            "ft_launcher --ft-rank-heartbeat-timeout=9 train.py",
            "it watches and restarts the run itself, without --ft-rank",
        ),
        (
            "--chekpoint=/x train.py",
            "synergy-launch: option --chekpoint has no equivalent here; synergy-launch train.py ..., without",
        ),
        (
            "bash run.sh",
            "bash: is to run a script of its own, and synergy-launch runs Python scripts; in that script synergy-launch",
        ),
        (
            "uv run train.py",
            "uv: stands behind synergy-launch, which uses its own python; uv run synergy-launch train.py ...",
        ),
        ("/opt/conda/bin/conda run -n x python t.py", "; conda run -n ENVIRONMENT synergy-launch train.py ..."),
        ("env A=1 python t.py", "; env NAME=VALUE synergy-launch train.py ..."),
        (
            "apptainer exec i.sif python t.py",
            "which would run outside its container; apptainer ... python3 synergy-launch.pyz train.py",
        ),
        (
            "mpirun -np 4 python t.py",
            "mpirun: is not needed: synergy-launch starts a process on each GPU; synergy-launch train.py ...",
        ),
    ],
)
def test_what_is_not_exact_is_one_line_that_says_what_to_write(line: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        _translate(line)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"import torch\n", ""),
        (b"#!/usr/bin/env python3\n", ""),
        # by pip, where the path is too long for a kernel's first line
        (b"#!/bin/sh\n'''exec' " + b"/deep" * 60 + b"/bin/python3 \"$0\" \"$@\"\n' '''\nimport re\n", ""),
        (
            b"#!/bin/bash\ntorchrun t.py\n",
            "is a shell script, not Python; start it without synergy-launch, and in it synergy-launch train.py",
        ),
        (b"\x7fELF\x02", "is a program, not a Python script; synergy-launch train.py ..."),
        (None, "does not exist or can't be read; name a training script, or -m MODULE"),
    ],
)
def test_a_file_that_is_no_python_script_is_said(tmp_path: Path, text: bytes | None, message: str) -> None:
    path = tmp_path / "run"
    if text is not None:
        path.write_bytes(text)
    if not message:
        check_script(str(path))
        return
    with pytest.raises(UsageError) as error:
        check_script(str(path))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_configuration_of_accelerate_is_read(tmp_path: Path) -> None:
    path = tmp_path / "accelerate" / "default_config.yaml"
    path.parent.mkdir()
    usual = "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nuse_cpu: false\n"
    path.write_text(f"{usual}num_processes: 8\ntpu_env: []\n")
    assert translate("accelerate", ["launch", "a.py"]).environment == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    path.write_text(f"{usual}deepspeed_config:\n  zero_stage: 2\n")
    with pytest.raises(UsageError, match="'deepspeed_config:' of Accelerate's configuration"):
        translate("accelerate", ["launch", "a.py"])
    other = tmp_path / "other.yaml"
    other.write_text("distributed_type: FSDP\n")
    with pytest.raises(UsageError, match="'distributed_type: FSDP'"):
        translate("accelerate", ["launch", "--config_file", str(other), "a.py"])
    with pytest.raises(UsageError, match="can't be read"):
        translate("accelerate", ["launch", "--config_file=/none.yaml", "a.py"])


def test_other_numbers_than_the_jobs_are_said() -> None:
    made = translate("torchrun", ["--nproc-per-node", "4", "--nnodes", "2", "train.py"])
    assert with_processes(made, _job(2, 4), None) == _job(2, 4)
    with_processes(made, _job(1, 8), Shape("a100", 2, 4))  # resized: the line is that of the requested size
    with_processes(translate("torchrun", ["--nnodes", "1:4", "train.py"]), _job(8, 1), None)
    with pytest.raises(UsageError, match=r"4 processes on a node, but the job has 8 GPUs there; --gres=gpu:4"):
        with_processes(made, _job(2, 2), Shape("a100", 2, 8))
    with pytest.raises(UsageError, match=r"on 2 nodes, but the job has 1"):
        with_processes(made, _job(1, 4), Shape("a100", 1, 4))


def test_outside_slurm_its_number_of_processes_counts() -> None:
    outside = replace(_job(1, 0), job_id=None)
    assert with_processes(translate("torchrun", ["--nproc-per-node=3", "t.py"]), outside, None).world == 3
    assert with_processes(translate("t.py", []), outside, None).world == 1


def _job(nodes: int, gpus: int) -> JobAllocation:
    names = tuple(f"n{i}" for i in range(nodes))
    return JobAllocation(job_id=1, restarts=0, nodes=names, node_rank=0, gpus=gpus, in_step=True, leader=True)


SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(ranks)
os.write(1, f"sum={int(ranks)} argv={sys.argv[1:]} unbuffered={os.environ.get('PYTHONUNBUFFERED')}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize(
    ("words", "shows"),
    [
        ("torchrun --nproc-per-node 2 train.py --lr 1", {"sum=3 argv=['--lr', '1'] unbuffered=None"}),
        ("python -u -m torch.distributed.run --nproc_per_node=2 train.py", {"sum=3 argv=[] unbuffered=1"}),
        (
            "deepspeed --num_gpus 2 train.py --lr 1",
            {f"sum=3 argv=['--local_rank={rank}', '--lr', '1'] unbuffered=None" for rank in (0, 1)},
        ),
    ],
)
def test_the_processes_run_as_under_the_other_launcher(tmp_path: Path, words: str, shows: set[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SYNERGY_", "CUDA_", "PYTHONUNBUF"))
    }
    clean["PATH"] = f"{Path(OWN).parent}:{clean['PATH']}"
    argv = [OWN, "-m", "synergy_launch.launcher.command", *words.split()]
    done = subprocess.run(argv, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == shows and len(done.stdout.splitlines()) == 2
    assert "synergy-launch: runs train.py as 'synergy-launch train.py ...' in place of" in done.stderr


def test_a_command_that_is_not_exact_ends_with_one_line(tmp_path: Path) -> None:
    argv = [OWN, "-m", "synergy_launch.launcher.command", "torchrun", "--tee", "3", "train.py"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    said = "torchrun: option --tee has no equivalent here; synergy-launch train.py ..., without --tee"
    assert (done.returncode, done.stderr) == (2, f"synergy-launch: {said}\n")
