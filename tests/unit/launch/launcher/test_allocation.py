"""What a launcher makes of Slurm's environment."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from synergy_launch.launcher import allocation
from synergy_launch.launcher.allocation import JobAllocation, read, rendezvous_port, step_command, without_stale

from synergyd.errors import UsageError

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_RESTART_COUNT": "3", "SLURM_GPUS_ON_NODE": "4"}
STEP = {
    **JOB, "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2",
}  # fmt: skip


def test_outside_slurm() -> None:
    where = read({"CUDA_VISIBLE_DEVICES": "0,3"})
    assert (
        where
        == JobAllocation(
            job_id=None, restarts=0, nodes=(socket.gethostname(),), node_rank=0, gpus=2, in_step=True, leader=True
        )
        and where.processes == 2
    )
    assert read({}).processes == 1 and read({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}).gpus == 0


def test_in_the_batch_script_it_leads() -> None:
    assert read(JOB) == JobAllocation(
        job_id=7, restarts=3, nodes=("n1", "n2"), node_rank=0, gpus=4, in_step=False, leader=True
    )


def test_in_a_step_that_covers_every_node_once() -> None:
    assert read(STEP) == JobAllocation(
        job_id=7, restarts=3, nodes=("n1", "n2"), node_rank=1, gpus=4, in_step=True, leader=False
    )


@pytest.mark.parametrize(
    "change", [{"SLURM_STEP_NUM_TASKS": "8"}, {"SLURM_STEP_NUM_NODES": "1"}, {"SLURM_STEP_NUM_TASKS": ""}]
)
@pytest.mark.parametrize("rank", ["0", "5"])
def test_in_a_step_of_a_stale_size_only_the_first_leads(change: dict[str, str], rank: str) -> None:
    where = read({**STEP, **change, "SLURM_PROCID": rank})
    assert not where.in_step and where.leader == (rank == "0")


def test_stale_sizes_of_the_sbatch_line_change_nothing() -> None:
    stale = {
        "SLURM_NTASKS": "64",
        "SLURM_NNODES": "32",
        "SLURM_GPUS": "99",
        "SLURM_GPUS_PER_NODE": "x",
        "SLURM_NPROCS": "9",
    }
    assert read({**STEP, **stale}) == read(STEP)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID"),
        ({"SLURM_JOB_ID": "²"}, "SLURM_JOB_ID"),
        ({"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST"),
        ({"SLURM_JOB_NODELIST": "n[1-"}, "SLURM_JOB_NODELIST"),
        ({"SLURM_NODEID": "-1"}, "SLURM_NODEID"),
        ({"SLURM_RESTART_COUNT": "two"}, "SLURM_RESTART_COUNT"),
    ],
)
def test_what_no_slurm_wrote_is_one_line(change: dict[str, str], names: str) -> None:
    with pytest.raises(UsageError, match=names) as problem:
        read({**STEP, **change})
    assert "\n" not in str(problem.value)


def test_step_covers_the_allocation_and_drops_stale_variables() -> None:
    argv = step_command(read(JOB), {"SLURM_CPUS_ON_NODE": "6"}, ["prog", "a b"])
    assert argv[-2:] == ["prog", "a b"]
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=6", "--gres=gpu:4"} <= set(argv)
    no_gpus = step_command(read({**JOB, "SLURM_GPUS_ON_NODE": ""}), {"SLURM_CPUS_ON_NODE": "6(x2)"}, ["p"])
    assert not any(w.startswith(("--gres", "--cpus")) for w in no_gpus)
    kept = without_stale({**STEP, "SLURM_NTASKS": "4", "PATH": "/bin"})
    assert kept == {**JOB, "PATH": "/bin"}


def test_ports_lie_below_the_ephemeral_range_and_change_with_the_incarnation() -> None:
    ports = {rendezvous_port(job, r) for job in (1, 7, 2**32 - 1, 123456) for r in range(8)}
    assert len(ports) == 32 and min(ports) >= 15000 and max(ports) < 32768


def test_address_falls_back_to_slurms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    sinfo = tmp_path / "sinfo"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    sinfo.write_text('#!/bin/sh\n[ "$4" = n1 ] && echo 10.0.0.9\n')
    sinfo.chmod(0o755)
    assert allocation.address_of("n1") == "10.0.0.9"
    assert allocation.address_of("n2") == "n2"
    sinfo.write_text("no program")  # can't be executed
    assert allocation.address_of("n1") == "n1"
