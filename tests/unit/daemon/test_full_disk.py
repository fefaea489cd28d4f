"""A StateDir without room: no running job is stopped for a resize that can't be finished, and the daemon goes on."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from synergy_core.records import Action, Directive, Plan, Shape
from synergy_core.wire import plan_file

from synergyd.control.resize.events import CarriedOut, Refused
from synergyd.control.resize.instructions import AskCheckpoint, Requeue, Target, Update
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.daemon import service
from synergyd.daemon.adoption import remove_plan
from synergyd.settings import Settings
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.parsed.snapshot import SubmittedJob
from synergyd.store.leader import Leader
from tests.unit.daemon.daemon_world import Site
from tests.unit.slurm.fake_slurm import FakeSlurm, row

PLAN = Plan(tp=2, dp=2, global_batch=8)
UPDATE = Update(1, Target(Shape("a100", 2, 2), ("n1", "n2"), PLAN), 900)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes all room that is left."""
    path = folder / "filling"
    with path.open("ab", buffering=0) as file:
        while True:
            try:
                file.write(b"x" * 4096)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return path


def actuator_on(folder: Path, **changes: object) -> tuple[FakeSlurm, Actuator]:
    slurm = FakeSlurm(jobs={1: row(1, **changes)})
    return slurm, Actuator(slurm, folder, "ctl:7321", {1: SubmittedJob(Directive(), "", Shape("a100", 1, 2), 8)})


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("instruction", [AskCheckpoint(1, 0), Requeue(1, 0), UPDATE])
def test_without_room_for_the_hand_over_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instruction: AskCheckpoint | Requeue | Update
) -> None:
    slurm, actuator = actuator_on(tmp_path, state="PENDING" if instruction is UPDATE else "RUNNING")
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    answer = actuator.carry_out(instruction)
    assert isinstance(answer, Refused) and not answer.transient and "No space left on device" in answer.error
    assert slurm.calls == []


def test_room_that_was_reserved_is_enough_on_a_disk_that_is_full_by_then(disk: Path) -> None:
    slurm, actuator = actuator_on(disk, state="RUNNING")
    assert isinstance(actuator.carry_out(AskCheckpoint(1, 0)), CarriedOut)
    fill(disk)
    assert isinstance(actuator.carry_out(Requeue(1, 0)), CarriedOut)
    slurm.pass_time(10)
    assert isinstance(actuator.carry_out(UPDATE), CarriedOut)
    told = plan_file.read(plan_file.plan_path(disk, 1), 1)
    assert told.plan == PLAN and plan_file.plan_path(disk, 1).stat().st_mode & 0o007 == 0
    remove_plan(disk, 1)
    assert list((disk / "plans").iterdir()) == []


def test_a_script_that_can_not_be_shown_stops_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, actuator = actuator_on(tmp_path)
    monkeypatch.setattr(Actuator, "_write_script", no_room)
    assert isinstance(actuator.carry_out(UPDATE), CarriedOut)


def grows(site: Site) -> ResizeState:
    """Runs job 1 on two of n1's GPUs, and decides that it shall have four."""
    assert site.epoch(60)[1].action is Action.RESIZE
    site.tick()
    return site.life(1).state


def test_a_full_disk_stops_no_running_job_and_no_epoch(disk: Path) -> None:
    site = Site(disk)
    site.running(1, "n1")
    filling = fill(disk)
    assert grows(site) is ResizeState.RUNNING
    assert site.slurm.signals == [] and site.slurm.requeued == [] and site.slurm.jobs[1].state == "RUNNING"
    assert not site.daemon.dependencies.store.is_healthy and "full" in site.daemon.dependencies.store.problem
    for _ in range(3):
        site.report(1)
        site.epoch(60)
    assert site.slurm.signals == []
    filling.unlink()
    site.report(1)
    site.epoch(3600)  # the failed resize and the database are tried again
    assert (
        site.life(1).state is ResizeState.CHECKPOINTING
        and site.slurm.signals
        and site.daemon.dependencies.store.is_healthy
    )
    assert "checkpoint could not be asked for" in site.story(1) and "No space left" in site.story(1)


def test_a_daemon_that_starts_on_a_full_disk_stays(
    disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Site(disk)  # its database
    fill(disk)
    settings = Settings(state_dir=disk)
    service.prepare_state_dir(settings)
    with monkeypatch.context() as patch:  # a file system that has no room for an empty file either
        patch.setattr(Path, "write_text", no_room)
        service.prepare_state_dir(settings)
    assert "No space left on device; jobs are not resized until there is room" in caplog.text
    leader = Leader(settings.database_url(), clock=lambda: 0.0)
    leader.try_lead()
    assert leader.is_database_away or leader.is_leading
    leader.release()


def test_a_leader_on_a_full_disk_goes_on(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(disk)
    leader = Leader(site.url, clock=lambda: 0.0)
    assert leader.try_lead()
    fill(disk)
    leader.try_lead()
    assert leader.is_leading
    leader.release()
