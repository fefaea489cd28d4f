from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_launch.agent.checkpoint import (
    MARKER,
    CheckpointError,
    Checkpoints,
    check_directory,
    digest,
    latest_good,
    prepare,
    prune,
    seal,
    step_folder,
    verify,
)
from synergy_launch.agent.collectives import OneProcess


def make(directory: Path, step: int, content: str = "weights", **meta: Any) -> Path:
    folder = prepare(directory, step)
    (folder / "inner").mkdir()
    (folder / "inner" / "shard").write_text(content)
    (folder / "index").write_text(str(step))
    seal(folder, step, meta)
    return folder


def test_a_sealed_checkpoint_is_found_with_its_metadata(tmp_path: Path) -> None:
    assert latest_good(tmp_path).checkpoint is None
    make(tmp_path, 5)
    make(tmp_path, 10, samples=80)
    found = latest_good(tmp_path)
    assert found.checkpoint is not None and found.note == ""
    assert (found.checkpoint.step, found.checkpoint.meta) == (10, {"samples": 80})
    assert found.checkpoint.path == tmp_path / "step_00000010"


def unfinished(folder: Path) -> None:
    (folder / MARKER).unlink()


def flipped(folder: Path) -> None:
    (folder / "inner" / "shard").write_text("wEights")


def shortened(folder: Path) -> None:
    (folder / "inner" / "shard").write_text("wei")


def lost(folder: Path) -> None:
    (folder / "index").unlink()


def garbled(folder: Path) -> None:
    (folder / MARKER).write_text('{"step": 10, "fi')


