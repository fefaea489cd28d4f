"""Memory checkpoints, as one rank's agent takes them and goes on from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan
from synergy_launch.agent import memory_saves
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.background_save import StagedPart
from synergy_launch.agent.checkpoint import Checkpoints
from synergy_launch.agent.checkpoint_interval import SHORTEST_S, choose_memory_interval
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.lost_loss import LostLoss
from synergy_launch.agent.memory_folder import (
    ACKNOWLEDGED,
    DISCARDED,
    MEMORY_SHARE,
    OWN,
    RESUME,
    folder_bytes,
    needed_bytes,
    read_part,
    room_obstacle,
    seal_whole,
)
from synergy_launch.agent.settings import AgentSettings

from tests.unit.launch.agent.agent_rig import Clock


class TwoNodes(OneProcess):
    """One of two processes, each on a node of its own; the other one has nothing to say."""

    world = 2


class OtherLacksIt(TwoNodes):
    """The other node could not fetch the checkpoint."""

    def gather(self, value: Any) -> list[Any]:
        return [value, 0]


class MemoryRig:
    """An agent with a folder for memory checkpoints; it saves to disk at each twentieth step, and its steps take a second."""

    def __init__(self, folder: Path, *, memory: bool = True, ranks: OneProcess | None = None) -> None:
        self.memory, self.run_dir = folder / "memory", folder / "run"
        for path in (self.run_dir, self.memory / OWN, self.memory / RESUME):
            path.mkdir(parents=True, exist_ok=True)
        self.clock, self.fails = Clock(), False
        settings = AgentSettings(
            run_dir=self.run_dir, checkpoint_dir=folder / "saved", memory_dir=self.memory if memory else None
        )
        self.agent = Agent(settings, Plan(), ranks or TwoNodes(), clock=self.clock, monotonic=self.clock)
        self.checkpoint = self.agent.find_checkpoint(None).checkpoint
        self.step = self.checkpoint.step if self.checkpoint else 0
        self.agent.start(self.step, save=self.save, stage=self.stage, checkpoint_interval=20)

    def save(self, folder: Path) -> Mapping[str, Any]:
        (folder / "data").write_text("on disk")
        return {}

    def stage(self, folder: Path) -> StagedPart:
        self.clock.now += 0.05

        def write() -> None:
            if self.fails and self.memory in folder.parents:
                raise OSError(28, "No space left on device")
            (folder / "data").write_text(f"of step {self.step}")

        return StagedPart({"kind": "test"}, write)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.now += 1.0
            self.step += 1
            assert self.agent.after_step(self.step, loss=1.0)
            self.agent.checkpointer.settle()

    def acknowledge(self, step: int) -> None:
        (self.memory / ACKNOWLEDGED).write_text(f"{step}\n")

    @property
    def own(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step_")) for path in (self.memory / OWN).iterdir())

    def status(self) -> dict[str, Any]:
        self.agent.status.write()
        content: dict[str, Any] = json.loads((self.run_dir / "status.json").read_text())
        return content

    def hand_over(self, step: int) -> Path:
        """Put the memory checkpoint of `step` where the launcher does after a failure."""
        own, whole = (self.memory / name / f"step_{step:08d}" for name in (OWN, RESUME))
        part = read_part(own)
        assert part is not None
        whole.mkdir(parents=True)
        for file in part.files:
            os.link(own / file.name, whole / file.name)
        seal_whole(whole, [part])
        return whole


def test_one_is_taken_between_two_on_disk_and_is_not_reported_as_safe(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path)
    rig.train(19)
    assert rig.own == [], "none before the first one on disk: no failure would be answered in place"
    rig.train(20)
    assert rig.own == [35] and rig.status()["checkpoint_step"] == 20


def test_the_next_one_waits_until_the_last_one_is_held_twice(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path)
    rig.agent.checkpointer.schedule.steps = 0  # none on disk but the one that is asked for
    assert rig.agent.checkpointer.checkpoint(0)
    rig.train(45)
    assert rig.own == [15]
    rig.acknowledge(15)
    rig.train(100)
    assert len(rig.own) == 2 and rig.own[1] > 15 + 2 * 30, "as it was held twice after 30 s"


def test_a_run_on_one_node_takes_none(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path, ranks=OneProcess())
    rig.train(39)
    assert rig.own == [] and rig.status()["checkpoint_step"] == 20


def test_its_interval_bounds_what_it_costs() -> None:
    assert choose_memory_interval(held_s=0.0, copied_s=0.5) == SHORTEST_S
    assert choose_memory_interval(held_s=0.5, copied_s=2.0) == 50.0, "one percent"
    assert choose_memory_interval(held_s=0.0, copied_s=40.0) == 80.0


def test_a_run_goes_on_from_a_newer_one_in_memory(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path)
    rig.train(39)
    whole = rig.hand_over(35)
    again = MemoryRig(tmp_path)
    assert again.checkpoint is not None
    assert (again.checkpoint.step, again.checkpoint.path) == (35, whole)
    assert again.checkpoint.meta["kind"] == "test" and again.checkpoint.meta["agent"]["planned"] is False
    assert again.status()["checkpoint_step"] == 20, "only what is on disk is safe"
    again.train(1)
    assert not whole.exists(), "all ranks have read it"
    again.train(4)
    assert again.status()["checkpoint_step"] == 40


def test_an_older_one_is_not_used(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path)
    rig.train(39)
    rig.hand_over(35)
    rig.train(1)
    again = MemoryRig(tmp_path)
    assert again.checkpoint is not None and again.checkpoint.path.parent == tmp_path / "saved"
    assert again.checkpoint.step == 40 == again.status()["checkpoint_step"]


def test_a_truncated_one_is_not_used(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path)
    rig.train(39)
    with (rig.hand_over(35) / "data").open("r+b") as stream:
        stream.truncate(3)
    again = MemoryRig(tmp_path)
    assert again.checkpoint is not None and again.checkpoint.step == 20


def test_one_that_another_node_lacks_is_not_used(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path)
    rig.train(39)
    rig.hand_over(35)
    again = MemoryRig(tmp_path, ranks=OtherLacksIt())
    assert again.checkpoint is not None and again.checkpoint.step == 20


def test_a_node_without_a_folder_means_none_on_all(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path)
    rig.train(39)
    rig.hand_over(35)
    again = MemoryRig(tmp_path, memory=False)
    assert again.checkpoint is not None and again.checkpoint.step == 20 and again.agent.checkpointer.memory is None


def test_a_full_memory_ends_them_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rig = MemoryRig(tmp_path)
    rig.fails = True
    rig.train(60)
    assert rig.own == [] and rig.status()["checkpoint_step"] == 60
    said = [line for line in capsys.readouterr().out.splitlines() if "memory checkpoint" in line]
    why = "No space left on device: no more memory checkpoints, those on disk go on"
    assert len(said) == 1 and said[0].startswith("synergy: memory checkpoint of step 35: ") and said[0].endswith(why)


def test_none_is_taken_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def obstacle(folder: Path, needed: int) -> str:
        asked.append(needed)
        return "they would take 9.00 GiB of /dev/shm, where they may take 1.00 GiB"

    monkeypatch.setattr(memory_saves, "room_obstacle", obstacle)
    rig = MemoryRig(tmp_path)
    rig.train(60)
    size = Checkpoints(tmp_path / "saved", OneProcess()).size_bytes(60)
    assert size and asked == [needed_bytes(size, 2)]
    assert capsys.readouterr().out.count("no more memory checkpoints") == 1


def test_room_is_a_share_of_free_memory_with_what_lies_there(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    most = int(MEMORY_SHARE * disk.f_bavail * disk.f_frsize)
    assert room_obstacle(tmp_path, 0) == ""
    assert "they would take" in room_obstacle(tmp_path, 2 * most)
    assert needed_bytes(1000, 4) == 2000


def test_a_file_that_goes_away_meanwhile_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launchers remove older parts at any time."""
    (tmp_path / "part").write_text("abc")
    monkeypatch.setattr(os, "walk", lambda folder: [(str(folder), [], ["part", "gone"])])
    assert folder_bytes(tmp_path) == 3 and room_obstacle(tmp_path, 1) == ""


def test_a_run_that_goes_back_on_purpose_says_so(tmp_path: Path) -> None:
    rig = MemoryRig(tmp_path)
    rig.train(39)
    rig.agent._lost = LostLoss(8, None)
    with pytest.raises(SystemExit):
        rig.agent._go_back()
    assert (rig.memory / DISCARDED).exists()
