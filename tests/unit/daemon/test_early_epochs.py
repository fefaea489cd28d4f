"""Epochs that come early for jobs that were submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergyd.scheduler.policies import load_policy
from synergyd.settings.policies import POLICIES
from tests.unit.daemon.daemon_world import Site


def waited(site: Site, seconds: int) -> float | None:
    """Seconds until an epoch should not wait; None where none of `seconds` has it so."""
    for second in range(1, seconds + 1):
        site.tick()
        if site.daemon.needs_early_epoch:
            return second
    return None


def test_a_job_that_arrives_is_decided_about_in_a_quarter_of_an_epoch(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.epoch()
    assert waited(site, 30) is None
    site.slurm.submit(1)
    seconds = waited(site, 30)
    assert seconds is not None and seconds <= 5
    assert 1 in site.epoch()
    assert not site.daemon.needs_early_epoch and waited(site, 30) is None


def test_a_look_for_lost_nodes_takes_no_arrival_back(tmp_path: Path) -> None:
    site = Site(tmp_path, spare_nodes={"main": 1.0})
    site.epoch()
    site.slurm.submit(1)
    assert waited(site, 30) is not None
    site.tick(3)
    assert site.daemon.needs_early_epoch


def test_the_job_that_an_epoch_saw_hurries_nobody(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slurm.submit(1)
    site.epoch()
    assert waited(site, 60) is None


@pytest.mark.parametrize("settings", [{"early_epochs": False}, {"policy": "pollux"}, {"dry_run": True}])
def test_not_where_the_admin_or_the_policy_has_a_round_of_its_own(tmp_path: Path, settings: dict[str, object]) -> None:
    site = Site(tmp_path, **settings)
    site.epoch()
    site.slurm.submit(1)
    assert waited(site, 60) is None


def test_of_all_policies_two_are_synergys_own() -> None:
    """The others' rounds, and their prices of a restart, are part of them: a policy without a `rule` has neither."""
    assert {name for name in POLICIES if not load_policy(name).rule} == {"synergy", "exact"}


def test_a_daemon_that_stands_by_does_not_look(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.leads = False
    site.epoch()
    site.slurm.submit(1)
    assert waited(site, 60) is None


def test_a_slurm_that_does_not_tell_costs_nothing_else_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path)
    site.slurm.counts = False
    site.epoch()
    site.slurm.submit(1)
    assert waited(site, 60) is None
    assert 1 in site.epoch()
    assert caplog.text.count("epochs do not come early: sdiag: Access denied") == 1
