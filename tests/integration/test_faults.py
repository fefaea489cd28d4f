"""Whatever fails in whatever state of a resize, the job is soon running or gone as it should be, and no step is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.throwaway.faults import FAULTS, STATES, Matrix, Pairs, Result, matrix
from tests.throwaway.power import power_off, set_down
from tests.throwaway.slurm import NodeGroup, SlurmCluster

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    """One cluster and daemon for all pairs that end right."""
    with matrix() as running:
        yield running


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("state", STATES)
def test_ends_right(pairs: Pairs, state: str, fault: str) -> None:
    result = pairs.run(state, fault)
    assert not result.wrong, f"{'; '.join(result.wrong)}\n{result.told}"


def test_a_pair_that_ends_wrong_leaves_nothing_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pair loses its daemon and is left with a job that runs: on that cluster no other pair could end right."""
    clusters: list[SlurmCluster] = []
    check = Matrix._check

    def lose_the_daemon(self: Matrix, state: str, fault: str, result: Result) -> None:
        clusters.append(self.cluster)
        if len(clusters) > 1:
            return check(self, state, fault, result)
        self.daemon.kill()
        return result.wrong.append("the daemon is away")

    monkeypatch.setattr(Matrix, "_check", lose_the_daemon)
    with matrix() as running:
        first = running.run("RUNNING", "synergyd-killed")
        assert first.wrong == ["the daemon is away"] and "JobState=RUNNING" in first.told
        assert not clusters[0].folder.exists()
        second = running.run("RUNNING", "synergyd-killed")
    assert not second.wrong, f"{'; '.join(second.wrong)}\n{second.told}"
    assert clusters[1].folder != clusters[0].folder


def test_a_node_without_power_that_is_set_down_stays_so() -> None:
    """Its slurmd has answered just before, so that slurmctld may have yet to take that answer in."""
    with SlurmCluster([NodeGroup("cpu", 1, 1)]) as cluster:
        job = cluster.sbatch("#!/bin/sh\n#SBATCH --no-requeue -o /dev/null\nexec sleep 600\n")
        cluster.wait_for(lambda: cluster.state(job) == "RUNNING", 60, "the job to run")
        power_off(cluster, "n1")
        set_down(cluster, "n1")
        time.sleep(3)
        assert cluster.run("sinfo", "-h", "-N", "-o", "%T").stdout.strip() == "down"
