"""Periodic checkpoints: how often, and which ends of a run count as failures."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synergy_launch.agent.checkpointer import DISK_DUE, NOTHING_DUE

from tests.unit.launch.agent.agent_rig import Rig


def test_checkpoint_at_each_interval_and_at_the_end(rig: Rig) -> None:
    rig.start(checkpoint_interval=2)
    for number in range(1, 6):
        rig.step(number)
    assert rig.save.saved == 2 and rig.status["checkpoint_step"] == 4
    rig.agent.finish()
    assert rig.save.saved == 3 and rig.status["state"] == "done" and rig.status["checkpoint_step"] == 5


def test_without_an_interval_checkpoints_come_as_often_as_loses_least(rig: Rig) -> None:
    rig.start(checkpoint_interval=None)
    number = 0
    while rig.save.saved == 0:
        number += 1
        rig.step(number, 10.0)
    assert number == 30  # five minutes, to learn what one takes

    real = rig.save.__call__

    def slow(folder: Path) -> Mapping[str, Any]:
        rig.clock.now += 20.0
        return real(folder)

    rig.agent.checkpointer.save = slow
    rig.request(1)
    rig.step(number + 1, 1.0)
    assert ": one takes 20 s, a failure is expected every" in rig.status["note"]
    chosen = rig.agent.checkpointer.schedule.every
    assert chosen is not None and chosen.save_s == 20.0
    assert rig.agent.checkpointer.due_by_clock == NOTHING_DUE
    rig.clock.now += chosen.every_s
    assert rig.agent.checkpointer.due_by_clock == DISK_DUE


def test_failures_are_counted_from_checkpoints_that_nobody_asked_for(tmp_path: Path) -> None:
    def incarnation(number: int) -> Rig:
        rig = Rig(tmp_path)
        found = rig.agent.find_checkpoint(None)
        rig.agent.start(found.checkpoint.step if found.checkpoint else 0, save=rig.save, checkpoint_interval=2)
        for step in range(2 * number + 1, 2 * number + 3):
            rig.step(step, 5.0)
        return rig

    for number in range(3):
        killed = incarnation(number)
    assert killed.agent.checkpointer.schedule.history(True)["failures"] == 2
    assert killed.agent.checkpointer.schedule.history(True)["run_s"] == pytest.approx(30.0)
    killed.agent.checkpointer.checkpoint(6)  # there already
    killed.step(7)
    killed.request(1)
    killed.step(8)
    following = incarnation(4)
    assert following.agent.checkpointer.schedule.history(True)["failures"] == 2


def incarnation(folder: Path, until: int, *, ends: str, every: int = 4) -> tuple[int, int]:
    """One life of a run that saves each `every` steps: (failures that it counted, step that it began from)."""
    rig = Rig(folder)
    found = rig.agent.find_checkpoint(None).checkpoint
    first = found.step if found else 0
    failures = rig.agent.checkpointer.schedule.failures
    rig.agent.start(first, save=rig.save, checkpoint_interval=every)
    for step in range(first + 1, until + 1):
        if ends == "SIGTERM" and step == until:
            rig.agent._on_term(signal.SIGTERM, None)
        if not rig.step(step):
            break
    return failures, first


def test_a_clean_end_at_a_step_that_was_just_saved_is_no_failure(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.start(checkpoint_interval=4)
    for step in range(1, 5):
        assert rig.step(step)
    rig.agent._on_term(signal.SIGTERM, None)
    rig.agent._end(4)  # SIGTERM came while the checkpoint of step 4 was written
    assert incarnation(tmp_path, 6, ends="SIGTERM") == (0, 4)
    assert incarnation(tmp_path, 9, ends="SIGKILL") == (0, 6)
    assert incarnation(tmp_path, 9, ends="SIGKILL") == (1, 8)


def test_two_deaths_from_the_same_checkpoint_are_two_failures(tmp_path: Path) -> None:
    incarnation(tmp_path, 5, ends="SIGKILL")
    assert incarnation(tmp_path, 6, ends="SIGKILL") == (1, 4)
    assert incarnation(tmp_path, 7, ends="SIGKILL") == (2, 4)
    assert incarnation(tmp_path, 7, ends="SIGTERM") == (3, 4)
    assert incarnation(tmp_path, 9, ends="SIGKILL") == (3, 7)
    (tmp_path / "checkpoints" / "synergy-endings.json").write_text("nonsense")
    assert incarnation(tmp_path, 9, ends="SIGKILL") == (4, 8)