def of_another_step(folder: Path) -> None:
    (folder / MARKER).write_text((folder.parent / "step_00000005" / MARKER).read_text())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (unfinished, "was not finished"),
        (flipped, "inner/shard has other content than was saved"),
        (shortened, "inner/shard has 3 bytes instead of 7"),
        (lost, "index is missing"),
        (garbled, "marker can't be read"),
        (of_another_step, "speaks of step 5"),
    ],
)
def test_a_bad_one_is_passed_over_for_the_last_good_one(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    make(tmp_path, 5)
    damage(make(tmp_path, 10))
    found = latest_good(tmp_path)
    assert found.checkpoint is not None and found.checkpoint.step == 5
    assert "step_00000010" in found.note and said in found.note and "of step 5, is used" in found.note


def test_none_good_starts_afresh_and_says_so(tmp_path: Path) -> None:
    flipped(make(tmp_path, 3))
    found = latest_good(tmp_path)
    assert found.checkpoint is None and "training starts from step 0" in found.note


def test_what_was_bad_is_out_of_the_way_of_new_ones(tmp_path: Path) -> None:
    make(tmp_path, 5)
    flipped(make(tmp_path, 10))
    unfinished(make(tmp_path, 12))
    Checkpoints(tmp_path, OneProcess()).find()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad_step_00000010", "step_00000005"]
    make(tmp_path, 7)
    found = latest_good(tmp_path)
    assert found.checkpoint is not None and found.checkpoint.step == 7 and found.note == ""


def test_prune_keeps_the_two_newest_complete(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        make(tmp_path, step)
    unfinished(tmp_path / "step_00000001")
    (tmp_path / "mine").mkdir()
    (tmp_path / "step_00000009").mkdir()  # being written just now
    prune(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "step_00000003", "step_00000004", "step_00000009"]


def test_preparing_again_empties(tmp_path: Path) -> None:
    folder = make(tmp_path, 5)
    assert prepare(tmp_path, 5) == folder and list(folder.iterdir()) == []


def test_large_files_are_sampled_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergy_launch.agent.checkpoint._BLOCK", 1 << 10)
    monkeypatch.setattr("synergy_launch.agent.checkpoint._WHOLE", 1 << 16)
    path = tmp_path / "large"
    size = 100 << 10
    path.write_bytes(bytes(size))
    before = digest(path)
    for offset in (0, size - 1):
        with path.open("r+b") as stream:
            stream.seek(offset)
            stream.write(b"x")
        assert digest(path) != before
        before = digest(path)


def test_directory_is_made_if_its_parent_is_there(tmp_path: Path) -> None:
    check_directory(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    with pytest.raises(UsageError, match="neither it nor its parent"):
        check_directory(tmp_path / "no" / "where")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        check_directory(tmp_path / "file")


def test_one_collective_save_and_find(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "c", OneProcess())
    assert store.find().checkpoint is None

    def write(folder: Path) -> Mapping[str, Any]:
        (folder / "w").write_text("1")
        return {"samples": 3}

    for step in (1, 2, 3):
        store.save(step, write)
    found = store.find()
    assert found.checkpoint is not None and (found.checkpoint.step, found.checkpoint.meta["samples"]) == (3, 3)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["step_00000002", "step_00000003"]


def test_failed_write_leaves_the_previous_one(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, OneProcess())
    store.save(1, lambda folder: {})

    def broken(folder: Path) -> Mapping[str, Any]:
        (folder / "half").write_text("1")
        raise OSError("disk\nis full")

    with pytest.raises(CheckpointError, match="is full"):
        store.save(2, broken)
    found = latest_good(tmp_path)
    assert found.checkpoint is not None and found.checkpoint.step == 1


def test_the_folder_gone_is_an_error_not_an_end(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "gone", OneProcess())
    with pytest.raises(CheckpointError, match="No such file"):
        store.save(2, lambda folder: {})


class InStep:
    """Two ranks as threads that meet at each collective."""

    def __init__(self, rank: int, meeting: threading.Barrier, shared: dict[int, Any]) -> None:
        self.rank, self.world, self._meeting, self._shared = rank, 2, meeting, shared

    def _exchange(self, value: Any) -> list[Any]:
        self._shared[self.rank] = value
        self._meeting.wait(60)
        values = [self._shared[0], self._shared[1]]
        self._meeting.wait(60)
        return values

    def maximum(self, values: Any) -> list[int]:
        return [max(pair) for pair in zip(*self._exchange(list(values)), strict=True)]

    def total(self, values: Any) -> list[float]:
        return [sum(pair) for pair in zip(*self._exchange(list(values)), strict=True)]

    def broadcast(self, value: Any) -> Any:
        return self._exchange(value)[0]

    def gather(self, value: Any) -> list[Any]:
        return self._exchange(value)

    def barrier(self) -> None:
        self._meeting.wait(60)


@pytest.mark.parametrize("failing", [0, 1])
def test_one_rank_that_fails_fails_the_save_on_both(tmp_path: Path, failing: int) -> None:
    meeting, shared = threading.Barrier(2), dict[int, Any]()
    errors: dict[int, Exception] = {}

    def rank(number: int) -> None:
        store = Checkpoints(tmp_path, InStep(number, meeting, shared))

        def write(folder: Path) -> Mapping[str, Any]:
            if number == failing:
                raise ValueError("no")
            (folder / str(number)).write_text("x")
            return {}

        try:
            store.save(1, write)
        except Exception as error:
            errors[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert set(errors) == {0, 1} and all(isinstance(error, CheckpointError) for error in errors.values())
    assert verify(step_folder(tmp_path, 1))[0] is None


@pytest.mark.slow
def test_kill_at_any_moment_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    """kill -9 while saves follow one another, at twelve different moments."""
    last, began = 1, time.monotonic()
    Checkpoints(tmp_path, OneProcess()).save(last, lambda folder: {})
    save_s = max(0.007, time.monotonic() - began)
    for attempt in range(12):
        child = os.fork()
        if child == 0:
            store = Checkpoints(tmp_path, OneProcess())
            for step in range(last + 1, last + 10_000):
                store.save(step, lambda folder: {"n": (folder / "w").write_bytes(os.urandom(20_000))})
            os._exit(0)
        time.sleep(0.01 + save_s * attempt)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = latest_good(tmp_path)
        assert found.checkpoint is not None and found.checkpoint.step >= last
        assert len(found.bad) <= 1, found.note
        last = found.checkpoint.step
    assert last > 1
