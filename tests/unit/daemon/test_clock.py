"""The daemon's loop, and a clock that somebody sets by an hour."""

from __future__ import annotations

import pytest

from synergyd.control.resize.lifecycle import ResizeState
from synergyd.daemon.day_time import LEAST_S, DayTime
from tests.unit.daemon.daemon_world import Site, grow

HOUR_S = 3600.0


def test_only_what_was_set_is_told_and_once() -> None:
    wall, counted = [5000.0], [10.0]
    day_time = DayTime(lambda: wall[0], lambda: counted[0])
    for passed_s, set_s in (
        (5.0, 0.0),
        (1.0, HOUR_S),
        (1.0, 0.0),
        (0.0, -2 * HOUR_S),
        (3.0, LEAST_S / 2),
        (3.0, LEAST_S),
    ):
        counted[0] += passed_s
        wall[0] += passed_s + set_s
        now_s, by_s = day_time.read()
        told = set_s if abs(set_s) > LEAST_S else 0.75 if set_s == LEAST_S else 0.0  # small steps add up
        assert now_s == wall[0] and by_s == pytest.approx(told)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_a_checkpoint_is_awaited_as_long_as_it_would_have_been(site: Site, by_s: float) -> None:
    grow(site)
    site.set_clock(by_s)
    for _ in range(28):
        site.tick(10)
        assert site.life(1).state is ResizeState.CHECKPOINTING
    for _ in range(3):
        site.tick(10)
    assert site.slurm.requeued == [(1, 0)] and "no checkpoint acknowledged within 300 s" in site.story(1)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
@pytest.mark.parametrize("restarted", [False, True])
def test_after_a_failed_resize_the_next_comes_when_it_would_have_come(site: Site, by_s: float, restarted: bool) -> None:
    site.running(1, "n1")
    site.slurm.refuse = {"signal": ("no", False)}
    site.epoch(60)
    site.slurm.refuse = {}
    site.set_clock(by_s)
    site.report(1)
    site.epoch(60)
    if restarted:
        site.start()
    assert "its last resize failed" in site.epoch(60)[1].why and site.slurm.signals == []
    site.epoch(60)
    site.epoch(130)
    assert site.slurm.signals, "an hour back would have frozen it for an hour"


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_gpu_time_is_counted_by_what_passed(site: Site, by_s: float) -> None:
    site.running(1, "n1")
    site.epoch(60)
    before = site.daemon.controller.attained_gpu_s[1]
    site.set_clock(by_s)
    site.epoch(60)
    assert site.daemon.controller.attained_gpu_s[1] - before == pytest.approx(2 * 60)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_a_start_under_way_ends_in_bounded_time(site: Site, by_s: float) -> None:
    site.slurm.submit(1)
    site.slurm.full = True
    site.epoch()
    assert site.life(1).state is ResizeState.RELEASED
    site.set_clock(by_s)
    site.slurm.full = False
    for _ in range(5):
        site.epoch(30)
        site.tick(5)
    assert site.slurm.jobs[1].state == "RUNNING"


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_the_heartbeat_goes_on(site: Site, by_s: float) -> None:
    site.epoch()
    site.set_clock(by_s)
    site.tick(20)
    assert (site.folder / "heartbeat").read_text().split()[0] == str(int(site.slurm.now_s))
