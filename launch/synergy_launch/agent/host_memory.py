"""Memory of this host by its control groups: what this process may still allocate, and whose processes the kernel has killed for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
#: limit, use and cache in memory.stat, by the version of control groups
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
_UNLIMITED = 1 << 60  # cgroup v1 gives about 2^63 where there is no limit


def read_free_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes that can be allocated now without a kill; None where the host gives no figure.

    `root`: the root of the file system that is read.
    """
    free = [*_machine(root), *_groups(root)]
    return max(0, min(free)) if free else None


def read_oom_kills(root: Path = _ROOT) -> int | None:
    """Return how many processes of this control group the kernel has killed for want of memory, or None where nothing counts them.

    The groups above count those of other steps and jobs too, so they are read only where the group's own files are not to be seen, as
    in a container. The counts are those of memory.events (v2, with the groups below) and of memory.oom_control (v1).
    """
    for base, own, version in _memory_groups(root):
        for group in (own, *own.parents):
            file = base / str(group).lstrip("/") / ("memory.events" if version == 2 else "memory.oom_control")
            if (kills := _stat(file, "oom_kill")) is not None:
                return kills
    return None


def _machine(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _groups(root: Path) -> Iterator[int]:
    """Yield the bytes that each control group of this process leaves; its inactive page cache counts as free."""
    for base, own, version in _memory_groups(root):
        limit, usage, cache = _FILES[version]
        for group in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):
                folder = base / str(group).lstrip("/")
                most = int((folder / limit).read_text())
                if most < _UNLIMITED:
                    yield most - int((folder / usage).read_text()) + (_stat(folder / "memory.stat", cache) or 0)


def _memory_groups(root: Path) -> Iterator[tuple[Path, PurePosixPath, int]]:
    """Yield the mount point, this process's group in it, and the version, of each hierarchy that may limit memory."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = [*line.split(":", 2), "-", ""][:3]
            if not controllers:
                yield root / "sys/fs/cgroup", PurePosixPath(path), 2
            elif "memory" in controllers.split(","):
                yield root / "sys/fs/cgroup/memory", PurePosixPath(path), 1


def _stat(path: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.split()[0] == name:
                return int(line.split()[1])
    return None
