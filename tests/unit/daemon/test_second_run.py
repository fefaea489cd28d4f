"""A script that ends before its training begins again after a resize is run once more as it was, and its program is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergyd.control.notices import make_notice
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.control.tracked import Remember
from tests.unit.daemon.daemon_world import SCRIPT, Site, grow


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def resized(site: Site) -> None:
    """Job 1 has been restarted on four GPUs."""
    grow(site)
    site.report(1, checkpoint_requests=1)
    for _ in range(10):
        site.tick()
    assert (site.slurm.jobs[1].state, site.slurm.jobs[1].restarts) == ("RUNNING", 1)


def until_it_runs(site: Site, restarts: int) -> None:
    for _ in range(200):
        if (site.slurm.jobs[1].state, site.slurm.jobs[1].restarts) == ("RUNNING", restarts):
            return
        site.tick()
    raise AssertionError(site.story(1))


def test_it_is_run_once_more_with_its_former_size(site: Site) -> None:
    resized(site)
    site.slurm.set(1, state="FAILED")
    site.epoch(1)
    assert site.life(1).reruns == 1
    until_it_runs(site, 2)
    assert site.slurm.jobs[1].tres_per_node == "gres:gpu:2"
    assert "ended with an error before its training began again: run once more with 2" in site.story(1)
    site.epoch(1)
    site.report(1)
    assert "ended before its training began again after a resize" in site.epoch(700)[1].why
    assert site.life(1).state is ResizeState.RUNNING
    # another run of the program, and a daemon that comes back, know it too
    site.slurm.submit(2)
    site.slurm.runs(2, "n2")
    site.start()
    site.epoch(1)
    site.report(2)
    assert "ended before its training began again after a resize" in site.epoch(60)[2].why


def test_the_second_time_it_is_lost_and_told(site: Site) -> None:
    resized(site)
    site.slurm.set(1, state="FAILED")
    site.epoch(1)
    until_it_runs(site, 2)
    site.epoch(1)
    site.slurm.set(1, state="FAILED")
    site.epoch(1)
    assert 1 not in site.daemon.controller.jobs and site.slurm.jobs[1].state == "FAILED"
    assert "with its former size too: it is lost" in site.story(1)


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETED", "TIMEOUT"])
def test_another_end_is_an_end(site: Site, state: str) -> None:
    resized(site)
    site.slurm.set(1, state=state)
    site.epoch(1)
    assert 1 not in site.daemon.controller.jobs and site.slurm.jobs[1].state == state


def test_one_whose_launcher_was_there_ends_as_its_training_does(site: Site) -> None:
    resized(site)
    site.report(1, silent=True, step_s=None)
    site.tick()
    site.slurm.set(1, state="FAILED")
    site.epoch(1)
    assert 1 not in site.daemon.controller.jobs and site.slurm.jobs[1].state == "FAILED"


def test_its_owner_gets_a_notice(site: Site) -> None:
    resized(site)
    life = site.life(1)
    text = "its script ended with an error before its training began again: run once more"
    notice = make_notice(Remember(life, ResizeState.RUNNING, "Observed", (text,)), None, 0.0)
    assert notice is not None and (notice.event, notice.text) == ("ban", text)


def test_a_script_that_can_be_seen_not_to_survive_is_not_resized(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.scripts[1] = SCRIPT.replace("srun", "set -e\nmkdir out\nsrun")
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1)
    why = site.epoch(60)[1].why
    assert "would not survive the restart" in why and "`mkdir` without -p" in why
    assert site.life(1).state is ResizeState.RUNNING and site.slurm.signals == []
