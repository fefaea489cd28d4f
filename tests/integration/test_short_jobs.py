"""Jobs that keep their size start and follow one another as plain ones do, and a plain job that waits gets its GPUs back soon."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import sizes, status, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = pytest.mark.slurm
EPOCH_S = 300.0  # whatever happens soon does not happen because an epoch's time has come
SLEEP = "#!/bin/bash\n#SYNERGY {line}\nsleep {seconds}\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """One node of four GPUs, a long epoch, and a daemon that has completed its first one."""
    with make_cluster([NodeGroup("a100", 1, 4)], epoch_s=EPOCH_S) as cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def submit(cluster: SlurmCluster, line: str, gpus: int, seconds: float) -> int:
    return cluster.sbatch(SLEEP.format(line=line, seconds=seconds), f"--gres=gpu:{gpus}", "--output=/dev/null")


def test_a_job_with_resize_no_is_in_slurm_s_queue_from_its_submission_on(cluster: SlurmCluster) -> None:
    first = submit(cluster, "resize=no", 4, 600)
    assert row_of(cluster, first)["eligible_time"] <= time.time() + 1
    cluster.wait_for(lambda: cluster.state(first) == "RUNNING", 60, "its start")
    second = submit(cluster, "resize=no", 4, 600)
    cluster.wait_for(lambda: second in status(cluster), 120, "an epoch that sees the second one")
    time.sleep(2)  # what that epoch decided is done
    assert row_of(cluster, second)["eligible_time"] <= time.time()
    assert "ReqNodeList=(null)" in cluster.run("scontrol", "show", "job", str(second)).stdout
    began = time.monotonic()
    cluster.run("scancel", str(first))
    cluster.wait_for(lambda: cluster.state(second) == "RUNNING", 60, "the second one's start")
    # by Slurm, which waits for no epoch; scancel waits KillWait, 5 s, at the most
    assert time.monotonic() - began < 45
    cluster.run("scancel", str(second))


def test_a_job_that_waits_for_a_decision_starts_soon_after_another_s_end(cluster: SlurmCluster) -> None:
    running = submit(cluster, "resize=no", 4, 600)
    cluster.wait_for(lambda: cluster.state(running) == "RUNNING", 60, "the node to be full")
    waiting = light_job.submit(cluster, gpus=2, directive="min_gpus=1 max_gpus=4")
    cluster.wait_for(lambda: status(cluster).get(waiting, {}).get("state") == "PENDING", 120, "it to be decided about")
    began = time.monotonic()
    cluster.run("scancel", str(running))
    cluster.wait_for(lambda: cluster.state(waiting) == "RUNNING", EPOCH_S, "its start")
    assert time.monotonic() - began < EPOCH_S / 4
    cluster.run("scancel", str(waiting))


def test_a_plain_job_that_waits_has_its_gpus_within_the_bound() -> None:
    """As docs/admin/what-it-does.md states it: four epochs, the checkpoint, Slurm's KillWait of 5 s here."""
    with make_cluster([NodeGroup("a100", 1, 4)], epoch_s=5) as cluster, synergyd(cluster):
        until_beat(cluster)
        grown = light_job.submit(cluster, gpus=2, directive="min_gpus=1 max_gpus=4")
        cluster.wait_for(lambda: sizes(cluster, grown) == [4], 120, "it to hold all GPUs")
        until_steps(cluster, grown, timeout_s=120)
        began = time.monotonic()
        cluster.run("salloc", "--gres=gpu:2", "true", timeout_s=300)
        assert time.monotonic() - began < 4 * 5 + 60 + 5
        cluster.wait_for(lambda: cluster.state(grown) == "RUNNING", 60, "the job that made way to go on")
