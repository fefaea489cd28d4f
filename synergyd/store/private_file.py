"""The rights on the files of a SQLite database, which belong to the daemon's user alone.

They hold what Slurm's PrivateData may hide, and whoever can open one can lock it: a reader's transaction keeps all others from
writing.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

MODE = 0o600


def create(path: Path) -> None:
    """Make an empty file at `path` that its owner alone can open, unless there is one. Raise OSError.

    SQLite gives its journals the mode of the file that they belong to.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path.resolve(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE))


def tighten(path: Path) -> list[Path]:
    """Take the rights of others away from the database at `path`, its journals and the copies beside it; return those that changed.

    Files that this process may not change are passed over.
    """
    tightened_paths = []
    for file in family(path):
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                about = os.fstat(descriptor)
                if stat.S_ISREG(about.st_mode) and about.st_mode & 0o077 and about.st_nlink == 1:
                    Path(f"/proc/self/fd/{descriptor}").chmod(MODE)  # what was looked at, whoever renames meanwhile
                    tightened_paths.append(file)
            finally:
                os.close(descriptor)
    return tightened_paths


def open_to_others(path: Path) -> list[Path]:
    """Return the files of the database at `path` that others than their owner can read or write, as far as this user sees."""
    paths = []
    for file in family(path):
        with contextlib.suppress(OSError):
            about = file.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_mode & 0o066:
                paths.append(file)
    return paths


def family(path: Path) -> Iterator[Path]:
    """Yield the database, its journals, and copies that were made beside it; only `path` if the folder can't be listed."""
    yield path
    target = path.resolve()  # SQLite puts its journals beside the file itself
    if target != path:
        yield target
    beside = re.compile(rf"\.?{re.escape(target.name)}[.-].+")
    with contextlib.suppress(OSError):
        names = sorted(entry.name for entry in os.scandir(target.parent))
        yield from (target.parent / name for name in names if beside.fullmatch(name))


def sqlite_file(database_url: str) -> Path | None:
    """Return the file of a SQLite URL; None for another database. Needs no database library."""
    scheme, _, rest = database_url.strip().partition("://")
    path = rest.removeprefix("/")
    return Path(path) if scheme in ("sqlite", "sqlite+pysqlite") and path not in ("", ":memory:") else None
