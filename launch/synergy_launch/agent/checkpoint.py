"""Checkpoint folders that survive a kill at any moment.

Layout: `DIR/step_00000010/` holds whatever the training library writes, and, last of all, `complete`: a JSON file with
the step, free metadata and the size and digest of every other file. A folder without a `complete` that matches its
files does not count. Nothing here knows of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from synergy_core.errors import SynergyError, UsageError, one_line

from synergy_launch.agent.collectives import Collectives
from synergy_launch.agent.full_disk import with_free_space

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
MARKER = "complete"
_STEP = re.compile(r"step_(\d{8,})\Z")
_NUMBER = re.compile(r"(\d+)\Z")
_BLOCK = 1 << 20
# Files up to this size are digested whole; larger ones by 64 blocks of 1 MiB, so that sealing stays cheap.
_WHOLE = 64 * _BLOCK
_DIGESTS = 8  # at once


class CheckpointError(SynergyError):
    """The error of a checkpoint that could not be written; training may go on without it."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that verifies. `meta` is the metadata that was saved with it."""

    path: Path
    step: int
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class FoundCheckpoint:
    """The newest good checkpoint (None: start afresh) and, in sentences, the newer ones that were passed over."""

    checkpoint: Checkpoint | None
    note: str = ""
    bad: tuple[Path, ...] = ()


def step_folder(directory: Path, step: int) -> Path:
    return directory / f"step_{step:08d}"


def check_directory(directory: Path) -> None:
    """Make `directory` if its parent exists.

    Raises UsageError in one line where neither exists or it can't be written.
    """
    where = f"checkpoint folder {directory}"
    try:
        directory.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise UsageError(where, "neither it nor its parent folder exists", "create the parent folder first") from None
    except FileExistsError:
        raise UsageError(where, "is not a folder", "name a folder") from None
    except OSError as error:
        why = with_free_space(f"can't be made: {error.strerror}", directory)
        raise UsageError(where, why, "name a folder that you may write to") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(where, "can't be written", "name a folder that you may write to")


def prepare(directory: Path, step: int) -> Path:
    """Return an empty folder for a checkpoint of `step`; whatever had that name before is removed, its marker first."""
    folder = step_folder(directory, step)
    (folder / MARKER).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    return folder


def seal(folder: Path, step: int, meta: Mapping[str, Any]) -> None:
    """Mark `folder` as good: all its files and names are on disk before the marker appears."""
    paths = _files(folder)
    for path in paths:
        _sync(path)
    files = [
        {"path": str(path.relative_to(folder)), "size": path.stat().st_size, "digest": value}
        for path, value in zip(paths, _map_in_threads(digest, paths), strict=True)
    ]
    for inner in {path.parent for path in _files(folder)} | {folder, folder.parent}:
        _sync(inner)
    write_marker(folder, {"version": 1, "step": step, "meta": dict(meta), "files": files})


def replace_meta(checkpoint: Checkpoint, meta: Mapping[str, Any]) -> None:
    """Replace the metadata of a good checkpoint. Raises OSError."""
    content = json.loads((checkpoint.path / MARKER).read_text(encoding="utf-8"))
    write_marker(checkpoint.path, {**content, "meta": dict(meta)})


def write_marker(folder: Path, content: Mapping[str, Any]) -> None:
    """Replace the marker of the checkpoint in `folder`, on disk before it has its name. Raises OSError."""
    text = json.dumps(content, indent=1)
    draft = folder / (MARKER + ".tmp")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(folder / MARKER)
    _sync(folder)


def verify(folder: Path) -> tuple[Checkpoint | None, str]:
    """Return the checkpoint in `folder`, or None and the reason why it is not good."""
    marker = folder / MARKER
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        step, meta, files = int(content["step"]), content["meta"], content["files"]
        entries = [(str(entry["path"]), int(entry["size"]), str(entry["digest"])) for entry in files]
        if not isinstance(meta, dict):
            raise ValueError("meta")
    except FileNotFoundError:
        return None, "it was not finished"
    except (OSError, ValueError, KeyError, TypeError):
        return None, "its marker can't be read"
    number = _NUMBER.search(folder.name)
    if number is None or int(number[1]) != step:
        return None, f"its marker speaks of step {step}"
    faults = _map_in_threads(lambda entry: file_fault(folder / entry[0], *entry), entries)
    fault = next(filter(None, faults), "")
    return (None, fault) if fault else (Checkpoint(folder, step, meta), "")


