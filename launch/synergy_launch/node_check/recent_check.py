"""When this user's jobs last checked this node, as a file of the node says: it is not checked again within the hour.

The file lies in the temporary folder, which other users may write to: only an own ordinary file counts, and only its time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from pathlib import Path

#: seconds for which a node counts as healthy after a check, unless a run fails there
HEALTHY_S = 3600.0


class RecentCheck:
    """The file for `node`, as Slurm names it: several of Slurm's nodes may lie on one machine."""

    def __init__(self, node: str, folder: Path | None = None) -> None:
        self._path = (folder or Path(tempfile.gettempdir())) / f"synergy-{os.getuid()}-checked-{node.replace('/', '_')}"

    def is_recent(self, now_s: float) -> bool:
        """Return whether the node was checked within HEALTHY_S before `now_s`, and no run has failed there since."""
        try:
            status = self._path.lstat()
        except OSError:
            return False
        return _is_own_file(status) and 0.0 <= now_s - status.st_mtime < HEALTHY_S

    def note(self) -> None:
        """Note that the node was checked just now. Where that can't be written it is checked again next time."""
        with contextlib.suppress(OSError):
            # not blocked by somebody's named pipe
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                if _is_own_file(os.fstat(descriptor)):
                    os.utime(descriptor, (time.time(), time.time()))
            finally:
                os.close(descriptor)

    def forget(self) -> None:
        """Have the node checked before the next run: a run has failed here."""
        with contextlib.suppress(OSError):
            self._path.unlink()


def _is_own_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
