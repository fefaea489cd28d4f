"""A running job keeps its place: no resize leaves it waiting behind others, or is begun for nobody. Three nodes of four GPUs, of
which a plain job has n3, and a Slurm that defers starts, so that plain jobs are seen waiting which start a moment later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.integration.daemon_site import explain, sizes, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster, missing_programs
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing_programs()), reason="Slurm or munge is not installed"),
]
DEFER = "SchedulerParameters=defer,bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0"
#: epochs of a second in which nothing may happen
QUIET_S = 5.0


@pytest.fixture(scope="module")
def town() -> Iterator[SlurmCluster]:
    # a window between requeue and start that tests on a busy machine can't miss
    lines = (DEFER, "#SYNERGY RestartDelay=4 Live=no")
    with make_cluster((NodeGroup("cpu", 3, 4),), epoch_s=1, settings=lines) as cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


@pytest.fixture
def empty(town: SlurmCluster) -> Iterator[SlurmCluster]:
    """With n1 and n2 free."""
    filler = plain(town, 4, "-w", "n3", "-J", "filler")
    town.wait_for(lambda: town.state(filler) == "RUNNING", 60, "n3 to be taken")
    yield town
    town.run("scontrol", "update", "PartitionName=main", "State=UP")
    town.run("scancel", *town._job_ids(), check=False)
    town.wait_for(lambda: town._job_ids() == ["0"], 120, "an empty queue")
    town.wait_for(lambda: "synergy-" not in reservations(town), 60, "no reservation of the daemon's to be left")


def plain(cluster: SlurmCluster, gpus: int, *options: str, seconds: float = 600) -> int:
    words = (f"--gres=gpu:{gpus}", "-o", "/dev/null", *options)
    return cluster.sbatch(f"#!/bin/sh\nexec sleep {seconds}\n", *words)


def reservations(cluster: SlurmCluster) -> str:
    return cluster.run("scontrol", "show", "reservation", "--oneliner").stdout


def squeue(cluster: SlurmCluster, job_id: int, fields: str) -> list[str]:
    """The fields of the job in one look."""
    return cluster.run("squeue", "-h", "-j", str(job_id), "-O", fields, check=False).stdout.split()


def restarts(cluster: SlurmCluster, job_id: int) -> int:
    return int((squeue(cluster, job_id, "RestartCnt:10") or ["-1"])[0])


def story(cluster: SlurmCluster, job_id: int) -> str:
    data = explain(cluster, job_id)
    return "\n".join([*(line["detail"] for line in data["story"]), (data["decision"] or {}).get("why", "")])


def until(cluster: SlurmCluster, job_id: int, condition: Callable[[], object], what: str) -> None:
    try:
        cluster.wait_for(condition, 120, what)
    except RuntimeError as error:
        queue = cluster.run("squeue", "-O", "JobID,State,NodeList,RestartCnt,Nice,ReasonList").stdout
        raise AssertionError(f"{error}\n{queue}\n{reservations(cluster)}\n{story(cluster, job_id)}") from None


def runs_on(cluster: SlurmCluster, job_id: int, nodes: int, restart: int) -> bool:
    row = squeue(cluster, job_id, "State:12,NumNodes:6,RestartCnt:6")
    return row == ["RUNNING", str(nodes), str(restart)]


def test_a_resize_waits_for_its_partition_and_then_keeps_its_place(empty: SlurmCluster) -> None:
    """It grows to both nodes once its partition is up, and shrinks again for the one job that can start then; each time three plain
    jobs try to come between."""
    other = plain(empty, 4, "-w", "n2")
    job_id = light_job.submit(empty, directive="max_gpus=8", options=("--nice=7",))
    until_steps(empty, job_id, timeout_s=90)
    empty.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    empty.run("scancel", str(other))
    for state in ("DOWN", "DRAIN"):
        empty.run("scontrol", "update", "PartitionName=main", f"State={state}")
        until(empty, job_id, lambda: f"is {state}" in story(empty, job_id), "the reason")  # noqa: B023
        time.sleep(QUIET_S)
        assert runs_on(empty, job_id, 1, 0), story(empty, job_id)
    empty.run("scontrol", "update", "PartitionName=main", "State=UP")

    until(empty, job_id, lambda: restarts(empty, job_id) == 1, "the requeue to grow")
    waiting = [plain(empty, 4) for _ in range(3)]
    until(empty, job_id, lambda: empty.state(job_id) == "RUNNING", "the restart after the growth")
    assert runs_on(empty, job_id, 2, 1), story(empty, job_id)
    assert [empty.state(i) for i in waiting] == ["PENDING"] * 3

    until(empty, job_id, lambda: restarts(empty, job_id) == 2, "the requeue to shrink")
    waiting += [plain(empty, 2, "--nice=-1000") for _ in range(3)]
    until(empty, job_id, lambda: runs_on(empty, job_id, 1, 2), "the restart after the shrink")
    until(empty, job_id, lambda: "RUNNING" in [empty.state(i) for i in waiting], "one that waits to start")
    assert runs_on(empty, job_id, 1, 2), story(empty, job_id)
    until(empty, job_id, lambda: squeue(empty, job_id, "Nice:14") == ["7"], "its own place in the queue")
    assert "synergy-" not in reservations(empty)


def test_nodes_that_others_have_taken_are_not_waited_for(empty: SlurmCluster) -> None:
    """Where its nodes could not be kept, and a job that came between wants one of them for good, another node will do."""
    other = plain(empty, 4, "-w", "n2")
    job_id = light_job.submit(empty, directive="max_gpus=8")
    until_steps(empty, job_id, timeout_s=90)
    empty.run("scancel", str(other))
    until(empty, job_id, lambda: restarts(empty, job_id) == 1, "the requeue to grow")
    empty.run("scontrol", "delete", f"ReservationName=synergy-{job_id}")
    taker = plain(empty, 4, "-w", "n2")
    empty.run("scancel", "--name=filler")
    until(empty, job_id, lambda: runs_on(empty, job_id, 2, 1), "a start on the other nodes")
    assert empty.state(taker) == "RUNNING" and "others have taken GPUs of n1, n2" in story(empty, job_id)


def test_no_shrink_for_a_job_that_could_not_start_anyway(empty: SlurmCluster) -> None:
    """Neither for one that asks for more than it would give, nor for one that wants a node where it has nothing."""
    other = plain(empty, 4, "-w", "n2")
    empty.wait_for(lambda: empty.state(other) == "RUNNING", 60, "the other job to run")
    job_id = light_job.submit(empty, gpus=2, directive="max_gpus=4")
    until(empty, job_id, lambda: sizes(empty, job_id) == [4], "four GPUs")
    until_steps(empty, job_id, timeout_s=60)
    before = restarts(empty, job_id)
    elsewhere = plain(empty, 1, "-w", "n2")
    excluded = plain(empty, 1, "--exclude=n1")
    large = plain(empty, 3)
    until(empty, job_id, lambda: squeue(empty, elsewhere, "Reason:20") == ["Resources"], "Slurm to look")
    time.sleep(QUIET_S)
    assert (restarts(empty, job_id), empty.state(job_id)) == (before, "RUNNING"), story(empty, job_id)
    empty.run("scancel", str(elsewhere), str(excluded), str(large))
    small = plain(empty, 2)
    until(empty, job_id, lambda: empty.state(small) == "RUNNING", "the one that what it has too much is enough for")
    until(empty, job_id, lambda: restarts(empty, job_id) == before + 1, "its restart")


def test_no_shrink_for_jobs_that_start_a_moment_later(empty: SlurmCluster) -> None:
    job_id = light_job.submit(empty, gpus=2, directive="max_gpus=4", options=("-w", "n1"))
    until(empty, job_id, lambda: sizes(empty, job_id) == [4], "four GPUs")
    until_steps(empty, job_id, timeout_s=60)
    before = restarts(empty, job_id)
    for _ in range(6):
        short = plain(empty, 4, seconds=0.1)
        until(empty, job_id, lambda: not squeue(empty, short, "JobID:10"), "a short job to end")  # noqa: B023
    assert (restarts(empty, job_id), empty.state(job_id)) == (before, "RUNNING"), story(empty, job_id)
