"""Memory of this host that this process may still allocate, by the machine and by its control groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_UNLIMITED = 1 << 60  # cgroup v1 gives about 2^63 where there is no limit


def read_free_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes that can be allocated now without a kill; None where the host gives no figure.

    `root`: the root of the file system that is read.
    """
    free = [*_machine(root), *_groups(root)]
    return max(0, min(free)) if free else None


def _machine(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _groups(root: Path) -> Iterator[int]:
    """Yield the bytes that each control group of this process leaves; its inactive page cache counts as free."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = [*line.split(":", 2), "-", ""][:3]
            if not controllers:
                base, limit, used, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
            elif "memory" in controllers.split(","):
                base, limit, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
                cache = "total_inactive_file"
            else:
                continue
            own = PurePosixPath(path)
            for group in (own, *own.parents):
                with contextlib.suppress(OSError, ValueError):
                    folder = base / str(group).lstrip("/")
                    most = int((folder / limit).read_text())
                    if most < _UNLIMITED:
                        yield most - int((folder / used).read_text()) + _stat(folder / "memory.stat", cache)


def _stat(path: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.split()[0] == name:
                return int(line.split()[1])
    return 0
