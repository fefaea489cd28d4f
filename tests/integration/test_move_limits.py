"""Bounds on changes of running jobs, on a real cluster: no resize in quiet hours, and one at a time with MaxResizes=1."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.daemon_site import explain, sizes, status, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import synergyd

pytestmark = pytest.mark.slurm
QUIET, ONE = "#SYNERGY QuietHours=00:00-24:00", "#SYNERGY MaxResizes=1"


def why(cluster: SlurmCluster, job_id: int) -> str:
    told = explain(cluster, job_id)["decision"]
    return str(told["why"]) if told else ""


def resize_of(cluster: SlurmCluster, job_id: int) -> tuple[float, float]:
    """When the job's resize was begun, and when the job ran again."""
    story: list[dict[str, Any]] = explain(cluster, job_id)["story"]
    (begun,) = (e["at_s"] for e in story if "resize decided" in e["detail"])
    return begun, next(e["at_s"] for e in story if e["at_s"] > begun and "started with" in e["detail"])


def test_jobs_wait_for_quiet_hours_to_end_and_then_for_one_another(site: SlurmCluster) -> None:
    site.conf.write_text(f"{site.conf.read_text()}\n{QUIET}\n")
    # one GPU of each node is left: the jobs would grow as soon as the other three are
    plain = [site.sbatch("#!/bin/sh\nsleep 600\n", "-o", "/dev/null", "--gres=gpu:3", "-w", n) for n in ("n1", "n2")]
    site.wait_for(lambda: {site.state(i) for i in plain} == {"RUNNING"}, 90, "the plain jobs to run")
    with synergyd(site):
        until_beat(site)
        jobs = [light_job.submit(site, f"j{i}", gpus=1, directive="min_gpus=1 max_gpus=4") for i in (1, 2)]
        until_steps(site, *jobs, timeout_s=150)
        site.run("scancel", *map(str, plain))
        site.wait_for(lambda: all("QuietHours" in why(site, i) for i in jobs), 120, "both to be told to wait")
        assert sizes(site, *jobs) == [1, 1]
        assert "before 24:00" in why(site, jobs[0])
    site.conf.write_text(site.conf.read_text().replace(QUIET, ONE))
    waited: set[int] = set()

    def grown() -> bool:
        waited.update(i for i in jobs if "MaxResizes" in why(site, i))
        moving = [i for i, j in status(site).items() if j["lifecycle"] not in ("QUEUED", "RUNNING", "")]
        assert len(moving) <= 1, moving
        return sizes(site, *jobs) == [4, 4]

    with synergyd(site) as daemon:
        site.wait_for(grown, 180, "both to have their node\n" + daemon.tail())
    assert waited
    first, second = sorted(resize_of(site, i) for i in jobs)
    assert first[1] <= second[0]
