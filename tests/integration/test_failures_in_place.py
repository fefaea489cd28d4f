"""Failures of a run on several nodes, by default: torchrun's ranks train with gloo, and one of them, or a node, is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import story, until_beat
from tests.integration.test_in_place import last_step, shown, steps
from tests.throwaway.power import power_off, power_on
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd
from tests.throwaway.torch_job import nodes_of, output, rank_on, submit

pytestmark = [pytest.mark.slurm, pytest.mark.training]
NODES = 3
BEFORE = 15  # steps trained before the failure


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    made = make_cluster([NodeGroup("cpu", NODES, 1)], epoch_s=1)
    made.slurmd_timeout_s = 300  # a lost node is Slurm's business later than any test waits
    with made as cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


@pytest.fixture
def job(cluster: SlurmCluster) -> Iterator[int]:
    """One that trains."""
    job = submit(cluster, NODES)
    try:
        cluster.wait_for(lambda: last_step(cluster, job).get("step", 0) >= BEFORE, 180, "its steps")
        yield job
    except BaseException:
        print(output(cluster, job)[-6000:])
        raise
    finally:
        cluster.run("scancel", str(job))
        cluster.wait_for(lambda: cluster.state(job) in ("", "CANCELLED"), 60, "its end")


def trains_again(cluster: SlurmCluster, job: int, nodes: int) -> list[int]:
    """Wait for steps after those of now, in place; the numbers of all steps."""
    before = len(steps(cluster, job))
    cluster.wait_for(lambda: len(steps(cluster, job)) >= before + BEFORE, 120, "steps after it")
    log = steps(cluster, job)
    assert (cluster.state(job), shown(cluster, job, "Restarts"), log[-1]["dp"]) == ("RUNNING", "0", nodes)
    numbers = [int(line["step"]) for line in log]
    assert set(numbers) == set(range(1, max(numbers) + 1)), "no step is lost"
    return numbers


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_is_answered_in_place(cluster: SlurmCluster, job: int, rank: int) -> None:
    node = nodes_of(cluster, job)[rank]
    os.kill(rank_on(cluster, job, node), signal.SIGKILL)
    trains_again(cluster, job, NODES)
    cluster.wait_for(lambda: f"(killed) on {node} at step" in story(cluster, job), 60, "the cause")


def test_a_rank_that_stands_still_is_answered_in_place(cluster: SlurmCluster, job: int) -> None:
    os.kill(rank_on(cluster, job, nodes_of(cluster, job)[1]), signal.SIGSTOP)
    trains_again(cluster, job, NODES)
    cluster.wait_for(lambda: "(hang) on" in story(cluster, job), 60, "the cause")


def test_a_lost_node_is_answered_on_the_others(cluster: SlurmCluster, job: int) -> None:
    lost = nodes_of(cluster, job)[1]
    power_off(cluster, lost)
    try:
        trains_again(cluster, job, NODES - 1)
        cluster.wait_for(lambda: f"lost {lost} at step" in story(cluster, job), 60, "the cause")
        assert f"{lost} lost: started again in place on" in output(cluster, job)
    finally:
        cluster.run("scancel", str(job))
        power_on(cluster, lost)


def test_a_script_without_an_agent_ends_as_before(cluster: SlurmCluster) -> None:
    """Its ranks fail: nothing is started again, and the job has their exit code."""
    plain = cluster.folder / "plain.py"
    plain.write_text("import sys, time\ntime.sleep(2)\nsys.exit(7)\n")
    script = (
        f"#!/bin/bash\n#SBATCH --nodes={NODES} --gres=gpu:1\n#SYNERGY min_gpus={NODES} max_gpus={NODES} global_batch=24\n"
        f"srun synergy-launch {plain}\n"
    )
    job = cluster.sbatch(script, f"--output={cluster.folder}/plain.out")
    cluster.wait_for(lambda: cluster.state(job) == "FAILED", 120, "its end")
    said = (cluster.folder / "plain.out").read_text()
    assert "was the first to fail, with exit code 7" in said and "in place" not in said
    assert (shown(cluster, job, "ExitCode"), shown(cluster, job, "Restarts")) == ("7:0", "0")
