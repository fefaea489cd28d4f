"""Cloud nodes on a real cluster: Slurm does not show them while they are powered down, which is its default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import until_beat
from tests.integration.test_walltime import squeue, told
from tests.throwaway import light_job
from tests.throwaway.power import cloud_settings
from tests.throwaway.slurm import NodeGroup, SlurmCluster, missing_programs
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_programs()), reason="Slurm or munge is not installed"),
]
RESUME_TIMEOUT_S = 60  # a slurmd of a busy machine needs some of it
WAIT_S = 150.0


@pytest.fixture(scope="module")
def sky() -> Iterator[SlurmCluster]:
    """A node with one GPU, and two of a cloud with four; an epoch a second."""
    cluster = make_cluster((NodeGroup("cpu", 1, 1), NodeGroup("cpu", 2, 4, cloud=True)), epoch_s=1)
    cluster.slurm_conf = (*cluster.slurm_conf, *cloud_settings(cluster, resume_timeout_s=RESUME_TIMEOUT_S))
    with cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


@pytest.fixture
def asleep(sky: SlurmCluster) -> Iterator[SlurmCluster]:
    """The queue is empty and both nodes of the cloud are powered down."""
    yield sky
    sky.run("scancel", "--full", "-s", "KILL", *sky._job_ids(), check=False)
    sky.run("scancel", *sky._job_ids(), check=False)
    sky.wait_for(lambda: sky._job_ids() == ["0"], 60, "an empty queue")
    sky.run("scontrol", "update", "NodeName=n2,n3", "State=POWER_DOWN")
    sky.wait_for(lambda: shown(sky) == {"n1"}, 60, "nodes to be powered down")


def shown(cluster: SlurmCluster) -> set[str]:
    return set(cluster.run("sinfo", "-h", "-N", "-o", "%N").stdout.split())


def until(cluster: SlurmCluster, job_id: int, state: str, nodes: set[str]) -> None:
    def there() -> bool:
        return cluster.state(job_id) == state and squeue(cluster, job_id, "NodeList") in nodes

    try:
        cluster.wait_for(there, WAIT_S, f"job {job_id} {state} on {nodes}")
    except RuntimeError as error:
        raise RuntimeError(f"{error}\n{told(cluster, job_id)}\n{cluster.log_tail('slurmd-n2')}") from None


def test_a_job_starts_on_nodes_that_were_never_shown(asleep: SlurmCluster) -> None:
    job_id = light_job.submit(asleep, directive="min_gpus=8 max_gpus=8", gpus=4, options=("--nodes=2",))
    until(asleep, job_id, "RUNNING", {"n[2-3]"})
    assert "n2" in shown(asleep)
