"""Checkpoints that are asked for in the answers to reports: no step of the job is signalled."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_core.records import Plan
from synergy_core.wire.report import ReportAnswer

from synergyd.control.resize.lifecycle import ResizeState
from tests.unit.daemon.daemon_world import Site, grow

NEW = {"listens": True, "launcher": "0.0"}
FIRST_REQUEST = {(1, 0): (1000, ReportAnswer(Plan(), request=1))}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def grow_by_report(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1, **NEW)
    grow_on(site)


def grow_on(site: Site) -> None:
    site.epoch(60)
    assert (site.life(1).state, site.slurm.signals) == (ResizeState.CHECKPOINTING, [])


def test_the_request_stands_in_the_answers_until_it_is_met(site: Site) -> None:
    grow_by_report(site)
    assert site.post.answers == FIRST_REQUEST and not site.life(1).asked_s
    site.tick(20)  # sent again, it is the same
    assert site.post.answers == FIRST_REQUEST
    site.report(1, **NEW, requested=1)
    site.tick()
    assert site.life(1).asked_s
    site.report(1, **NEW, requested=1, checkpoint_requests=1)
    site.tick()
    assert (site.life(1).state, site.post.answers) == (ResizeState.REQUEUING, {})
    for _ in range(10):
        site.tick()
    assert site.slurm.requeued == [(1, 0)] and site.slurm.signals == []


def test_a_launcher_that_never_hears_keeps_its_job_as_it_is(site: Site) -> None:
    """It may be dead, and its script go on with something else: nothing is lost by leaving it alone."""
    grow_by_report(site)
    for _ in range(40):
        site.tick(10)
    assert (site.life(1).state, site.slurm.requeued, site.slurm.signals) == (ResizeState.RUNNING, [], [])
    assert "could not be asked for in time" in site.story(1) and site.post.answers == {}


def test_a_daemon_that_comes_back_asks_again(site: Site) -> None:
    grow_by_report(site)
    site.post.answers = {}
    site.start()
    site.epoch(1)
    site.tick(1)
    assert site.post.answers == FIRST_REQUEST and site.slurm.signals == []


def test_a_job_whose_training_ends_meanwhile_is_left_alone(site: Site) -> None:
    grow_by_report(site)
    site.report(1, **NEW, requested=1, checkpoint_requests=1, ended=True)  # it saved on request as its last step
    site.tick()
    assert (site.life(1).state, site.post.answers) == (ResizeState.RUNNING, {})
    decided = site.epoch(400)
    assert "its training has ended" in decided[1].why
    assert site.slurm.requeued == [] and site.life(1).state is ResizeState.RUNNING
    # a second launcher of its script, in another step
    site.report(1, listens=True, launcher="1.0")
    grow_on(site)
    assert site.post.answers == FIRST_REQUEST


def test_of_two_launchers_at_once_both_are_waited_for(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1, **NEW)
    site.report(1, listens=True, launcher="1.0", checkpoint_requests=2)
    grow_on(site)
    assert site.post.answers == {(1, 0): (1000, ReportAnswer(Plan(), request=3))}
    site.report(1, listens=True, launcher="1.0", checkpoint_requests=3, requested=3)
    site.tick()
    assert site.life(1).state is ResizeState.CHECKPOINTING and not site.life(1).asked_s
    site.report(1, **NEW, checkpoint_requests=3, requested=3)
    site.tick()
    assert site.life(1).state is ResizeState.REQUEUING


def test_an_older_launcher_is_signalled(site: Site) -> None:
    grow(site)
    assert [s[:2] for s in site.slurm.signals] == [(1, 0)] and site.post.answers == {}
