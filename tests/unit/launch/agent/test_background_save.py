"""Checkpoints that are written while training goes on: one rank's agent, with a writer that takes its time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.background_save import BackgroundSave, StagedPart
from synergy_launch.agent.checkpoint import CheckpointError, Checkpoints, latest_good
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.settings import AgentSettings


class Writer:
    """Writes when it is let."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.fails = ""
        self.finished = 0
        self.waited_for = 0

    def stage(self, folder: Path) -> StagedPart:
        if self.fails == "copy":
            raise MemoryError("no memory left")

        def write() -> None:
            assert self.may_write.wait(10)
            if self.fails == "write":
                raise OSError("no space left")
            (folder / "data").write_text("x")

        def finish() -> None:
            if self.fails == "finish":
                raise RuntimeError("no last word")
            self.finished += 1

        return StagedPart({"kind": "test"}, write, finish)

    def save(self, folder: Path) -> Mapping[str, Any]:
        self.waited_for += 1
        (folder / "data").write_text("y")
        return {}


def make(folder: Path, writer: Writer, **more: Any) -> Agent:
    (folder / "run").mkdir(exist_ok=True)
    agent = Agent(AgentSettings(run_dir=folder / "run", checkpoint_dir=folder / "saved", **more), Plan(), OneProcess())
    found = agent.find_checkpoint(None).checkpoint
    agent.start(found.step if found else 0, save=writer.save, stage=writer.stage, checkpoint_interval=2)
    return agent


def steps(agent: Agent, first: int, last: int) -> None:
    for step in range(first, last + 1):
        assert agent.after_step(step, loss=1.0)


def test_training_goes_on_while_one_is_written(tmp_path: Path) -> None:
    writer = Writer()
    agent = make(tmp_path, writer)
    steps(agent, 1, 3)
    assert agent.status["checkpoint_step"] is None and agent.checkpointer.is_under_way
    assert latest_good(tmp_path / "saved").checkpoint is None  # a kill now finds nothing that looks good
    writer.may_write.set()
    deadline = time.monotonic() + 10
    assert agent.checkpointer.background is not None
    while agent.checkpointer.is_under_way:
        agent._agree(None)
        assert time.monotonic() < deadline
    found = latest_good(tmp_path / "saved").checkpoint
    assert found is not None and found.step == 2 == agent.status["checkpoint_step"]
    assert found.meta["kind"] == "test" and found.meta["agent"]["planned"] is False
    assert (writer.finished, writer.waited_for) == (1, 0)


def test_the_next_one_waits_for_the_one_under_way(tmp_path: Path) -> None:
    writer = Writer()
    agent = make(tmp_path, writer)
    steps(agent, 1, 3)
    threading.Timer(0.5, writer.may_write.set).start()
    steps(agent, 4, 4)
    assert (
        agent.status["checkpoint_step"] == 2
        and agent.checkpointer.background is not None
        and agent.checkpointer.background.step == 4
    )
    assert agent.checkpointer.schedule.held_s >= 0.05  # the wait counts as held up


def test_one_that_was_asked_for_waits_and_is_there(tmp_path: Path) -> None:
    writer = Writer()
    agent = make(tmp_path, writer, hold_s=0.0)
    steps(agent, 1, 2)
    threading.Timer(0.1, writer.may_write.set).start()
    (tmp_path / "run" / "checkpoint-request").write_text("1")
    steps(agent, 3, 3)
    assert agent.status["checkpoint_requests"] == 1 and agent.status["checkpoint_step"] == 3
    assert writer.waited_for == 1 and not agent.checkpointer.is_under_way
    found = latest_good(tmp_path / "saved").checkpoint
    assert found is not None and found.step == 3 and found.meta["agent"]["planned"] is True


def test_a_request_at_the_step_that_is_being_written_needs_no_second_one(tmp_path: Path) -> None:
    writer = Writer()
    agent = make(tmp_path, writer)
    steps(agent, 1, 2)
    threading.Timer(0.05, writer.may_write.set).start()
    agent._on_term(signal.SIGTERM, None)
    agent._end(2)
    assert agent.status["checkpoint_step"] == 2 and writer.waited_for == 0
    following = make(tmp_path, writer)
    assert following.checkpointer.schedule.failures == 0


def test_sigterm_does_not_wait_longer_than_the_grace(tmp_path: Path) -> None:
    writer = Writer()
    agent = make(tmp_path, writer, grace_s=0.2)
    steps(agent, 1, 2)
    agent._on_term(signal.SIGTERM, None)
    began = time.monotonic()
    assert not agent.after_step(3, loss=1.0)
    assert 0.15 < time.monotonic() - began < 5
    assert writer.waited_for == 0 and "last checkpoint: none" in str(agent.status["note"])
    writer.may_write.set()


def test_the_end_of_the_run_is_waited_for(tmp_path: Path) -> None:
    writer = Writer()
    agent = make(tmp_path, writer)
    steps(agent, 1, 3)
    writer.may_write.set()
    agent.finish()
    assert (
        agent.status["checkpoint_step"] == 3 and agent.status["state"] == "done" and not agent.checkpointer.is_under_way
    )


@pytest.mark.parametrize("fails", ["write", "finish"])
def test_one_that_fails_ends_nothing_and_the_next_is_tried(tmp_path: Path, fails: str) -> None:
    writer = Writer()
    writer.fails = fails
    writer.may_write.set()
    agent = make(tmp_path, writer)
    steps(agent, 1, 3)
    agent.checkpointer.settle()
    assert agent.status["checkpoint_step"] is None
    assert {"write": "no space left", "finish": "no last word"}[fails] in str(agent.status["note"])
    writer.fails = ""
    steps(agent, 4, 4)
    agent.checkpointer.settle()
    assert agent.status["checkpoint_step"] == 4


def test_without_memory_for_the_copy_training_waits_for_checkpoints(tmp_path: Path) -> None:
    writer = Writer()
    writer.fails = "copy"
    agent = make(tmp_path, writer)
    steps(agent, 1, 4)
    assert writer.waited_for == 2 and agent.status["checkpoint_step"] == 4
    assert "from now on training waits" in str(agent.status["note"])


def test_the_setting_makes_training_wait(tmp_path: Path) -> None:
    writer = Writer()
    agent = make(tmp_path, writer, background_saves=False)
    steps(agent, 1, 4)
    assert writer.waited_for == 2 and agent.status["checkpoint_step"] == 4
    environment = {"SYNERGY_BACKGROUND_SAVES": "0"}
    assert AgentSettings.from_environment(environment).background_saves is False
    assert AgentSettings.from_environment({}).background_saves is True


def test_a_failed_copy_leaves_nothing_under_way(tmp_path: Path) -> None:
    writer = Writer()
    writer.fails = "copy"
    background = BackgroundSave(Checkpoints(tmp_path, OneProcess()))
    with pytest.raises(CheckpointError, match="no memory left"):
        background.begin(1, writer.stage)
    assert background.step is None and background.wait() is None and background.state() == [0, 0]
