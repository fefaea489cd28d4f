"""What a launcher makes of Slurm's environment."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_launch.launcher.job import allocation
from synergy_launch.launcher.job.allocation import JobAllocation, read, rendezvous_port, step_command, without_stale

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
        job_id=7, restarts=3, nodes=("n1", "n2"), node_rank=1, gpus=4, in_step=True, leader=False, step="0"
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
    assert allocation.find_address("n1") == "10.0.0.9"
    assert allocation.find_address("n2") == "n2"
    sinfo.write_text("no program")  # can't be executed
    assert allocation.find_address("n1") == "n1"


HET = {
    "SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_RESTART_COUNT": "1",
    "SLURM_JOB_ID_HET_GROUP_0": "7", "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_ID_HET_GROUP_1": "8", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
}  # fmt: skip
# as srun --het-group=1 gives it with the size of the sbatch line
HET_STEP = {
    **HET, "SLURM_JOB_NODELIST": "n2", "SLURMD_NODENAME": "n2", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n2",
}  # fmt: skip


def test_in_a_step_of_a_component_the_job_is_that_component() -> None:
    where = read(HET_STEP)
    assert where == JobAllocation(
        job_id=8, restarts=1, nodes=("n2", "n3"), node_rank=0, gpus=4, in_step=False, leader=True, het_group=1, step="0"
    )
    command = step_command(where, HET_STEP, ["x"])
    assert "--het-group=1" in command and "--nodes=2" in command
    covers = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[2-3]"}
    last = read({**HET_STEP, **covers, "SLURMD_NODENAME": "n3", "SLURM_NODEID": "1", "SLURM_PROCID": "1"})
    assert (last.in_step, last.leader, last.node_rank) == (True, False, 1)


def test_in_a_step_of_both_components_its_first_task_leads() -> None:
    """As many nodes and tasks as the component has, but not its nodes."""
    both = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]"}
    where = read({**HET_STEP, **both, "SLURM_NODEID": "1", "SLURM_PROCID": "1"})
    assert (where.in_step, where.leader, where.nodes) == (False, True, ("n2", "n3"))
    assert not read({**HET_STEP, **both, "SLURM_LOCALID": "1", "SLURM_PROCID": "2"}).leader


def test_a_batch_script_on_a_component_without_gpus_is_told_what_to_write() -> None:
    batch = {**HET, "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
    assert read(batch).het_group == 0
    with pytest.raises(UsageError, match="--het-group=N"):
        read({k: v for k, v in batch.items() if k != "SLURM_GPUS_ON_NODE"})


def test_names_of_components() -> None:
    assert [allocation.slurm_name(i, HET) for i in (7, 8)] == ["7+0", "8"]
    assert [allocation.requeued_name(i, HET) for i in (7, 8)] == ["7", "7"]
    assert allocation.requeued_name(5, {}) == "5"


@pytest.mark.parametrize("size", ["", "1", "x", "99999999999", "-2"])
def test_a_size_that_no_slurm_wrote_makes_it_no_component(size: str) -> None:
    assert read({**JOB, "SLURM_HET_SIZE": size}).het_group is None
