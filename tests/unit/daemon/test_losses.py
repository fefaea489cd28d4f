"""Nodes that jobs lose between two epochs, where spares are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_core.records import Action

from tests.unit.daemon.daemon_world import SCRIPT, Site

EXACT = SCRIPT.replace("max_gpus=4", "min_gpus=2 max_gpus=2")


def lost(site: Site, state: str) -> None:
    """Job 1 has run on n1, which is down; Slurm shows the job as `state`."""
    site.slurm.submit(1, EXACT)
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1)
    site.epoch(5)
    site.slurm.states["n1"] = "down"
    if state == "PENDING":
        site.slurm.set(1, state="PENDING", node_names=(), restarts=1, start_s=None)
    else:
        site.slurm.set(1, state=state)


@pytest.mark.parametrize("spares, hurries", [({"main": 1.0}, True), ({}, False)])
def test_an_epoch_comes_early_where_spares_are_kept(tmp_path: Path, spares: dict[str, float], hurries: bool) -> None:
    site = Site(tmp_path, spare_nodes=spares)
    lost(site, "PENDING")
    assert not site.daemon.needs_early_epoch
    site.tick(3)
    assert site.daemon.needs_early_epoch is hurries
    site.slurm.set(1, state="RUNNING", node_names=("n2",))
    site.epoch(3)
    site.tick(3)
    assert not site.daemon.needs_early_epoch


def test_it_starts_at_the_size_that_it_had_with_a_spare(tmp_path: Path) -> None:
    site = Site(tmp_path, spare_nodes={"main": 1.0})
    lost(site, "PENDING")
    decided = site.epoch(3)[1]
    assert (decided.action, decided.node_names) == (Action.START, ("n2",))
    assert "as before it lost n1, with a spare node (1 of the 1 nodes of partition main are kept)" in decided.why
    assert "as before it lost n1" in site.story(1)


def test_a_loss_that_slurm_is_long_about_is_seen(tmp_path: Path) -> None:
    """The job's processes on its other nodes end slowly: epochs see it completing first."""
    site = Site(tmp_path, spare_nodes={"main": 1.0})
    lost(site, "COMPLETING")
    site.slurm.set(1, node_names=())
    site.epoch(3)
    site.slurm.set(1, state="PENDING", restarts=1, start_s=None)
    assert "as before it lost n1" in site.epoch(3)[1].why


def test_a_node_that_is_drained_under_its_job_hurries_nobody_for_long(tmp_path: Path) -> None:
    site = Site(tmp_path, spare_nodes={"main": 1.0})
    lost(site, "RUNNING")
    hurried = []
    for _ in range(30):
        site.tick(3)
        hurried.append(site.daemon.needs_early_epoch)
        site.epoch() if site.daemon.needs_early_epoch else None
    assert sum(hurried) <= 11 and not any(hurried[-10:])


def test_a_job_that_its_user_requeues_has_lost_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, spare_nodes={"main": 1.0})
    site.slurm.submit(1, EXACT)
    site.slurm.runs(1, "n1")
    site.epoch()
    site.epoch(5)
    site.slurm.set(1, state="PENDING", node_names=(), restarts=1, start_s=None)
    site.tick(3)
    assert not site.daemon.needs_early_epoch
    assert "lost" not in site.epoch(3)[1].why
