"""--switches on a real cluster with a topology: two leaf switches of two nodes."""

from __future__ import annotations

import pytest

from synergyd.slurm.command_line import CommandLine
from tests.integration.daemon_site import explain, sizes, status, until_beat
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup
from tests.throwaway.slurm_output import release
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
TOPOLOGY = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\nSwitchName=spine Switches=a,b\n"
BLOCKS = {
    "topology.conf": "BlockName=a Nodes=n[1-2]\nBlockName=b Nodes=n[3-4]\nBlockSizes=2\n",
    # the first topology is no partition's
    "topology.yaml": """
- topology: other
  cluster_default: false
  tree:
    switches:
      - switch: all
        nodes: n[1-4]
- topology: blocks
  cluster_default: true
  block:
    block_sizes:
      - 2
    blocks:
      - block: a
        nodes: n[1-2]
      - block: b
        nodes: n[3-4]
""",
}


def test_a_job_gets_what_fits_under_one_leaf_switch() -> None:
    cluster = make_cluster([NodeGroup("cpu", 4, 2)], epoch_s=1, settings=("TopologyPlugin=topology/tree",))
    (cluster.folder / "topology.conf").write_text(TOPOLOGY)
    with cluster, synergyd(cluster):
        until_beat(cluster)
        # one GPU of the first leaf is taken: an unbound job of four GPUs on two nodes would still fit there and elsewhere
        plain = cluster.sbatch("#!/bin/sh\nsleep 600\n", "-o", "/dev/null", "--gres=gpu:1", "--nodelist=n1")
        cluster.wait_for(lambda: cluster.state(plain) == "RUNNING", 120, "the plain job")
        bound = light_job.submit(cluster, gpus=1, directive="min_gpus=1 max_gpus=8", options=("--switches=1",))
        cluster.wait_for(lambda: cluster.state(bound) == "RUNNING", 120, "the job to start")
        nodes = cluster.run("squeue", "-h", "-j", str(bound), "-o", "%N").stdout.strip()
        assert nodes == "n[3-4]", explain(cluster, bound)["decision"]
        cluster.wait_for(lambda: sizes(cluster, bound) == [4], 120, "all of the leaf to be its")
        wide = light_job.submit(cluster, "wide", gpus=2, directive="max_gpus=8", options=("--switches=1", "--nodes=3"))
        cluster.wait_for(lambda: wide in status(cluster), 120, "the wide job to be known")
        cluster.wait_for(
            lambda: "no 1 leaf switch has 3 nodes" in (explain(cluster, wide)["decision"] or {}).get("why", ""),
            120,
            "why it is left",
        )


def since(first: tuple[int, int], what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(release() < first, reason=f"Slurm {release()[0]}.{release()[1]:02} has no {what}")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param("topology.conf", marks=since((23, 11), "topology/block")),
        pytest.param("topology.yaml", marks=since((25, 5), "topology.yaml")),
    ],
)
def test_a_job_gets_nodes_of_one_block(file: str) -> None:
    """By topology/block: nodes of two blocks, where one would do, Slurm refuses for good."""
    settings = ("TopologyPlugin=topology/block",) if file == "topology.conf" else ()
    cluster = make_cluster([NodeGroup("cpu", 4, 2)], epoch_s=1, settings=settings)
    (cluster.folder / file).write_text(BLOCKS[file])
    with cluster, synergyd(cluster):
        until_beat(cluster)
        assert CommandLine(cluster.env).leaf_switches() == {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
        plain = cluster.sbatch("#!/bin/sh\nsleep 600\n", "-o", "/dev/null", "--gres=gpu:1", "--nodelist=n1")
        cluster.wait_for(lambda: cluster.state(plain) == "RUNNING", 120, "the plain job")
        job = light_job.submit(cluster, gpus=2, directive="min_gpus=4 max_gpus=4", options=("--nodes=2",))
        cluster.wait_for(lambda: sizes(cluster, job) == [4], 120, "the job to start")
        nodes = cluster.run("squeue", "-h", "-j", str(job), "-o", "%N").stdout.strip()
        assert nodes == "n[3-4]", explain(cluster, job)["decision"]
