"""Cloud nodes on a real cluster. While they are powered down 22.05 does not show them, its default; later releases do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import until_beat, until_steps
from tests.integration.test_walltime import squeue, told
from tests.throwaway import light_job
from tests.throwaway.power import cloud_settings
from tests.throwaway.slurm import NodeGroup, SlurmCluster, missing_programs
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_programs()), reason="Slurm or munge is not installed"),
]
RESUME_TIMEOUT_S = 60  # a slurmd of a busy machine needs some of it
WAIT_S = 240.0


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
    sky.wait_for(lambda: sky._job_ids() == ["0"], 120, "an empty queue")
    sky.run("scontrol", "update", "NodeName=n2,n3", "State=POWER_DOWN")
    sky.wait_for(lambda: awake(sky) == {"n1"}, WAIT_S, "nodes to be powered down")


def states(cluster: SlurmCluster) -> dict[str, list[str]]:
    """The words of each node's state (`down`, `cloud`), by the nodes that Slurm shows."""
    rows = cluster.run("sinfo", "-h", "-N", "-O", "NodeList:20,StateComplete:80").stdout.lower().splitlines()
    return {name: words.replace("*", "").split("+") for name, words in (row.split() for row in rows)}


def awake(cluster: SlurmCluster) -> set[str]:
    """Nodes that are up or asked to be."""
    return {name for name, words in states(cluster).items() if "powered_down" not in words}


def given_up(words: list[str] | None) -> bool:
    """Down; 22.05 does not show it any more once it is powered down too."""
    return words is None or words[0] == "down"


def until(cluster: SlurmCluster, job_id: int, state: str, nodes: set[str]) -> None:
    def there() -> bool:
        return cluster.state(job_id) == state and squeue(cluster, job_id, "NodeList") in nodes

    try:
        cluster.wait_for(there, WAIT_S, f"job {job_id} {state} on {nodes}")
    except RuntimeError as error:
        raise RuntimeError(f"{error}\n{told(cluster, job_id)}\n{cluster.log_tail('slurmd-n2')}") from None


def test_a_job_starts_on_nodes_that_were_never_up(asleep: SlurmCluster) -> None:
    job_id = light_job.submit(asleep, directive="min_gpus=8 max_gpus=8", gpus=4, options=("--nodes=2",))
    until(asleep, job_id, "RUNNING", {"n[2-3]"})
    assert "n2" in awake(asleep)


def test_a_running_job_grows_onto_nodes_that_slept(asleep: SlurmCluster) -> None:
    """It trains on until they are up."""
    job_id = light_job.submit(asleep, directive="min_gpus=1 max_gpus=8", gpus=1)
    until_steps(asleep, job_id)
    until(asleep, job_id, "RUNNING", {"n[2-3]"})
    assert row_of(asleep, job_id)["restart_cnt"] == 1, "it was stopped once"


def test_nodes_that_do_not_come_up_cost_the_wait_alone(asleep: SlurmCluster) -> None:
    for name in ("n2", "n3"):
        (asleep.folder / f"broken-{name}").touch()
    job_id = light_job.submit(asleep, directive="min_gpus=1 max_gpus=8", gpus=1)
    until_steps(asleep, job_id)
    asleep.wait_for(lambda: {"n2", "n3"} & awake(asleep), WAIT_S, "a node to be asked for")
    asked = {"n2", "n3"} & awake(asleep)
    asleep.wait_for(lambda: all(given_up(states(asleep).get(n)) for n in asked), WAIT_S, "it to be given up")
    row = row_of(asleep, job_id)
    assert (row["restart_cnt"], row["job_state"], row["nodes"]) == (0, "RUNNING", "n1")
