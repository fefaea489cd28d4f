"""The daemon's loop: start times that a job's user or an admin sets while Synergy has it, and starts that failed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from synergy_core.records import Action

from synergyd.control.resize.lifecycle import ResizeState
from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.rows import PartitionRow
from tests.unit.daemon.daemon_world import SCRIPT, Site


def parked(site: Site) -> None:
    """Job 2 waits for the GPUs of job 1, and is parked."""
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    site.slurm.submit(2)
    assert site.epoch()[2].action is Action.WAIT
    assert site.slurm.jobs[2].eligible_s == site.slurm.now_s + 900
    site.tick()


def written(site: Site) -> int:
    return sum("2" in call[1].split(",") for call in site.slurm.calls)


@pytest.mark.slow
@pytest.mark.parametrize("later_s", [300.0, 3600.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_start_time_that_the_user_sets_while_the_job_is_parked_is_kept(
    site: Site, later_s: float, restarted: bool
) -> None:
    parked(site)
    site.epoch(10)
    begin_s = site.slurm.now_s + later_s
    site.slurm.set(2, eligible_s=begin_s)
    site.slurm.cancel(1)
    site.slurm.pass_time(5)
    before = written(site)
    if restarted:
        site.start()
    while site.slurm.now_s < begin_s - 60:
        decided = site.epoch(60)[2]
        assert decided.action is Action.WAIT and "May not start for another" in decided.why, decided.why
        site.tick()
    assert written(site) == before and site.slurm.jobs[2].eligible_s == begin_s
    site.epoch(130)
    for _ in range(5):
        site.tick(2)
    assert site.slurm.jobs[2].state == "RUNNING"


def test_a_start_time_that_is_set_between_the_look_and_the_start_is_kept(site: Site) -> None:
    parked(site)
    site.epoch(10)
    site.slurm.cancel(1)
    site.slurm.pass_time(5)
    begin_s = site.slurm.now_s + 3600
    read = site.daemon.observer.snapshot

    def late(*told: object) -> object:
        taken = read(*told)  # type: ignore[arg-type]
        site.slurm.set(2, eligible_s=begin_s)
        return taken

    site.daemon.observer.snapshot = late  # type: ignore[method-assign, assignment]
    assert site.epoch(60)[2].action is Action.START
    site.daemon.observer.snapshot = read  # type: ignore[method-assign]
    for _ in range(5):
        site.tick(2)
    assert site.slurm.jobs[2].eligible_s == begin_s and site.life(2).state is ResizeState.QUEUED
    assert "its start was put off for 35" in site.story(2)


@pytest.mark.parametrize("state", [ResizeState.PARKED, ResizeState.RESIZED, ResizeState.RELEASED])
def test_a_start_time_that_is_set_in_mid_start_is_kept(site: Site, state: ResizeState) -> None:
    parked(site)
    site.epoch(10)
    site.slurm.cancel(1)
    site.slurm.pass_time(5)
    update = site.slurm.update

    def stuck(job_id: int | str, fields: Mapping[str, str]) -> None:
        if (state is ResizeState.PARKED and "NumNodes" in fields) or (
            state is ResizeState.RESIZED and fields.get("StartTime") == "now"
        ):
            raise SlurmError("update", "busy", transient=True)
        update(job_id, fields)

    site.slurm.update, site.slurm.full = stuck, True  # type: ignore[method-assign,assignment]
    site.epoch(60)
    site.tick(1)
    assert site.life(2).state is state
    begin_s = site.slurm.now_s + 3600
    site.slurm.set(2, eligible_s=begin_s)
    site.slurm.update, site.slurm.full = update, False  # type: ignore[method-assign]
    for _ in range(30):
        site.tick(2)
    assert site.slurm.jobs[2].eligible_s == begin_s and site.slurm.jobs[2].state == "PENDING"
    assert site.life(2).state is ResizeState.QUEUED and "by its user or an admin" in site.story(2)


def test_a_job_whose_start_failed_starts_on_another_node(site: Site) -> None:
    site.slurm.submit(1, SCRIPT.replace("max_gpus=4", "max_gpus=2"))
    assert site.epoch()[1].action is Action.START
    first = site.slurm.required[1]
    site.slurm.full = True
    site.tick()
    site.slurm.fail_launch(1)
    decided = site.epoch(5)[1]
    assert "Slurm holds it since a start of it failed" in decided.why
    assert site.slurm.jobs[1].priority and site.slurm.jobs[1].state == "PENDING"
    again = site.epoch(5)[1]
    assert again.action is Action.START and (first, *again.node_names) in (("n1", "n2"), ("n2", "n1"))
    site.slurm.full = False
    for _ in range(5):
        site.tick(2)
    assert site.slurm.jobs[1].state == "RUNNING" and "tried again (1 of 3), not on" in site.story(1)


def test_with_no_other_node_it_waits_until_slurmd_has_ended_the_old_incarnation(site: Site) -> None:
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1)
    site.epoch()
    site.slurm.full = True
    site.tick()
    site.slurm.fail_launch(1)
    site.epoch(1)
    site.start()  # a daemon that starts again knows it too
    waits = site.epoch(5)[1]
    assert waits.action is Action.WAIT and "not n1, where it has just failed" in waits.why, waits.why
    assert site.epoch(70)[1].action is Action.START


@pytest.mark.parametrize("look", ["tick", "epoch"])
def test_a_job_that_failed_since_slurm_gave_it_no_gpus_is_requeued(tmp_path: Path, look: str) -> None:
    site = Site(tmp_path)
    site.slurm.partition_rows = (PartitionRow(name="main", gpus=8),)
    site.slurm.full = True
    site.slurm.submit(1)
    site.epoch()
    while site.life(1).state is not ResizeState.RELEASED:
        site.tick()
    site.slurm.set(1, state="FAILED", node_names=("n1",), start_s=site.slurm.now_s)
    getattr(site, look)()
    assert site.slurm.jobs[1].state == "PENDING" and "Slurm started it without its GPUs" in site.story(1)
    site.slurm.set(1, tres_gpus=2)
    site.slurm.full = False
    for _ in range(30):
        site.tick()
    assert (site.slurm.jobs[1].state, site.life(1).state) == ("RUNNING", ResizeState.RUNNING)
