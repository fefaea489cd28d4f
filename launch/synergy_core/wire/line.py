"""The connection that a launcher leaves open after a report, on which the daemon can ask for the next report at once.

To ask, the daemon sends one byte and closes. The byte needs no trust: the daemon's answer to that report says what it wants. A line that
closes without a byte (no room, the daemon ended) means nothing: reports come at their interval.
"""

from __future__ import annotations

import contextlib
import socket

KNOCK = b"!"
# a daemon's host without power: found by TCP itself within a minute
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Line:
    """A launcher's end of the connection; at most one connection at a time."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None
        self._heard = b""

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def fileno(self) -> int:
        """Return the open connection's file descriptor, for a selector; -1 where there is none."""
        return -1 if self._connection is None else self._connection.fileno()

    def take(self, connection: socket.socket, heard: bytes = b"") -> None:
        """Hold `connection` in place of the one before. `heard`: the bytes that have come on it already."""
        self.close()
        self._heard = heard
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection = connection

    def read_knock(self) -> bool:
        """Read what has come, and close a line that is over. Return whether the daemon knocked."""
        if self._connection is None:
            return False
        heard = self._heard
        try:
            heard += self._connection.recv(len(KNOCK))
        except BlockingIOError:
            return False
        except OSError:
            pass
        self.close()
        return heard.startswith(KNOCK)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
