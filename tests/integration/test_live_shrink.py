"""Nodes that a running job gives back: on a real cluster, with the ordinary `srun synergy-launch` of a user's script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from synergyd.store.store import open_store
from tests.integration.daemon_site import empty_queue, story, until_beat, until_steps
from tests.integration.test_in_place import last_step, shown, steps
from tests.throwaway import last_node_log, light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

pytestmark = pytest.mark.slurm
GPUS = 2  # of each node


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with make_cluster([NodeGroup("cpu", 4, GPUS)], epoch_s=1) as cluster:
        remember_programs(cluster, light_jobs=("wide", "later", "small", "log"))
        with synergyd(cluster):
            until_beat(cluster)
            yield cluster


@pytest.fixture(autouse=True)
def emptied(cluster: SlurmCluster) -> Iterator[None]:
    yield
    empty_queue(cluster)


def wide(cluster: SlurmCluster, name: str, after: str = "") -> int:
    """A job that may have one to four nodes, running on all four."""
    job = light_job.submit(
        cluster,
        name,
        gpus=GPUS,
        directive=f"min_gpus={GPUS} max_gpus={4 * GPUS}",
        before="export CHECKPOINT_EVERY=50\n",
        options=("--nodes=4",),
        after=after,
    )
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 4 * GPUS, 180, "steps on four nodes")
    until_steps(cluster, job, steps=int(last_step(cluster, job)["step"]) + 20, timeout_s=120)
    cluster.wait_for(lambda: is_live(cluster, job), 120, "its launchers to say that nodes can leave")
    return job


def is_live(cluster: SlurmCluster, job: int) -> bool:
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        heard = store.reports().get(job)
    return heard is not None and heard.report.in_place is not None and heard.report.in_place.live


def small(cluster: SlurmCluster, nodes: int) -> int:
    size = f"min_gpus={nodes * GPUS} max_gpus={nodes * GPUS}"
    return light_job.submit(cluster, "small", gpus=GPUS, directive=size, options=(f"--nodes={nodes}",))


def test_nodes_leave_a_running_job_for_another_job(cluster: SlurmCluster) -> None:
    job = wide(cluster, "wide")
    first = cluster.run("squeue", "-h", "-j", str(job), "-o", "%B").stdout.strip()
    other = small(cluster, 2)
    cluster.wait_for(lambda: cluster.state(other) == "RUNNING", 120, "the other job's start")
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 2 * GPUS, 60, "steps on two nodes")
    cluster.wait_for(lambda: "resized live" in story(cluster, job), 60, "the story")
    assert (cluster.state(job), shown(cluster, job, "Restarts"), shown(cluster, job, "NumNodes")) == (
        "RUNNING",
        "0",
        "2",
    )
    assert cluster.run("squeue", "-h", "-j", str(job), "-o", "%B").stdout.strip() == first, "its script's node stays"
    log = steps(cluster, job)
    at = next(i for i, line in enumerate(log) if line["dp"] == 2 * GPUS)
    assert log[at]["step"] == log[at - 1]["step"] + 1, "no step is lost"
    print(f"4 -> 2 nodes: trains again after {log[at]['time'] - log[at - 1]['time']:.1f} s")
    assert "Killed" not in light_job.output(cluster, job), "the tasks on the nodes that left have ended by themselves"
    until_steps(cluster, job, steps=int(log[-1]["step"]) + 20, timeout_s=120)


def test_a_node_leaves_a_run_whose_last_node_alone_reports(cluster: SlurmCluster) -> None:
    """Megatron-LM's log is on the last rank's node, and the first node follows the daemon's orders."""
    script, arguments = Path(last_node_log.__file__), last_node_log.ARGUMENTS
    size, options = f"min_gpus={2 * GPUS} max_gpus={4 * GPUS}", ("--nodes=4",)
    job = light_job.submit(cluster, "log", gpus=GPUS, directive=size, options=options, script=script, beside=arguments)
    cluster.wait_for(
        lambda: last_step(cluster, job).get("dp") == 4 * GPUS and is_live(cluster, job), 180, "a live run on four nodes"
    )
    cluster.wait_for(lambda: last_step(cluster, job)["step"] >= 20, 120, "steps on four nodes")
    other = small(cluster, 2)
    cluster.wait_for(lambda: cluster.state(other) == "RUNNING", 120, "the other job's start")
    cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 2 * GPUS, 60, "steps on two nodes")
    cluster.wait_for(lambda: "resized live" in story(cluster, job), 60, "the story")
    assert (cluster.state(job), shown(cluster, job, "Restarts"), shown(cluster, job, "NumNodes")) == (
        "RUNNING",
        "0",
        "2",
    )
    log = steps(cluster, job)
    assert [line["step"] for line in log] == list(range(1, len(log) + 1)), "no step is lost"
    assert "Killed" not in light_job.output(cluster, job)


# last: from then on the daemon knows what a requeue costs these jobs, and takes nothing from a young one for another that waits
def test_a_script_whose_later_steps_need_all_nodes_is_requeued(cluster: SlurmCluster) -> None:
    job = wide(cluster, "later", after="srun hostname\n")
    other = small(cluster, 2)
    cluster.wait_for(lambda: cluster.state(other) == "RUNNING", 120, "the other job's start")
    cluster.wait_for(lambda: last_step(cluster, job).get("restarts") == 1, 120, "its requeue")
    assert "would not work on fewer nodes: srun hostname" in story(cluster, job)