def file_fault(path: Path, name: str, size: int, expected: str) -> str:
    """Return why the file at `path` is not the one that was saved as `name`, or ""."""
    try:
        if path.stat().st_size != size:
            return f"{one_line(name, 80)} has {path.stat().st_size} bytes instead of {size}"
        return "" if digest(path) == expected else f"{one_line(name, 80)} has other content than was saved"
    except FileNotFoundError:
        return f"{one_line(name, 80)} is missing"
    except OSError as error:
        return f"{one_line(name, 80)} can't be read: {error.strerror}"


def _map_in_threads(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return the results of `function`, computed at once: hashlib works without the interpreter's lock."""
    try:
        with ThreadPoolExecutor(_DIGESTS, thread_name_prefix="synergy-digest") as pool:
            return list(pool.map(function, items))
    except RuntimeError:  # no more threads may be started
        return [function(item) for item in items]


def latest_good(directory: Path) -> FoundCheckpoint:
    """Return the newest checkpoint under `directory` that verifies; the note names newer ones that don't."""
    return first_good(sorted(_folders(directory), key=_parse_step, reverse=True), verify, "checkpoint ")


def first_good(
    folders: Iterable[Path], check: Callable[[Path], tuple[Checkpoint | None, str]], prefix: str = ""
) -> FoundCheckpoint:
    """Return the first of `folders`, newest first, that is good by `check`; the note names those before it."""
    notes: list[str] = []
    bad: list[Path] = []
    for folder in folders:
        checkpoint, why = check(folder)
        if checkpoint is not None:
            if notes:
                notes.append(f"the last good one, of step {checkpoint.step}, is used")
            return FoundCheckpoint(checkpoint, "; ".join(notes), tuple(bad))
        notes.append(f"{prefix}{folder.name} is not usable: {why}")
        bad.append(folder)
    if notes:
        notes.append("no good one is left, training starts from step 0")
    return FoundCheckpoint(None, "; ".join(notes), tuple(bad))


def set_aside(bad: tuple[Path, ...]) -> None:
    """Rename unusable checkpoints (`bad_step_...`), so that later ones are the newest again.

    A half-written checkpoint has nothing to keep and is removed.
    """
    for folder in bad:
        if not (folder / MARKER).exists():
            shutil.rmtree(folder, ignore_errors=True)
            continue
        target = folder.with_name("bad_" + folder.name)
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def prune(directory: Path, keep: int = 2) -> None:
    """Remove all but the `keep` newest complete checkpoints, and older incomplete ones."""
    complete = sorted((f for f in _folders(directory) if (f / MARKER).exists()), key=_parse_step)
    if not complete:
        return
    newest_folders = set(complete[-keep:])
    for folder in _folders(directory):
        if folder not in newest_folders and _parse_step(folder) < _parse_step(complete[-1]):
            _remove(folder)


def _remove(folder: Path) -> None:
    # The marker goes first: a half-removed folder must not look good.
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def digest(path: Path) -> str:
    """Return the BLAKE2b digest of a file's content. Above 64 MiB it covers 64 evenly spread 1-MiB blocks, the first and last included."""
    total = hashlib.blake2b(digest_size=16)
    size = path.stat().st_size
    with path.open("rb") as stream:
        if size <= _WHOLE:
            while block := stream.read(_BLOCK):
                total.update(block)
        else:
            for i in range(64):
                stream.seek((size - _BLOCK) * i // 63)
                total.update(stream.read(_BLOCK))
    return total.hexdigest()


def error_cause(error: BaseException) -> str:
    """Return the cause of a library's error: the last line of its text, which is the cause in torch's nested errors."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__, 300)


def attempt(action: Callable[[], _Result]) -> tuple[_Result | None, str]:
    """Return the result of a training library's call and "", or None and why it failed. A failed save must not end training."""
    try:
        return action(), ""
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        return None, error_cause(error)


class Store(Protocol):
    """Where the checkpoints of a background save lie. `open` is collective; `close` is called on the ranks where `seals` is true."""

    ranks: Collectives

    @property
    def seals(self) -> bool: ...

    def open(self, step: int) -> Path: ...

    def close(self, folder: Path, step: int, meta: Mapping[str, Any]) -> None: ...


class Checkpoints:
    """The checkpoints of one run, seen by all its ranks together. Every method but `close` and `size_bytes` is collective."""

    def __init__(self, directory: Path, ranks: Collectives, keep: int = 2) -> None:
        self.directory = directory
        self.ranks = ranks
        self.keep = keep

    @property
    def seals(self) -> bool:
        """Return whether this rank calls `close`."""
        return self.ranks.rank == 0

    def find(self) -> FoundCheckpoint:
        """Make the folder if need be and return where to go on from; rank 0 looks, all get the same answer.

        Raises UsageError on every rank where the folder can't be used.
        """

        def look() -> FoundCheckpoint:
            check_directory(self.directory)
            newest = latest_good(self.directory)
            set_aside(newest.bad)
            return newest

        newest: FoundCheckpoint = self._by_rank_0(look)
        return newest

    def save(self, step: int, write: Callable[[Path], Mapping[str, Any]]) -> None:
        """Call `write(folder)` on every rank, then seal the checkpoint.

        `write` returns the metadata to keep (rank 0's counts). Raises CheckpointError on every rank if any of them failed; the checkpoint
        then does not count.
        """
        folder = self.open(step)
        meta, error = attempt(lambda: write(folder))
        if self.ranks.maximum([1 if error else 0])[0] or meta is None:
            raise CheckpointError(f"checkpoint of step {step}", error or "another rank could not write its part")
        self._by_rank_0(lambda: self.close(folder, step, meta))

    def open(self, step: int) -> Path:
        """Return an empty folder for a checkpoint of `step`, which does not count before it is closed. Raises CheckpointError."""
        folder: Path = self._by_rank_0(lambda: prepare(self.directory, step))
        return folder

    def close(self, folder: Path, step: int, meta: Mapping[str, Any]) -> None:
        """Seal the checkpoint and prune older ones, when all ranks have written; only one rank calls it. Raises OSError."""
        seal(folder, step, meta)
        prune(self.directory, self.keep)

    def go_back(
        self,
        rank_steps: Callable[[Sequence[int]], Sequence[int]],
        amend: Callable[[Checkpoint], Mapping[str, Any] | None],
    ) -> int | None:
        """Make one of the checkpoints the newest, with other metadata. Return its step; None: there is none to go back to.

        `rank_steps` returns the steps that would do, the best one first. `amend` returns the metadata, or None to pass a checkpoint over;
        only rank 0 calls it. Newer checkpoints are removed. Raises CheckpointError.
        """

        def act() -> int | None:
            folders = {_parse_step(folder): folder for folder in _folders(self.directory) if (folder / MARKER).exists()}
            for step in rank_steps(tuple(folders)):
                checkpoint, _ = verify(folders[step])
                meta = amend(checkpoint) if checkpoint is not None else None
                if checkpoint is not None and meta is not None:
                    replace_meta(checkpoint, meta)
                    for folder in _folders(self.directory):
                        if _parse_step(folder) > step:
                            _remove(folder)
                    return step
            return None

        step: int | None = self._by_rank_0(act)
        return step

    def size_bytes(self, step: int) -> int | None:
        """Return the bytes of the checkpoint of `step`, all ranks' parts together.

        Returns None on ranks other than 0, and where it can't be read. Not collective.
        """
        if self.ranks.rank != 0:
            return None
        try:
            return sum(path.stat().st_size for path in _files(step_folder(self.directory, step)))
        except OSError:
            return None

    def _by_rank_0(self, action: Callable[[], Any]) -> Any:
        """Return rank 0's result of `action` on every rank, or raise its error on every rank."""
        outcome: tuple[Any, BaseException | None] = (None, None)
        if self.ranks.rank == 0:
            try:
                outcome = (action(), None)
            except UsageError as error:
                outcome = (None, UsageError(error.where, error.what, error.right))
            except OSError as error:
                what = error.strerror or type(error).__name__
                outcome = (None, CheckpointError(f"checkpoint folder {self.directory}", what))
        parts = None
        if outcome[1] is not None:
            problem = outcome[1]
            assert isinstance(problem, SynergyError)
            parts = (isinstance(problem, UsageError), problem.where, problem.what, problem.right)
        # Exceptions with several arguments don't survive pickling, so their parts are sent.
        result, failed = self.ranks.broadcast((outcome[0], parts))
        if failed is not None:
            usage, where, what, right = failed
            raise (UsageError if usage else CheckpointError)(where, what, right)
        return result


def _folders(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if _STEP.match(path.name) and path.is_dir()]


def _parse_step(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (MARKER, MARKER + ".tmp"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
