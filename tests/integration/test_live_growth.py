"""Nodes that join a running job and leave it again: on a real cluster, with the ordinary `srun synergy-launch` of a user's script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import story, until_beat, until_steps
from tests.integration.test_in_place import last_step, shown, steps
from tests.integration.test_live_shrink import GPUS, is_live, small
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with make_cluster([NodeGroup("cpu", 4, GPUS)], epoch_s=1) as cluster:
        remember_programs(cluster, light_jobs=("wide", "small"))
        with synergyd(cluster):
            until_beat(cluster)
            yield cluster


def queue(cluster: SlurmCluster) -> list[str]:
    return cluster.run("squeue", "-h", "-o", "%i %j %T %D").stdout.splitlines()


def standstill_s(cluster: SlurmCluster, job: int, dp: int) -> float:
    """Seconds from the last step before the latest change to `dp` to the first one after; no step is lost."""
    log = steps(cluster, job)
    at = max(i for i in range(1, len(log)) if log[i]["dp"] == dp != log[i - 1]["dp"])
    assert log[at]["step"] == log[at - 1]["step"] + 1, "no step is lost, none is done twice"
    return float(log[at]["time"]) - float(log[at - 1]["time"])


def narrow(cluster: SlurmCluster, name: str) -> tuple[int, int]:
    """A job that runs on two nodes and may have four, and another one on the other two."""
    other = small(cluster, 2)
    cluster.wait_for(lambda: cluster.state(other) == "RUNNING", 120, "the other job's start")
    size = f"min_gpus={GPUS} max_gpus={4 * GPUS}"
    job = light_job.submit(
        cluster,
        name,
        gpus=GPUS,
        directive=size,
        before="export CHECKPOINT_EVERY=50\n",
        options=("--nodes=2", "--time=60"),
    )
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 2 * GPUS, 180, "steps on two nodes")
    until_steps(cluster, job, steps=20, timeout_s=120)
    cluster.wait_for(lambda: is_live(cluster, job), 120, "its launchers to say what they can do")
    return job, other


def grown(cluster: SlurmCluster, name: str) -> tuple[int, int]:
    """A job that has grown from two nodes to four while it ran, and the allocation beside its own."""
    job, other = narrow(cluster, name)
    cluster.run("scancel", str(other))
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 4 * GPUS, 120, "steps on four nodes")
    cluster.wait_for(lambda: "resized live" in story(cluster, job), 60, "the story")
    until_steps(cluster, job, steps=int(last_step(cluster, job)["step"]) + 60, timeout_s=120)
    (beside,) = (int(line.split()[0]) for line in queue(cluster) if f"synergy-nodes-of-{job}" in line)
    return job, beside


def until_empty(cluster: SlurmCluster, *jobs: int) -> None:
    """Cancel the jobs; no allocation outlives them."""
    for each in jobs:
        cluster.run("scancel", str(each))
    cluster.wait_for(lambda: not queue(cluster), 60, "an empty queue")


def test_nodes_join_a_running_job_and_leave_it(cluster: SlurmCluster) -> None:
    job, _ = grown(cluster, "wide")
    print(f"2 -> 4 nodes: trains again after {standstill_s(cluster, job, 4 * GPUS):.1f} s")
    assert (cluster.state(job), shown(cluster, job, "Restarts"), shown(cluster, job, "NumNodes")) == (
        "RUNNING",
        "0",
        "2",
    )
    again = small(cluster, 2)
    cluster.wait_for(lambda: cluster.state(again) == "RUNNING", 180, "the other job's start")
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 2 * GPUS, 60, "steps on two nodes")
    print(f"4 -> 2 nodes: trains again after {standstill_s(cluster, job, 2 * GPUS):.1f} s")
    cluster.run("scancel", str(again))
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 4 * GPUS, 180, "steps on four nodes again")
    print(f"2 -> 4 nodes: trains again after {standstill_s(cluster, job, 4 * GPUS):.1f} s")
    until_steps(cluster, job, steps=int(last_step(cluster, job)["step"]) + 20, timeout_s=120)
    assert shown(cluster, job, "Restarts") == "0"
    until_empty(cluster, job)


def test_a_run_outlives_the_allocation_beside_its_own(cluster: SlurmCluster) -> None:
    job, beside = grown(cluster, "wide")
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2-00:00:00")
    until = shown(cluster, job, "EndTime")
    cluster.wait_for(lambda: shown(cluster, beside, "EndTime")[:10] == until[:10], 60, "the other's later end")
    cluster.run("scancel", str(beside))
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 2 * GPUS, 120, "steps on its own nodes")
    assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "0")
    until_empty(cluster, job)


def test_a_requeue_by_the_user_takes_all_nodes(cluster: SlurmCluster) -> None:
    job, beside = grown(cluster, "wide")
    cluster.run("scontrol", "requeue", str(job))
    cluster.wait_for(lambda: cluster.state(beside) not in ("RUNNING", "COMPLETING"), 60, "the other allocation's end")
    cluster.wait_for(lambda: last_step(cluster, job).get("restarts") == 1, 180, "its next run")
    until_empty(cluster, job)


def test_nothing_outlives_launchers_that_were_killed(cluster: SlurmCluster) -> None:
    job, beside = grown(cluster, "wide")
    cluster.run("scancel", "--signal=KILL", "--full", str(job))
    cluster.wait_for(lambda: cluster.state(beside) not in ("RUNNING", "COMPLETING"), 60, "the other allocation's end")
    until_empty(cluster, job)


def test_a_site_that_lets_no_job_submit_requeues(cluster: SlurmCluster) -> None:
    job, other = narrow(cluster, "wide")
    cluster.run("scontrol", "update", "PartitionName=main", "AllocNodes=login1")
    try:
        cluster.run("scancel", str(other))
        # one may have been a race for the nodes
        cluster.wait_for(lambda: story(cluster, job).count("can't be had while it runs") == 2, 240, "two refusals")
    finally:
        cluster.run("scontrol", "update", "PartitionName=main", "AllocNodes=ALL")
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 4 * GPUS, 120, "steps on four nodes")
    assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "1")
    until_empty(cluster, job)
