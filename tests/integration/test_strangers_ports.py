"""torchrun on several nodes, where other programs listen on ports that can be worked out from the job's id."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from synergy_launch.launcher.job.allocation import rendezvous_port

from tests.integration.daemon_site import until_beat
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.training]
SCRIPT = "import torch.distributed as d\nd.init_process_group('gloo')\nprint('rank', d.get_rank(), 'of', d.get_world_size())\n"
JOB = """#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:1 --open-mode=append
#SYNERGY min_gpus=2 max_gpus=2 global_batch=8 micro_batch=1 resize=no
srun synergy-launch {}
"""


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    with make_cluster([NodeGroup("cpu", 2, 1)], epoch_s=1) as made, synergyd(made):
        until_beat(made)
        yield made


@pytest.fixture
def strangers() -> Iterator[None]:
    """Other programs listen on 48 ports of the first job: of eight incarnations, six runs of each."""
    with contextlib.ExitStack() as held:
        for port in {rendezvous_port(1, restarts, run) for restarts in range(8) for run in range(6)}:
            with contextlib.suppress(OSError):  # the cluster's own
                held.enter_context(socket.create_server(("", port)))
        yield


def test_strangers_on_ports_that_can_be_worked_out_do_not_end_a_job(cluster: SlurmCluster, strangers: None) -> None:
    script = cluster.folder / "ranks.py"
    script.write_text(SCRIPT)
    job_id = cluster.sbatch(JOB.format(script), f"--output={cluster.folder}/%j.out")
    assert job_id == 1
    cluster.wait_for(lambda: cluster.state(job_id) in ("COMPLETED", "FAILED"), 240, "the job's end")
    output = (cluster.folder / f"{job_id}.out").read_text()
    assert cluster.state(job_id) == "COMPLETED", output
    assert {f"rank {rank} of 2" for rank in range(2)} <= set(output.splitlines())
    assert "Restarts=0" in cluster.run("scontrol", "show", "job", str(job_id)).stdout, output
