"""Checkpoints in host memory: when they are made, and what a next run goes on from."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from synergy_launch.agent import memory_checkpoints, run_folder
from synergy_launch.agent.checkpoint import MARKER, step_folder

from tests.unit.launch.agent.agent_rig import Rig


def rig_of(folder: Path) -> Rig:
    memory = folder / "memory"
    memory.mkdir(mode=0o700, exist_ok=True)
    return Rig(folder, memory_dir=memory, hold_s=0.0)


def started(folder: Path) -> Rig:
    """With a checkpoint of step 1 on disk, by which the size is known."""
    rig = rig_of(folder)
    rig.start()
    rig.step(1)
    assert rig.agent.checkpointer.checkpoint(1)
    return rig


def ask(rig: Rig, number: int, *, in_memory: bool = True) -> None:
    run_folder.request_checkpoint(rig.run_dir, number, in_memory=in_memory)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("step_"))


def test_a_request_for_memory_is_served_there_and_a_later_one_on_disk_is_not(tmp_path: Path) -> None:
    rig = started(tmp_path)
    ask(rig, 1)
    rig.step(2)
    assert names(tmp_path / "memory") == ["step_00000002"] and names(tmp_path / "checkpoints") == ["step_00000001"]
    assert rig.status["checkpoint_requests"] == 1 and rig.status["checkpoint_step"] == 2
    ask(rig, 2)
    rig.step(3)
    assert names(tmp_path / "memory") == ["step_00000003"]
    # the job may leave the node now: the same step once more, on the file system
    ask(rig, 3, in_memory=False)
    rig.agent._serve_request(3, 3, False)
    assert names(tmp_path / "checkpoints") == ["step_00000001", "step_00000003"]


def test_its_size_must_be_known_and_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of(tmp_path)
    rig.start()
    ask(rig, 1)
    rig.step(1)  # no checkpoint before it tells a size
    assert names(tmp_path / "memory") == [] and names(tmp_path / "checkpoints") == ["step_00000001"]
    monkeypatch.setattr(
        memory_checkpoints, "free_bytes", lambda: 2
    )  # of which half may be taken; it has one byte and a tenth
    ask(rig, 2)
    rig.step(2)
    assert names(tmp_path / "memory") == [] and names(tmp_path / "checkpoints")[-1] == "step_00000002"
    monkeypatch.setattr(memory_checkpoints, "free_bytes", lambda: 3)
    ask(rig, 3)
    rig.step(3)
    assert names(tmp_path / "memory") == ["step_00000003"]


def test_a_save_that_fails_in_memory_is_made_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = started(tmp_path)
    store = rig.agent.checkpointer.memory
    assert store is not None

    def full(folder: Path, step: int, meta: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "close", full)
    ask(rig, 1)
    rig.step(2)
    assert names(tmp_path / "checkpoints") == ["step_00000001", "step_00000002"]
    assert rig.status["checkpoint_requests"] == 1


def test_the_next_run_takes_the_newest_that_is_whole(tmp_path: Path) -> None:
    rig = started(tmp_path)
    ask(rig, 1)
    rig.step(2)
    found = rig_of(tmp_path).agent.find_checkpoint(None).checkpoint
    assert found is not None and found.path == step_folder(tmp_path / "memory", 2)
    # newer on disk
    rig.step(3)
    rig.agent.checkpointer.checkpoint(3)
    found = rig_of(tmp_path).agent.find_checkpoint(None).checkpoint
    assert found is not None and found.path == step_folder(tmp_path / "checkpoints", 3)
    # torn
    ask(rig, 2)
    rig.step(4)
    (step_folder(tmp_path / "memory", 4) / "data").write_text("y")
    found = rig_of(tmp_path).agent.find_checkpoint(None).checkpoint
    assert found is not None and found.path == step_folder(tmp_path / "checkpoints", 3)
    assert names(tmp_path / "memory") == []


@pytest.mark.parametrize("mode", [0o755, None])
def test_a_folder_that_others_could_have_made_is_not_used(tmp_path: Path, mode: int | None) -> None:
    rig = started(tmp_path)
    ask(rig, 1)
    rig.step(2)
    memory = tmp_path / "memory"
    if mode is None:
        memory.rename(tmp_path / "away")
        memory.symlink_to(tmp_path / "away")
    else:
        memory.chmod(mode)
    found = Rig(tmp_path, memory_dir=memory).agent.find_checkpoint(None).checkpoint
    assert found is not None and found.path == step_folder(tmp_path / "checkpoints", 1)


def test_sigterm_saves_on_disk_unless_the_launcher_starts_another_run_here(tmp_path: Path) -> None:
    rig = started(tmp_path)
    ask(rig, 1)
    rig.step(2)
    rig.agent._on_term(signal.SIGTERM, None)
    run_folder.note_stay(rig.run_dir)
    rig.agent._end(2)
    assert names(tmp_path / "checkpoints") == ["step_00000001"]
    (rig.run_dir / run_folder.STAYS).unlink()
    rig.agent._end(2)
    assert names(tmp_path / "checkpoints") == ["step_00000001", "step_00000002"]
    assert (step_folder(tmp_path / "checkpoints", 2) / MARKER).exists()
