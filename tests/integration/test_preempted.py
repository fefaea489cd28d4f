"""Slurm's own preemption of a partition's jobs (PreemptMode=REQUEUE): a checkpoint, and the job returns smaller and elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import explain, sizes, status, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import hook, synergyd

pytestmark = pytest.mark.slurm
EPOCH_S = 5


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster([NodeGroup("cpu", 2, 4)])
    cluster.job_submit = hook(cluster.state_dir)
    cluster.slurm_conf = (
        f"#SYNERGY StateDir={cluster.state_dir} Epoch={EPOCH_S} RestartCost=0",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=60",
        "PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF",
    )
    with cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def test_a_preempted_job_returns_smaller_and_elsewhere(cluster: SlurmCluster) -> None:
    submitted_s = time.time()
    job = light_job.submit(cluster, gpus=4, directive="min_gpus=1 max_gpus=8", options=("-p", "low"))
    cluster.wait_for(lambda: sizes(cluster, job) == [8], 120, "the job to have both nodes")
    until_steps(cluster, job, timeout_s=120)
    reached = int(status(cluster)[job]["step"])
    urgent = cluster.sbatch(
        "#!/bin/bash\nsleep 300\n", "-p", "high", "--gres=gpu:4", "--nodelist=n1", "-o", "/dev/null"
    )
    cluster.wait_for(lambda: cluster.state(urgent) == "RUNNING", 150, "Slurm to preempt the job")
    cluster.wait_for(lambda: sizes(cluster, job) == [4], 120, "the job to return")
    until_steps(cluster, job, steps=reached, timeout_s=120)
    assert cluster.run("squeue", "-h", "-j", str(job), "-o", "%T %N").stdout.split() == ["RUNNING", "n2"]
    told = explain(cluster, job)["story"]
    left, back = (
        next(e["at_s"] for e in reversed(told) if e["detail"].startswith(words))
        for words in ("requeued by Slurm", "started with")
    )
    first_s = next(e["at_s"] for e in told if e["detail"].startswith("started with")) - submitted_s
    assert 0 < back - left < 2 * EPOCH_S + max(5, first_s), "within two epochs, and the seconds of a start here"
    assert re.search(r"stopped by SIGTERM at step (\d+), last checkpoint: step \1", light_job.output(cluster, job))
