"""A job that loses a node gets its size back within seconds, on a node that was lent to another job. On a real cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon_site import explain, sizes, status, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.power import power_off, set_down
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
EPOCH_S = 300.0  # longer than the test may take: what happens between two epochs is what is tested
TWO_NODES = "--nodes=2"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Four nodes with two GPUs each."""
    with make_cluster([NodeGroup("cpu", 4, 2)], epoch_s=EPOCH_S, settings=("#SYNERGY SpareNodes=main:1",)) as cluster:
        yield cluster


def steps(cluster: SlurmCluster, job_id: int) -> list[dict[str, float]]:
    """The job's step log."""
    folder = re.search(r"checkpoint=(\S+)", cluster.run("scontrol", "write", "batch_script", str(job_id), "-").stdout)
    assert folder is not None
    text = (Path(folder[1]) / "steps.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be half written


def test_a_node_that_was_lent_is_given_back_between_two_epochs(cluster: SlurmCluster) -> None:
    # they start at the size asked for, as nobody decides yet
    before = "export CHECKPOINT_EVERY=10\n"
    stays, lends = (
        light_job.submit(cluster, name, gpus=2, directive=size, before=before, options=(TWO_NODES,))
        for name, size in (("stays", "min_gpus=4 max_gpus=4"), ("lends", "min_gpus=2 max_gpus=4"))
    )
    cluster.wait_for(lambda: all(cluster.state(j) == "RUNNING" for j in (stays, lends)), 120, "their start")
    with synergyd(cluster) as daemon:
        until_beat(cluster)
        until_steps(cluster, stays, lends, steps=30, timeout_s=150)
        assert sizes(cluster, stays, lends) == [4, 4]
        names = cluster.run("squeue", "-h", "-j", str(stays), "-o", "%N").stdout.strip()
        lost = cluster.run("scontrol", "show", "hostnames", names).stdout.split()[-1]
        power_off(cluster, lost)
        at_s = set_down(cluster, lost)  # as after SlurmdTimeout
        try:
            cluster.wait_for(lambda: steps(cluster, stays)[-1]["restarts"] == 1, 150, "steps after the loss")
        except RuntimeError:
            told = explain(cluster, stays), status(cluster), cluster.run("squeue", "-a").stdout, daemon.tail(60)
            raise RuntimeError("\n".join(map(str, told))) from None
        again = next(line for line in steps(cluster, stays) if line["restarts"] == 1)
        print(f"trains again {again['time'] - at_s:.1f} s after the loss of a node, on a spare")
        assert again["time"] - at_s < EPOCH_S / 2
        assert again["step"] > 10, "from its last checkpoint"
        assert f"as before it lost {lost}" in json.dumps(explain(cluster, stays)["story"])
        assert "since it was lent as a spare, which a job needs that has lost a node" in json.dumps(
            explain(cluster, lends)["story"]
        )
        cluster.wait_for(lambda: steps(cluster, lends)[-1]["restarts"] == 1, 150, "the other to go on")
        assert cluster.run("squeue", "-h", "-j", str(lends), "-o", "%D").stdout.strip() == "1"
