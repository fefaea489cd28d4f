"""Time limits and reservations through the daemon: over restarts of it, a take-over, and the loss of its database."""

from __future__ import annotations

import pytest

from synergyd.control.resize.lifecycle import ResizeState
from tests.unit.daemon.daemon_world import SCRIPT, Site

HOUR = 3600.0
ANEW = SCRIPT.replace("gpt2", "gpt2 resize=no walltime=continue:1")


def running(site: Site, script: str = SCRIPT) -> None:
    """Job 1 runs on two GPUs of n1, with a limit of an hour, and its agent reports."""
    site.slurm.submit(1, script, time_limit_s=HOUR)
    site.slurm.runs(1, "n1")
    site.slurm.set(1, end_s=site.slurm.now_s + HOUR)
    site.epoch()
    site.report(1)


def acknowledged(site: Site) -> None:
    assert site.life(1).state is ResizeState.CHECKPOINTING
    site.report(1, checkpoint_requests=1)
    site.tick()
    assert site.life(1).state is ResizeState.REQUEUING


def until_running(site: Site) -> None:
    for _ in range(200):
        site.tick(2)
        if site.life(1).state is ResizeState.RUNNING:
            return
    raise AssertionError(site.life(1))


@pytest.mark.parametrize("who", ["same", "restarted", "taken over"])
def test_what_is_left_outlives_the_daemon(site: Site, who: str) -> None:
    running(site)
    site.epoch(900)
    acknowledged(site)
    if who == "restarted":
        site.start()
        site.epoch(1)
    elif who == "taken over":
        site.leads = False
        site.start()
        site.epoch(1)
        site.leads = True
        site.epoch(1)
    until_running(site)
    assert site.slurm.ran_s[1] >= 900
    assert site.slurm.jobs[1].time_limit_s == (HOUR - site.slurm.ran_s[1]) // 60 * 60
    assert "min of its time limit left" in site.story(1)


def test_without_its_database_the_daemon_knows_the_limit_from_the_stamp(site: Site) -> None:
    running(site, ANEW)
    site.epoch(HOUR - 300)  # CheckpointTimeout and two epochs are 420 s
    acknowledged(site)
    until_running(site)
    assert site.slurm.jobs[1].time_limit_s == HOUR
    assert "its time limit of 60 min begins anew, time 1 of 1" in site.story(1)
    for path in site.folder.glob("synergy.db*"):
        path.unlink()
    site.start()
    site.epoch(60)
    walltime = site.life(1).walltime
    assert (walltime.asked_s, walltime.continues, walltime.continuations) == (HOUR, 1, 1)
    site.report(1)
    site.epoch(HOUR - 400)
    assert site.life(1).state is ResizeState.RUNNING
    assert "checkpoint asked for before its time limit ends it" in site.story(1)


def test_reservations_are_read_each_epoch_only_while_there_are_some(site: Site) -> None:
    reads = []
    read = site.slurm.reservations
    site.slurm.reservations = lambda: reads.append(site.slurm.now_s) or read()  # type: ignore[func-returns-value, method-assign]
    site.start()
    for _ in range(8):
        site.epoch(60)
    assert len(reads) == 2
    start = int(site.slurm.now_s) + 1200
    site.slurm.reserved = f"ReservationName=maint StartTime={start} EndTime={start + 600} Nodes=n1 TRES=(null)"
    for _ in range(8):
        site.epoch(60)
    assert len(reads) >= 2 + 5


def test_a_job_is_placed_round_a_reservation_and_starts_when_it_is_over(site: Site) -> None:
    start = int(site.slurm.now_s) + 1200
    site.slurm.reserved = f"ReservationName=maint StartTime={start} EndTime={start + 600} Nodes=n[1-2] TRES=(null)"
    site.slurm.submit(1, time_limit_s=HOUR)
    decision = site.epoch()[1]
    assert decision.cell is None
    assert "The reservation maint takes n1, n2 in 20 min, and the job may run for 60 min." in decision.why
    site.slurm.reserved = ""
    assert any(site.epoch(60)[1].cell is not None for _ in range(6))
