"""The files of a memory checkpoint: each node's part on that node's tmpfs, and a whole checkpoint put together from all parts.

A part is the folder that the processes of one node write their share of a checkpoint to. `part` is written last: a JSON file with the
size and digest of every other file, and, on the node of rank 0, the checkpoint's metadata. A folder without it does not count. All parts
together are a checkpoint like one on disk (agent/checkpoint.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synergy_core.errors import UsageError

from synergy_launch.agent.checkpoint import digest, step_folder, write_marker
from synergy_launch.agent.host_memory import read_free_bytes

#: the part of the host's free memory that memory checkpoints may take; the rest is training's
MEMORY_SHARE = 0.25
#: memory checkpoints that are held twice on each node are kept until so many newer ones are
KEPT = 2
PART = "part"
OWN, RESUME, ACKNOWLEDGED, DISCARDED = "own", "resume", "acknowledged", "discarded"
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}\Z")
_WHERE = "part of a memory checkpoint"


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """One file of a part."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """One node's part of the memory checkpoint of `step`. `meta`: the checkpoint's metadata, on the node of rank 0 only."""

    step: int
    files: tuple[PartFile, ...]
    meta: Mapping[str, Any] | None = None

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files together."""
        return sum(file.size_bytes for file in self.files)

    def text(self) -> str:
        """Return the content of the file `part`."""
        files = [[file.name, file.size_bytes, file.digest] for file in self.files]
        return json.dumps({"step": self.step, "files": files, "meta": None if self.meta is None else dict(self.meta)})


def parse_part(text: str) -> Part:
    """Return the part that `text` describes. Raises UsageError if it is malformed, or names a file outside the part's folder."""
    try:
        content = json.loads(text)
        files = tuple(PartFile(name=str(n), size_bytes=int(s), digest=str(d)) for n, s, d in content["files"])
        part = Part(step=int(content["step"]), files=files, meta=content["meta"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(_WHERE, "its list of files can't be read") from None
    if not all(is_file_name(file.name) and file.size_bytes >= 0 for file in files):
        raise UsageError(_WHERE, "it names a file that no part has")
    if part.step < 0 or not (part.meta is None or isinstance(part.meta, dict)):
        raise UsageError(_WHERE, "its list of files can't be read")
    return part


def is_file_name(name: str) -> bool:
    """Return whether `name` is the plain name of a file in a part's folder."""
    return _NAME.match(name) is not None and name not in (".", "..", PART)


def seal_part(folder: Path, step: int, meta: Mapping[str, Any] | None) -> None:
    """Mark the part in `folder` as whole. Raises OSError."""
    files = tuple(
        PartFile(name=path.name, size_bytes=path.stat().st_size, digest=digest(path))
        for path in sorted(folder.iterdir())
        if path.name != PART
    )
    write_part(folder, Part(step=step, files=files, meta=meta))


def write_part(folder: Path, part: Part) -> None:
    """Write the file that marks the part in `folder` as whole. Raises OSError."""
    draft = folder / f".{PART}"
    draft.write_text(part.text(), encoding="utf-8")
    draft.replace(folder / PART)


def read_part(folder: Path) -> Part | None:
    """Return the part in `folder`, or None where there is no whole one. The digests are not computed."""
    try:
        part = parse_part((folder / PART).read_text(encoding="utf-8"))
        whole = all((folder / file.name).stat().st_size == file.size_bytes for file in part.files)
    except (OSError, ValueError, UsageError):
        return None
    return part if whole and step_folder(folder.parent, part.step) == folder else None


def seal_whole(folder: Path, parts: Iterable[Part]) -> None:
    """Mark `folder`, which has the files of all `parts`, as a whole checkpoint. Raises OSError, or UsageError where parts do not match."""
    parts = tuple(parts)
    metas = [part.meta for part in parts if part.meta is not None]
    if len(metas) != 1 or len({part.step for part in parts}) != 1:
        raise UsageError(_WHERE, "the parts are not those of one checkpoint")
    files = [
        {"path": file.name, "size": file.size_bytes, "digest": file.digest} for part in parts for file in part.files
    ]
    write_marker(folder, {"version": 1, "step": parts[0].step, "meta": dict(metas[0]), "files": files})


def needed_bytes(checkpoint_bytes: int, nodes: int) -> int:
    """Return the most bytes that memory checkpoints take on one node.

    A node holds its own and its neighbour's part of KEPT checkpoints; after a failure also a whole checkpoint, from which its processes
    read. While the next checkpoint is copied a node holds two parts more, which are no more than a whole one.
    """
    return checkpoint_bytes + 2 * KEPT * checkpoint_bytes // nodes


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files under `folder`; those that another process removes meanwhile count or not."""
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(inner) / name).lstat().st_size
    return total


def room_obstacle(folder: Path, needed: int) -> str:
    """Return why `needed` bytes are too many for memory checkpoints under `folder`, or "". What lies there already counts as free."""
    held, disk, free = folder_bytes(folder), os.statvfs(folder), read_free_bytes()
    room = disk.f_bavail * disk.f_frsize if free is None else min(free, disk.f_bavail * disk.f_frsize)
    if needed <= MEMORY_SHARE * (room + held):
        return ""
    most = MEMORY_SHARE * (room + held)
    return f"they would take {needed / 2**30:.2f} GiB of {folder.parent}, where they may take {most / 2**30:.2f} GiB"
