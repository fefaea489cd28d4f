"""On a real, empty cluster a job starts on no fewer GPUs than it asked for, whatever the figures say of the network."""

from __future__ import annotations

import pytest

from tests.integration.daemon_site import sizes, until_beat
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = pytest.mark.slurm


def test_a_slow_network_by_the_figures_makes_no_job_start_small() -> None:
    slow = "#SYNERGY GpuType=cpu intra_gbs=1 inter_gbs=0.1"
    cluster = make_cluster((NodeGroup("cpu", 5, 8),), epoch_s=1, settings=(slow,))
    with cluster, synergyd(cluster) as daemon:
        until_beat(cluster)
        job_id = light_job.submit(cluster, directive="min_gpus=1 max_gpus=40", gpus=8)
        cluster.wait_for(lambda: cluster.state(job_id) == "RUNNING", 90, "its start\n" + daemon.tail())
        seen: list[int | None] = []  # the first size is looked at once: it may grow a moment later

        def sized() -> bool:
            seen.extend(sizes(cluster, job_id))
            return bool(seen[-1])

        cluster.wait_for(sized, 60, "its size")
        assert seen[-1] is not None and seen[-1] >= 8, daemon.tail()
