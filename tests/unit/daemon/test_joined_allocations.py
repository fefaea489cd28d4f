"""Allocations beside jobs' own whose run is over and that nobody ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synergyd.daemon.joined_allocations import UNCLAIMED_S
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


@pytest.fixture
def joined(site: Site) -> Site:
    """The same, with a limit of an hour for both, and the allocation is the job's."""
    site.epoch()
    tracked = site.daemon.controller.jobs[1]
    tracked.lifecycle = replace(tracked.lifecycle, joined_nodes=("n2",))
    now_s = site.slurm.now_s
    for job_id in (1, 2):
        site.slurm.set(job_id, time_limit_s=3600.0, start_s=now_s, end_s=now_s + 3600)
    site.epoch()
    assert site.slurm.jobs[2].time_limit_s == 3600.0
    return site


def test_it_gets_the_limit_that_an_admin_gives_its_job(joined: Site) -> None:
    joined.slurm.set(1, end_s=joined.slurm.jobs[1].end_s + 7200)  # type: ignore[operator]
    joined.epoch()
    assert joined.slurm.jobs[2].time_limit_s == 3 * 3600.0


@pytest.mark.parametrize("more_s", [-1800.0, 90.0])
def test_a_lower_limit_or_one_that_was_rounded_changes_nothing(joined: Site, more_s: float) -> None:
    joined.slurm.set(1, end_s=joined.slurm.jobs[1].end_s + more_s)  # type: ignore[operator]
    joined.epoch()
    assert joined.slurm.jobs[2].time_limit_s == 3600.0


@pytest.mark.parametrize(("state", "limit_s"), [("RUNNING", None), ("COMPLETING", 3600.0), ("SUSPENDED", 3600.0)])
def test_it_is_unlimited_only_beside_a_job_that_runs_so(joined: Site, state: str, limit_s: float | None) -> None:
    joined.slurm.set(1, state=state, end_s=None)
    joined.epoch()
    assert joined.slurm.jobs[2].time_limit_s == limit_s


def test_what_only_bears_the_name_keeps_its_limit(site: Site) -> None:
    now_s = site.slurm.now_s
    site.slurm.set(2, time_limit_s=60.0, start_s=now_s, end_s=now_s + 60)
    site.epoch()
    assert site.slurm.jobs[2].time_limit_s == 60.0


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


def test_what_was_refused_is_forgotten_with_its_allocation(site: Site) -> None:
    del site.slurm.jobs[1]
    site.slurm.refuse = {"scancel 2": ("Access denied", True)}
    pass_epochs(site, UNCLAIMED_S + 20)
    allocations = site.daemon.joined_allocations
    assert allocations._refused
    del site.slurm.jobs[2]
    site.epoch(5)
    assert not allocations._refused
