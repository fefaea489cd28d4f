"""The connections that launchers of running jobs leave open behind their reports, so that a job is asked at once (wire/line.py)."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Collection

from synergy_core.wire.line import KNOCK

MAX_LINES = 4096
MAX_JOB_LINES = 4  # lines of one incarnation: several launchers, or one on its first and one on its last node
_RECEIVED_BYTES = 1024  # nobody reads what a launcher says on its line

#: (job id, incarnation)
Life = tuple[int, int]


class OpenLines:
    """The open lines, one a launcher, by its incarnation and its name. May be used from several threads.

    A line is added only for a running job's owner, so a stranger can't fill the room. If there is none the newest line is
    closed at once, and its launcher reports at its usual interval.
    """

    def __init__(self, most: int = 0) -> None:
        """Set the bound: `most` lines at a time; 0: MAX_LINES, and no more than a quarter of the files that this process may have open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = most or max(1, min(MAX_LINES, soft // 4))
        self._lock = threading.Lock()
        self._lines: dict[Life, dict[str, socket.socket]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, life: Life, launcher: str, wire: socket.socket) -> None:
        """Keep `wire` as the launcher's line, in place of its last one; close it if there is no room."""
        with self._lock:
            self._close(life, launcher)
            if self._count >= self._most or len(self._lines.get(life, ())) >= MAX_JOB_LINES:
                wire.close()
                return
            with contextlib.suppress(OSError):
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
            self._lines.setdefault(life, {})[launcher] = wire
            self._count += 1

    def knock(self, life: Life) -> None:
        """Have all launchers of this incarnation report at once. Never waits."""
        with self._lock:
            for wire in self._lines.get(life, {}).values():
                with contextlib.suppress(OSError):  # it has ended
                    wire.send(KNOCK)
            self._close_all(life)

    def drop(self, life: Life, launcher: str) -> None:
        """Close the line of a launcher that is ending."""
        with self._lock:
            self._close(life, launcher)

    def retain(self, lives: Collection[Life]) -> None:
        """Close the lines of all other incarnations."""
        with self._lock:
            for life in [life for life in self._lines if life not in lives]:
                self._close_all(life)

    def _close_all(self, life: Life) -> None:
        for launcher in list(self._lines.get(life, ())):
            self._close(life, launcher)

    def _close(self, life: Life, launcher: str) -> None:
        wire = self._lines.get(life, {}).pop(launcher, None)
        if wire is None:
            return
        wire.close()
        self._count -= 1
        if not self._lines[life]:
            del self._lines[life]
