"""What the first node asks Slurm for so that nodes join a running job, and what the launchers there are told. salloc is a script."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_launch.launcher import more_nodes
from synergy_launch.launcher.job.allocation import JobAllocation, environment_of_run
from synergy_launch.launcher.more_nodes import (
    Membership,
    MoreNodes,
    make_salloc_options,
    membership,
    read_joined_allocation,
)

JOB = JobAllocation(job_id=9, restarts=1, nodes=("n1", "n2"), node_rank=0, gpus=4, in_step=True, leader=True, step="0")
MEMBER = Membership(job_id=9, restarts=1, step="0", run=2, order=3, members=("n1", "n2", "n3"))
RECORD = {
    "NumCPUs": "32", "NumNodes": "2", "Partition": "gpu", "Account": "physics", "QOS": "normal", "Features": "ib&a100",
    "Reservation": "(null)", "MinMemoryNode": "64G", "TresPerNode": "gres:gpu:a100:2,gres:nvme:1", "OverSubscribe": "NO",
    "TimeLimit": "01:00:00", "EndTime": "2026-11-25T12:30:30",
}  # fmt: skip
NOW_S = time.mktime(time.strptime("2026-11-25T12:00:00", "%Y-%m-%dT%H:%M:%S"))


def test_the_request_is_like_the_jobs_own() -> None:
    options = set(make_salloc_options(RECORD, JOB, ("n3", "n4"), 5, NOW_S))
    assert options == {
        "--immediate=5", "--quiet", "--no-bell", "--job-name=synergy-nodes-of-9.1.5", "--nodes=2", "--ntasks=2",
        "--ntasks-per-node=1", "--nodelist=n3,n4", "--cpus-per-task=16", "--gres=gpu:a100:4,nvme:1", "--partition=gpu",
        "--account=physics", "--qos=normal", "--constraint=ib&a100", "--mem=64G", "--exclusive", "--time=31",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"TresPerNode": "gres/gpu:4"}, "--gres=gpu:4"),
        ({"TresPerNode": ""}, "--gres=gpu:4"),
        ({"MinMemoryNode": "0", "MinMemoryCPU": "2G"}, "--mem-per-cpu=2G"),
        ({"Partition": "gpu,cpu"}, "--partition=gpu"),
        ({"Reservation": "monday"}, "--reservation=monday"),
    ],
)
def test_what_the_job_has_is_asked_for(changes: dict[str, str], option: str) -> None:
    assert option in make_salloc_options({**RECORD, **changes}, JOB, ("n3",), 5, NOW_S)


def test_a_job_without_a_limit_asks_for_none_and_one_that_ends_soon_for_nothing() -> None:
    options = make_salloc_options({**RECORD, "TimeLimit": "UNLIMITED"}, JOB, ("n3",), 5, NOW_S)
    assert not [o for o in options if o.startswith("--time")]
    with pytest.raises(UsageError, match="two minutes"):
        make_salloc_options(RECORD, JOB, ("n3",), 5, NOW_S + 1750)


def test_a_launcher_beside_the_job_knows_whose_it_is() -> None:
    assert membership({more_nodes.JOINED: MEMBER.text()}) == MEMBER and membership({}) is None
    slurms = {"SLURM_JOB_ID": "50", "SLURM_JOB_NODELIST": "n3", "SLURM_GPUS_ON_NODE": "4", "SLURMD_NODENAME": "n3"}
    slurms |= {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": "1",
    }
    seen = read_joined_allocation(MEMBER, slurms)
    assert (seen.job_id, seen.restarts, seen.node_rank, seen.gpus, seen.launcher) == (9, 1, 2, 4, "0.2")
    own = more_nodes.environment_of_job(MEMBER, slurms)
    assert own == {"SLURM_JOB_ID": "9", "SLURM_JOBID": "9", "SLURM_RESTART_COUNT": "1", "SYNERGY_EXPANDER": "50"}
    with pytest.raises(UsageError, match="does not name n7"):
        read_joined_allocation(MEMBER, {**slurms, "SLURMD_NODENAME": "n7"})


@pytest.mark.parametrize(
    "text", ["9", "9 1 0 2 3", "9 1 0 2 x n1", "9 1 0 2 3 n[1-", "a 1 0 2 3 n1", "9 1 0 2 3 n1 n2"]
)
def test_what_nobody_of_ours_wrote_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        membership({more_nodes.JOINED: text})


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], MoreNodes]]:
    """A function that asks for n3 where salloc is a script of this text."""
    made: list[MoreNodes] = []

    def ask(text: str) -> MoreNodes:
        commands = {
            "scontrol": f"echo {' '.join(f'{k}={v!r}' for k, v in RECORD.items() if k != 'EndTime')}",
            "salloc": text,
        }
        for name, lines in commands.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        environment = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "SLURM_JOB_ID": "9",
            "SLURM_CONF": "/x",
            "CUDA_VISIBLE_DEVICES": "0",
        }
        made.append(MoreNodes(5, ("n3",), MEMBER, JOB, environment))
        return made[-1]

    yield ask
    for each in made:
        each.end("the test is over")


def until(growth: MoreNodes, true: Callable[[], object], connected: frozenset[str] = frozenset()) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, growth.refusal
        growth.poll(connected)
        time.sleep(0.02)


def test_nodes_that_slurm_does_not_give_are_a_refusal(
    slurm: Callable[[str], MoreNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(more_nodes, "_IMMEDIATE_S", 0)  # however long it has taken
    growth = slurm("echo 'salloc: error: Unable to allocate resources: Requested nodes are busy' >&2; exit 1")
    until(growth, lambda: growth.refusal)
    assert growth.refusal == "Unable to allocate resources: Requested nodes are busy" and not growth.is_complete
    until(growth, lambda: growth.is_over)
    assert not growth.is_granted


def test_launchers_that_end_again_were_on_nodes_that_slurm_had_given(
    slurm: Callable[[str], MoreNodes], tmp_path: Path
) -> None:
    growth = slurm(f"while [ ! -e {tmp_path}/end ]; do sleep 0.1; done; exit 1")
    until(growth, lambda: growth.is_complete, frozenset({"n3"}))
    (tmp_path / "end").touch()
    until(growth, lambda: growth.refusal)
    assert growth.is_granted


def test_nodes_count_once_all_their_launchers_are_connected(slurm: Callable[[str], MoreNodes], tmp_path: Path) -> None:
    growth = slurm(f'env > {tmp_path}/seen; echo "$@" >> {tmp_path}/seen; exec sleep 600')
    until(growth, lambda: (tmp_path / "seen").exists())
    growth.poll(frozenset({"n2"}))
    assert not growth.is_complete
    until(growth, lambda: growth.is_complete, frozenset({"n2", "n3"}))
    seen = (tmp_path / "seen").read_text()
    assert f"SYNERGY_JOINED={MEMBER.text()}" in seen and "SLURM_CONF=/x" in seen
    assert "SLURM_JOB_ID" not in seen and "CUDA_VISIBLE_DEVICES" not in seen
    growth.end("no more")
    until(growth, lambda: growth.is_over)


def test_nodes_that_do_not_come_in_time_are_given_back(
    slurm: Callable[[str], MoreNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(more_nodes, "JOIN_S", 0.5)
    growth = slurm("exec sleep 600")
    until(growth, lambda: growth.refusal)
    assert growth.refusal == "n3 did not join in time"
    until(growth, lambda: growth.is_over)


def test_no_commands_of_slurms_and_a_container_rule_it_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not more_nodes.can_start_steps({})
    for name in ("salloc", "srun", "scontrol"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert more_nodes.can_start_steps({}) and not more_nodes.can_start_steps({"APPTAINER_CONTAINER": "/x.sif"})


def test_scripts_that_read_slurms_variables_see_the_run() -> None:
    """They are those of the step's start, which has other nodes than the run once some have left or joined."""
    slurms = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODEID": "0"}
    assert environment_of_run(JOB, slurms) == {}
    wider = replace(JOB, nodes=("n1", "n2", "n3"), node_rank=2)
    seen = environment_of_run(wider, {**slurms, "SLURM_JOB_NODELIST": "n3"})
    assert (seen["SLURM_JOB_NODELIST"], seen["SLURM_NODEID"], seen["SLURM_PROCID"]) == ("n1,n2,n3", "2", "2")
    assert {seen[name] for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NTASKS")} == {"3"}
    assert environment_of_run(replace(wider, job_id=None), {}) == {}
