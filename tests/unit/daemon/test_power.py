"""Nodes that are powered down, and reservations, through the daemon: nothing is stopped before its new nodes can be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergyd.control.resize.lifecycle import ResizeState
from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.rows import PartitionRow
from tests.unit.daemon.daemon_world import SCRIPT, Site

ASLEEP, WAKING = "idle+cloud+powered_down", "idle+cloud+not_responding+powering_up"


@pytest.fixture
def sky(tmp_path: Path) -> Site:
    """Job 1 runs on both GPUs of n1; c1 has four and sleeps."""
    site = Site(tmp_path)
    site.slurm.gpus = {"n1": 2, "c1": 4}
    site.slurm.states = {"c1": ASLEEP}
    site.slurm.partition_rows = (PartitionRow(name="main", nodes=("n1", "c1"), resume_timeout_s=30.0),)
    site.running(1, "n1")
    return site


def woken(site: Site) -> None:
    for _ in range(60):
        site.epoch(60)
        if site.slurm.woken:
            return
    raise AssertionError(site.daemon.decisions)


def test_the_node_is_woken_first_and_then_the_job_is_resized(sky: Site) -> None:
    woken(sky)
    assert sky.slurm.woken == ["c1"] and sky.life(1).state is ResizeState.RUNNING
    assert "c1 powered up for it to grow onto" in sky.story(1)
    sky.slurm.states["c1"] = WAKING
    assert "as soon as c1 is powered up" in sky.epoch(60)[1].why
    assert sky.slurm.woken == ["c1"] and sky.life(1).state is ResizeState.RUNNING
    sky.slurm.states["c1"] = "idle+cloud"
    assert sky.epoch(60)[1].node_names == ("c1",)
    assert sky.life(1).state is ResizeState.CHECKPOINTING


def test_a_node_that_does_not_come_up_is_not_woken_again_at_once(sky: Site) -> None:
    woken(sky)
    for state in (WAKING, "down+cloud+powered_down+not_responding", ASLEEP, ASLEEP):
        sky.slurm.states["c1"] = state
        sky.epoch(60)
        assert sky.slurm.woken == ["c1"] and sky.life(1).state is ResizeState.RUNNING
    for _ in range(10):
        sky.epoch(60)
    assert sky.slurm.woken[:2] == ["c1", "c1"]


def test_a_power_up_that_slurm_takes_and_never_begins_is_asked_for_once(sky: Site) -> None:
    woken(sky)
    for _ in range(10):
        sky.epoch(60)
    assert sky.slurm.woken == ["c1"] and sky.life(1).state is ResizeState.RUNNING
    assert sky.story(1).count("c1 powered up for it") == 1


def test_a_daemon_that_may_not_power_nodes_up_says_so_and_stops_nothing(sky: Site) -> None:
    def denied(nodes: object) -> None:
        raise SlurmError("scontrol update", "Access/permission denied", transient=False)

    sky.slurm.power_up = denied  # type: ignore[method-assign]
    for _ in range(9):
        sky.epoch(60)
    assert sky.life(1).state is ResizeState.RUNNING
    assert sky.story(1).count("c1 can't be powered up for it: ") == 1


def test_a_dry_run_wakes_nothing(sky: Site) -> None:
    sky.start(dry_run=True)
    for _ in range(5):
        sky.epoch(60)
        sky.report(1)
    assert sky.slurm.woken == []


def test_a_job_waiting_for_its_reservation_is_resized_in_it_once_it_begins(tmp_path: Path) -> None:
    site = Site(tmp_path)
    start = int(site.slurm.now_s) + 300
    site.slurm.reserved = f"ReservationName=mine StartTime={start} EndTime={start + 36000} Nodes=n2 Flags= TRES=(null)"
    site.slurm.submit(1, SCRIPT, reservation="mine", time_limit_s=3600.0)
    site.slurm.submit(2, SCRIPT, time_limit_s=3600.0)
    found = site.epoch()
    assert "it is in the reservation mine, and it begins in 5 min" in found[1].why
    assert found[2].node_names == ("n1",)
    for _ in range(6):
        found = site.epoch(60)
    site.slurm.states["n2"] = "idle+reserved"
    found = site.epoch(60)
    assert found[1].node_names == ("n2",) and site.life(1).state is not ResizeState.QUEUED


def test_nodes_that_are_reserved_after_the_decision_are_not_waited_for(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slurm.full = True
    site.slurm.submit(1, SCRIPT, time_limit_s=3600.0)
    assert site.epoch()[1].node_names
    (node,) = site.daemon.controller.jobs[1].lifecycle.target.nodes  # type: ignore[union-attr]
    start = int(site.slurm.now_s)
    site.slurm.reserved = (
        f"ReservationName=maint StartTime={start} EndTime={start + 36000} Nodes={node} Flags= TRES=(null)"
    )
    for _ in range(6):
        site.epoch(20)
        site.tick(1)
    (other,) = site.daemon.controller.jobs[1].lifecycle.target.nodes  # type: ignore[union-attr]
    assert other != node and f"waits for a new decision: {node} can't take jobs now" in site.story(1)


def test_a_reservation_that_is_gone_frees_its_nodes_at_the_next_epoch(tmp_path: Path) -> None:
    """Slurm shows its nodes as reserved some seconds longer; a new one that it shows is read at once."""
    site = Site(tmp_path)
    site.slurm.gpus = {"n1": 4}
    site.epoch()
    start = int(site.slurm.now_s)
    site.slurm.reserved = f"ReservationName=maint StartTime={start} EndTime={start + 36000} Nodes=n1 Flags= TRES=(null)"
    site.slurm.states["n1"] = "idle+reserved"
    site.slurm.submit(1, SCRIPT, time_limit_s=3600.0)
    assert "The reservation maint has n1 for another" in site.epoch(60)[1].why
    site.slurm.reserved = "No reservations in the system"
    assert site.epoch(60)[1].node_names == ("n1",)


@pytest.mark.parametrize(("state", "stays"), [("unknown", True), ("down", False), ("unknown+drain", False)])
def test_a_node_that_slurmctld_has_not_heard_of_since_its_start_is_not_given_up(
    tmp_path: Path, state: str, stays: bool
) -> None:
    site = Site(tmp_path)
    site.slurm.full = True
    site.slurm.submit(1, SCRIPT, time_limit_s=3600.0)
    assert site.epoch()[1].node_names
    (node,) = site.daemon.controller.jobs[1].lifecycle.target.nodes  # type: ignore[union-attr]
    site.slurm.states[node] = state
    site.epoch(2)
    assert (f"{node} can't take jobs now" not in site.story(1)) == stays
