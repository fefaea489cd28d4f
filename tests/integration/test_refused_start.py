"""Nodes that Slurm will not start a job on, for a reason that Synergy can't see: --tmp, hidden from its reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import ELASTIC, explain, status, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import hook, synergyd

pytestmark = pytest.mark.slurm
EPOCH_S = 10


class DiskOnN2(SlurmCluster):
    """Two nodes; only the second has a disk for jobs."""

    def _write_files(self) -> None:
        super()._write_files()
        self.conf.write_text(self.conf.read_text().replace("NodeName=n2 ", "NodeName=n2 TmpDisk=100000 "))


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    cluster = DiskOnN2([NodeGroup("cpu", 1, 4), NodeGroup("cpu", 1, 4)])
    cluster.job_submit = hook(cluster.state_dir)
    cluster.slurm_conf = (f"#SYNERGY StateDir={cluster.state_dir} Epoch={EPOCH_S} RestartCost=0",)
    blind = cluster.folder / "blind"
    blind.mkdir()
    real = shutil.which("squeue", path=cluster.env["PATH"])
    (blind / "squeue").write_text(f"#!/bin/sh\n{real} \"$@\" | sed 's/50G/0  /g'\n")
    (blind / "squeue").chmod(0o755)
    with cluster, synergyd(cluster, environment={"PATH": f"{blind}:{cluster.env['PATH']}"}):
        until_beat(cluster)
        yield cluster


def test_a_job_pinned_to_nodes_that_slurm_refuses_starts_elsewhere(cluster: SlurmCluster) -> None:
    job = light_job.submit(cluster, directive=ELASTIC, options=("--tmp=50G",))
    until_steps(cluster, job, timeout_s=120)
    told = explain(cluster, job)
    story = [e["detail"] for e in told["story"]]
    refused = [t for t in story if "Slurm did not start it with" in t]
    assert len(refused) == 1 and "n1" in refused[0] and "its reason: BadConstraints" in refused[0], story
    times = {e["detail"][:8]: e["at_s"] for e in told["story"]}
    assert times["started "] - times["start de"] < 2 * EPOCH_S, "within two epochs"
    cluster.run("scancel", str(job))


def test_a_job_that_slurm_refuses_everywhere_is_left_to_it(cluster: SlurmCluster) -> None:
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    job = light_job.submit(cluster, directive=ELASTIC, gpus=2, options=("--tmp=50G",))

    def left() -> bool:
        return "left to Slurm" in status(cluster).get(job, {}).get("why", "")

    cluster.wait_for(left, 120, "the daemon to leave it")
    assert "Slurm's reason: " in explain(cluster, job)["decision"]["why"]
    cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    cluster.wait_for(lambda: cluster.state(job) == "RUNNING", 60, "Slurm to start it by itself, with its own size")
    assert cluster.run("squeue", "-h", "-j", str(job), "-o", "%N %b").stdout.split() == ["n2", "gres:gpu:2"]
