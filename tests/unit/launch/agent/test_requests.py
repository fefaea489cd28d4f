"""Checkpoints on request and SIGTERM: saved, acknowledged, held, by all ranks together."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.settings import AgentSettings

from tests.unit.launch.agent.agent_rig import Clock, Rig, TwoRanks


def test_request_is_saved_acknowledged_held_and_training_goes_on(rig: Rig) -> None:
    rig.start()
    rig.step(1)
    rig.request(1)
    seen: list[dict[str, Any]] = []
    rig.clock.on_sleep = lambda: seen.append(rig.status)
    before = rig.clock.now
    assert rig.step(2)
    assert rig.save.saved == 1
    assert seen[0]["state"] == "waiting" and seen[0]["checkpoint_requests"] == 1 and seen[0]["checkpoint_step"] == 2
    assert rig.clock.now - before == pytest.approx(1.0 + 20.0, abs=0.3)
    assert rig.status["state"] == "training"
    assert rig.step(3) and rig.save.saved == 1  # the same request is not served twice


def test_the_hold_is_no_step_time(rig: Rig) -> None:
    rig.start()
    for number in range(1, 6):
        rig.step(number)
    rig.request(1)
    rig.step(6)
    rig.step(7)
    assert rig.status["step_s"] == pytest.approx(1.0)


def test_newer_request_while_held_needs_no_second_save(rig: Rig) -> None:
    rig.start()
    rig.request(1)
    rig.clock.on_sleep = lambda: rig.request(2)
    rig.step(1)
    assert rig.save.saved == 1 and rig.status["checkpoint_requests"] == 2


def test_signals_alone_count_requests(rig: Rig) -> None:
    rig.start()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        rig.agent.install_signals()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert rig.step(1) and rig.status["checkpoint_requests"] == 1
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # a second one changes nothing
        assert not rig.step(2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert rig.save.saved == 2
    assert rig.status["note"] == "stopped by SIGTERM at step 2, last checkpoint: step 2"
    assert rig.status["state"] == "waiting"


def test_a_request_to_a_finished_job_does_not_kill_it(rig: Rig) -> None:
    rig.start()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        rig.agent.finish()
        assert signal.getsignal(signal.SIGUSR2) == before[signal.SIGUSR2], "not its handler"
        rig.agent.install_signals()
        rig.agent.finish()
        # any other would be taken away at Python's end, with the default in its place
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signal_with_a_file_is_one_request(rig: Rig) -> None:
    rig.start()
    rig.request(4)
    rig.agent._on_usr2(0, None)
    rig.step(1)
    assert rig.status["checkpoint_requests"] == 4
    rig.agent._on_usr2(0, None)  # late: the file still says 4
    rig.step(2)
    assert rig.status["checkpoint_requests"] == 4 and rig.save.saved == 1


def test_sigterm_while_held_ends_at_once_without_a_second_save(rig: Rig) -> None:
    rig.start()
    rig.request(1)
    rig.clock.on_sleep = lambda: rig.agent._on_term(15, None)
    before = rig.clock.now
    assert not rig.step(1)
    assert rig.save.saved == 1 and rig.clock.now - before < 2


def test_no_save_is_begun_that_would_outlast_the_grace(tmp_path: Path) -> None:
    rig = Rig(tmp_path, grace_s=5.0, hold_s=0.0)
    slow = rig.save

    def save(folder: Path) -> Mapping[str, Any]:
        rig.clock.now += 6.0
        return slow(folder)

    rig.agent.find_checkpoint(None)
    rig.agent.start(0, save=save)
    rig.request(1)
    rig.step(1)
    rig.agent._on_term(15, None)
    assert not rig.step(2)
    assert slow.saved == 1 and "stopped by SIGTERM at step 2, last checkpoint: step 1" in rig.status["note"]


def test_failed_save_is_said_not_acknowledged_and_training_goes_on(rig: Rig) -> None:
    rig.start()
    rig.save.fails = True
    rig.request(1)
    assert rig.step(1)
    status = rig.status
    assert status["checkpoint_requests"] == 0 and status["checkpoint_step"] is None
    assert "no space left" in status["note"] and status["state"] == "training"
    rig.save.fails = False
    rig.request(2)
    assert rig.step(2) and rig.status["checkpoint_requests"] == 2


def test_without_a_checkpoint_folder_a_request_is_answered_with_a_note(tmp_path: Path) -> None:
    clock = Clock()
    settings = AgentSettings(run_dir=tmp_path)
    agent = Agent(settings, Plan(), monotonic=clock, sleep=clock.sleep)
    agent.find_checkpoint(None)
    agent.start(0)
    (tmp_path / "checkpoint-request").write_text("1")
    assert agent.after_step(1, loss=1.0)
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["checkpoint_requests"] == 0 and "no checkpoint folder" in status["note"]
    assert status["accepts"]["own_size"] is True, "it could not go on at another size"


@pytest.mark.parametrize("text", ["", "one", "-1"])
def test_a_request_file_being_written_is_no_request(rig: Rig, text: str) -> None:
    rig.start()
    (rig.run_dir / "checkpoint-request").write_text(text)
    assert rig.step(1) and rig.save.saved == 0


def test_a_request_that_only_another_rank_knows_of_is_served(tmp_path: Path) -> None:
    rig = Rig(tmp_path, hold_s=0.0)
    other = [0]
    rig.agent.ranks = TwoRanks(lambda: other[:1])
    rig.start()
    rig.step(1)
    other[0] = 3
    rig.agent.checkpointer.store.ranks = OneProcess()  # type: ignore[union-attr]
    rig.step(2)
    assert rig.status["checkpoint_requests"] == 3 and rig.save.saved == 1


def test_sigterm_that_only_another_rank_got_stops_this_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.start()
    rig.agent.ranks = TwoRanks(lambda: [0, 1])
    assert not rig.step(1)
    assert rig.save.saved == 1
