"""The launcher's folder for checkpoints in host memory: its copies on the file system, and who removes it when."""

from __future__ import annotations

import os
from pathlib import Path

from synergy_launch.agent.checkpoint import latest_good, prepare, seal, step_folder
from synergy_launch.launcher import memory_folder
from synergy_launch.launcher.memory_folder import MemoryFolder


def made(root: Path) -> MemoryFolder:
    folder = memory_folder.make(7, root / "checkpoints", root)
    assert folder is not None
    return folder


def put(directory: Path, step: int) -> None:
    directory.mkdir(exist_ok=True)
    folder = prepare(directory, step)
    (folder / "inner").mkdir()
    (folder / "inner" / "data").write_text(f"of {step}")
    seal(folder, step, {"kind": "test"})


def stored(root: Path) -> int | None:
    found = latest_good(root / "checkpoints").checkpoint
    return found.step if found else None


def looks(folder: MemoryFolder, status: dict[str, object] | None) -> None:
    """Once, and until what it began is over."""
    folder.look(status)
    if folder._thread is not None:
        folder._thread.join(10)


TRAINS: dict[str, object] = {"state": "training", "step": 9}


def test_what_is_whole_is_copied_and_removed_when_a_run_has_gone_on_from_it(tmp_path: Path) -> None:
    folder = made(tmp_path)
    prepare(folder.path, 9)  # not sealed yet
    looks(folder, TRAINS)
    assert not (tmp_path / "checkpoints").exists()
    put(folder.path, 9)
    for status in (None, {"state": "starting", "step": 0}, {"state": "waiting", "step": 9}):
        looks(folder, status)
        assert step_folder(folder.path, 9).exists()  # the next run has not loaded it
    looks(folder, TRAINS)
    copied = latest_good(tmp_path / "checkpoints").checkpoint
    assert copied is not None and copied.step == 9 and copied.meta == {"kind": "test"}
    looks(folder, TRAINS)
    assert not step_folder(folder.path, 9).exists()
    assert not [p for p in (tmp_path / "checkpoints").iterdir() if p.name.startswith(".")]


def test_a_newer_one_on_disk_is_left_as_it_is(tmp_path: Path) -> None:
    folder = made(tmp_path)
    put(tmp_path / "checkpoints", 12)
    put(folder.path, 9)
    looks(folder, TRAINS)
    assert stored(tmp_path) == 12 and not step_folder(tmp_path / "checkpoints", 9).exists()


def test_the_end_completes_the_copy_and_removes_the_folder(tmp_path: Path) -> None:
    folder = made(tmp_path)
    put(folder.path, 9)
    folder.close()
    assert stored(tmp_path) == 9 and not folder.path.exists()


def test_a_copy_that_fails_is_tried_again(tmp_path: Path) -> None:
    now = [0.0]
    held = made(tmp_path)
    folder = MemoryFolder(held.path, held._descriptor, tmp_path / "checkpoints", monotonic=lambda: now[0])
    (tmp_path / "checkpoints").write_text("no folder")
    put(folder.path, 9)
    looks(folder, TRAINS)
    looks(folder, TRAINS)
    assert step_folder(folder.path, 9).exists()  # the only one
    (tmp_path / "checkpoints").unlink()
    looks(folder, TRAINS)
    assert stored_or_none(tmp_path) is None  # not yet
    now[0] = 11.0
    looks(folder, TRAINS)
    assert stored(tmp_path) == 9


def test_a_run_that_does_not_come_to_train_is_not_waited_for(tmp_path: Path) -> None:
    now = [0.0]
    held = made(tmp_path)
    folder = MemoryFolder(held.path, held._descriptor, tmp_path / "checkpoints", monotonic=lambda: now[0])
    put(folder.path, 9)
    looks(folder, None)
    now[0] = 59.0
    looks(folder, None)
    assert stored_or_none(tmp_path) is None
    now[0] = 60.0
    looks(folder, None)
    assert stored(tmp_path) == 9 and step_folder(folder.path, 9).exists()


def stored_or_none(root: Path) -> int | None:
    return stored(root) if (root / "checkpoints").exists() else None


def test_what_a_launcher_has_left_behind_goes_and_what_one_holds_stays(tmp_path: Path) -> None:
    held = made(tmp_path)
    put(held.path, 9)
    left = made(tmp_path)
    put(left.path, 9)
    os.close(left._descriptor)  # as the end of its process does
    again = made(tmp_path)
    assert held.path.exists() and not left.path.exists() and again.path.exists()


def test_without_a_memory_file_system_there_is_none(tmp_path: Path) -> None:
    assert memory_folder.make(7, tmp_path, tmp_path / "nowhere") is None


def test_a_folder_that_somebody_removed_ends_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.path.rmdir()
    looks(folder, None)
    folder.close()
