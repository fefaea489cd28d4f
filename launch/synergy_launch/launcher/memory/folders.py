"""A launcher's own folder on tmpfs for memory checkpoints: made, found again when its launcher is dead, and removed.

The launcher holds a lock in it as long as it lives. A shell beside it removes the folder even where the launcher is killed, and as soon as
Slurm ends the job: SIGTERM goes to all processes of a step, and SIGKILL may follow before the launcher has ended. Where both are killed at
once, the next launcher of the same user on that node removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

ROOT = Path("/dev/shm")
_LOCK = "lock"
#: a folder without a lock is one that is being made, for so many seconds
_NEW_S = 60.0
_END_S = 10.0
# `cat` ends with its input, which the launcher holds open, and by SIGTERM; other signals, such as a request for a checkpoint, are ignored
_REMOVE_AT_END = 'trap "" HUP USR1 USR2; trap : TERM INT; cat >/dev/null; rm -rf -- "$1"'


class LauncherFolder:
    """The folder of one launcher under `root`, with mode 0700 and a random name. Raises OSError where none can be made."""

    def __init__(self, label: str, root: Path = ROOT) -> None:
        self._root = root
        remove_leftovers(root)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{label}-", dir=root))
        info = self.path.lstat()
        self._identity = info.st_dev, info.st_ino
        self._lock: IO[bytes] = (self.path / f".{_LOCK}").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / f".{_LOCK}").rename(self.path / _LOCK)
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE_AT_END, "sh", str(self.path)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    @property
    def is_intact(self) -> bool:
        """Return whether the folder is still the one that was made: a site may clear tmpfs, and anybody may then take its name."""
        try:
            info = self.path.lstat()
        except OSError:
            return False
        return (info.st_dev, info.st_ino) == self._identity

    def close(self) -> None:
        """Remove the folder, and those of dead launchers."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            assert self._remover.stdin is not None
            self._remover.stdin.close()
            self._remover.wait(_END_S)
        remove_leftovers(self._root)


def remove_leftovers(root: Path) -> None:
    """Remove this user's folders under `root` whose launchers are dead."""
    with contextlib.suppress(OSError):
        for path in root.glob(f"{_prefix()}*"):
            if _is_leftover(path):
                shutil.rmtree(path, ignore_errors=True)


def _prefix() -> str:
    return f"synergy-memory-{os.getuid()}-"


def _is_leftover(path: Path) -> bool:
    """Return whether `path` is this user's own folder and no process holds its lock."""
    try:
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            return False
        if not (path / _LOCK).exists():
            return time.time() - info.st_mtime > _NEW_S
        with (path / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:  # locked, or gone meanwhile
        return False
