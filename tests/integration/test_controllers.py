"""Slurm's own services in the middle of a resize: a backup slurmctld takes over, settings are read anew, slurmdbd is away."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import sizes, story, until_beat, until_steps
from tests.throwaway import accounting, light_job
from tests.throwaway.accounting import Accounting
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import Synergyd, make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root gives a process another host name"),
]
USERS = ("add account chem", "add user root account=chem")
FIRST, ALL = "min_gpus=1 max_gpus=4", 8


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Two nodes, two slurmctlds on one state folder, a slurmdbd."""
    cluster = make_cluster(epoch_s=1)
    cluster.accounting, cluster.backup = Accounting(USERS), True
    with cluster:
        cluster.start_backup()
        yield cluster


@pytest.fixture(scope="module")
def daemon(site: SlurmCluster) -> Iterator[Synergyd]:
    with synergyd(site) as running:
        until_beat(site)
        yield running


def submit(site: SlurmCluster) -> int:
    return light_job.submit(site, directive=FIRST, options=("--account=chem",))


def resize(site: SlurmCluster) -> tuple[int, ...]:
    """Three jobs on two nodes, the third just come: one of the first two has been asked for its checkpoint."""
    jobs = submit(site), submit(site)
    until_steps(site, *jobs)
    third = submit(site)
    site.wait_for(lambda: any("checkpoint asked for" in story(site, i) for i in jobs), 60, "a resize")
    return (*jobs, third)


def ends_well(site: SlurmCluster, daemon: Synergyd, jobs: tuple[int, ...]) -> None:
    """All three run, one was resized, and nothing was started a second time."""
    try:
        site.wait_for(lambda: all(site.state(i) == "RUNNING" for i in jobs), 120, "all to run")
        site.wait_for(lambda: sum(n or 0 for n in sizes(site, *jobs)) <= ALL, 60, "the sizes to be seen")
        until_steps(site, *jobs, timeout_s=120)
    except RuntimeError as error:
        raise RuntimeError(f"{error}\n{daemon.tail(60)}") from None
    shown = site.run("scontrol", "show", "job", check=False).stdout
    restarts = [int(n) for n in re.findall(r"Restarts=(\d+)", shown)]
    assert max(restarts) == 1 and "Traceback" not in daemon.log.read_text() and daemon.process.poll() is None
    site.run("scancel", *map(str, jobs))
    site.wait_for(lambda: not any(site.state(i) in ("RUNNING", "COMPLETING") for i in jobs), 60, "their end")


def test_settings_are_read_anew(site: SlurmCluster, daemon: Synergyd) -> None:
    jobs = resize(site)
    for _ in range(3):
        site.run("scontrol", "reconfigure")
        time.sleep(0.3)
    ends_well(site, daemon, jobs)


def test_accounting_is_away(site: SlurmCluster, daemon: Synergyd) -> None:
    site.kill("slurmdbd")
    ends_well(site, daemon, resize(site))


def test_a_backup_takes_over(site: SlurmCluster, daemon: Synergyd) -> None:
    """Last: it keeps the cluster."""
    jobs = resize(site)
    began_s = time.monotonic()
    site.kill("slurmctld")
    site.wait_for(lambda: site.run("squeue", "-h", check=False).returncode == 0, 60, "the backup to answer")
    print(f"the backup answered after {time.monotonic() - began_s:.1f} s")
    ends_well(site, daemon, jobs)
    print(f"all jobs train {time.monotonic() - began_s:.1f} s after the fault")
