"""Allocations beside jobs' own whose run is over and that nobody ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synergyd.daemon.lost_allocations import UNCLAIMED_S
from tests.unit.daemon.daemon_world import Site

NAME = "synergy-nodes-of-1.0.1"


@pytest.fixture
def site(tmp_path) -> Site:  # type: ignore[no-untyped-def]
    """Job 1, which runs, and an allocation beside it that its launchers were not asked for."""
    site = Site(tmp_path / "state", epoch_s=5.0)
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.slurm.submit(2, None, name=NAME, batch=False)
    site.slurm.runs(2, "n2")
    return site


def pass_epochs(site: Site, seconds: float) -> None:
    for _ in range(int(seconds / 5)):
        site.epoch(5)


def test_it_ends_soon_after_its_job(site: Site) -> None:
    del site.slurm.jobs[1]
    site.epoch()
    pass_epochs(site, UNCLAIMED_S - 5)
    assert 2 in site.slurm.jobs, "its launchers may still be at it"
    site.epoch(5)
    assert 2 not in site.slurm.jobs


def test_it_ends_when_its_job_is_in_another_incarnation(site: Site) -> None:
    site.slurm.set(1, restarts=1)
    pass_epochs(site, UNCLAIMED_S + 10)
    assert 2 not in site.slurm.jobs and 1 in site.slurm.jobs


def test_it_ends_beside_a_running_job_that_has_no_use_for_it(site: Site) -> None:
    pass_epochs(site, UNCLAIMED_S + 10)
    assert 2 not in site.slurm.jobs and 1 in site.slurm.jobs


def test_it_stays_while_its_nodes_are_the_jobs(site: Site) -> None:
    site.epoch()
    tracked = site.daemon.controller.jobs[1]
    tracked.lifecycle = replace(tracked.lifecycle, joined_nodes=("n2",))
    pass_epochs(site, UNCLAIMED_S + 10)
    assert 2 in site.slurm.jobs


def test_a_batch_job_may_bear_any_name(site: Site) -> None:
    site.slurm.submit(3, "#!/bin/bash\nsrun sleep 1\n", name="synergy-nodes-of-9.0.1")
    site.slurm.runs(3, "n2")
    pass_epochs(site, UNCLAIMED_S + 10)
    assert 3 in site.slurm.jobs


def test_a_daemon_that_stands_by_ends_nothing(site: Site) -> None:
    site.leads = False
    del site.slurm.jobs[1]
    pass_epochs(site, UNCLAIMED_S + 10)
    assert 2 in site.slurm.jobs


def test_a_refusal_is_logged_once_and_tried_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    del site.slurm.jobs[1]
    site.slurm.refuse = {"scancel 2": ("Access denied", True)}
    pass_epochs(site, UNCLAIMED_S + 20)
    assert caplog.text.count("allocation 2") == 1 and "Access denied" in caplog.text
    site.slurm.refuse = {}
    site.epoch(5)
    assert 2 not in site.slurm.jobs
