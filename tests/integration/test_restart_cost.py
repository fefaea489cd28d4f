"""What restarts cost on a real cluster: measured phase by phase, told in explain, kept for the program's next job."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from synergyd.store.store import open_store
from tests.integration.daemon_site import ELASTIC, explain, sizes, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """One node with four GPUs; an epoch a second."""
    with make_cluster((NodeGroup("cpu", 1, 4),), epoch_s=1) as cluster:
        yield cluster


def restarts_told(cluster: SlurmCluster, job_id: int) -> list[str]:
    return [line["detail"] for line in explain(cluster, job_id)["story"] if "a restart took" in line["detail"]]


def test_a_job_that_is_resized_twice_has_its_restarts_measured_and_told(site: SlurmCluster) -> None:
    with synergyd(site):
        until_beat(site)
        job_id = light_job.submit(site, "measured", directive=ELASTIC)
        site.wait_for(lambda: sizes(site, job_id) == [4], 120, "the job to have all GPUs")
        until_steps(site, job_id, steps=5, timeout_s=150)
        other = light_job.submit(site, "other", directive=ELASTIC, gpus=2)
        site.wait_for(lambda: sizes(site, job_id, other) == [2, 2], 120, "the job to shrink")
        site.wait_for(lambda: len(restarts_told(site, job_id)) == 1, 120, "its first restart to be measured")
        site.run("scancel", str(other))
        site.wait_for(lambda: sizes(site, job_id) == [4], 120, "the job to grow again")
        site.wait_for(lambda: len(restarts_told(site, job_id)) == 2, 120, "its second restart to be measured")
        for line in restarts_told(site, job_id):
            phases = re.fullmatch(
                r"a restart took ([\d.]+) s: checkpoint ([\d.]+) s, requeue ([\d.]+) s, start ([\d.]+) s", line
            )
            assert phases is not None, line
            total, *parts = map(float, phases.groups())
            assert total == pytest.approx(sum(parts), abs=0.3) and 0.5 < total < 100

        def why() -> str:
            return str(explain(site, job_id)["decision"]["why"])

        words = r"[Aa] restart of this job costs \d+ s \(measured, 2 restarts; \+-\d+ s\)"
        site.wait_for(lambda: re.search(words, why()) is not None, 120, f"explain to tell it: {why()}")
    with open_store(f"sqlite:///{site.state_dir}/synergy.db") as store:
        kept = [p.restarts for key, p in store.read_state().profiles.items() if key.startswith("restart:")]
    own = [t for times in kept for t in times if t.job_id == job_id]
    assert [t.restarts for t in own] == [0, 1, 2] and all(t.bytes_per_writer for t in own[1:])
