"""Connections to a port of the launcher whose other end has not said yet who it is.

Anybody who reaches the port can connect, so nobody's silence may cost a member of the job its place: whoever has said a whole line is
handed out at once. Where too many wait, one of the address with the most makes room, a silent one first.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

BACKLOG = 1024  # connections between two polls
_MOST = 256  # connections that wait here
_LINE_S = 5.0  # for a whole line
_LINE_BYTES = 4096
_ACCEPTS = 2 * BACKLOG  # a poll
CREDENTIALS = 16  # a poll: munged may take a while for one


@dataclass(eq=False)
class Visitor:
    """A connection. `rest`: what it has sent after its first line."""

    connection: socket.socket
    source: str
    since_s: float
    line: str | None = None
    rest: bytes = b""
    is_closed: bool = False

    def read(self) -> None:
        """Read what has come."""
        try:
            piece = self.connection.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self.rest += piece
        if b"\n" in self.rest:
            line, _, self.rest = self.rest.partition(b"\n")
            self.line = line.decode("ascii", "replace")
        self.is_closed = self.line is None and (not piece or len(self.rest) > _LINE_BYTES)


class Lobby:
    """The connections to `listener` that `poll` has not handed out yet.

    `lines`: how many `poll` hands out at a time, where checking one takes a while.
    """

    def __init__(
        self, listener: socket.socket, lines: int | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener, self._lines, self._monotonic = listener, lines or _ACCEPTS, monotonic
        self._listener.setblocking(False)
        self._here: list[Visitor] = []  # in the order in which they came

    def poll(self) -> Iterator[Visitor]:
        """Yield the connections that have sent a whole line, as soon as they have; the caller then owns them."""
        for visitor in self._here:
            if visitor.line is None:
                visitor.read()
        self._drop([v for v in self._here if v.is_closed or self._monotonic() > v.since_s + _LINE_S])
        of_source = Counter(v.source for v in self._here)
        ready = [v for v in self._here if v.line is not None]
        ready.sort(key=lambda v: of_source[v.source])  # a source with one connection before a source with many
        for visitor in ready[: self._lines]:
            self._here.remove(visitor)
            yield visitor
        room = self._lines - len(ready)
        for _ in range(_ACCEPTS):
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            connection.setblocking(False)
            visitor = Visitor(connection, str(address[0]), self._monotonic())
            visitor.read()
            if visitor.is_closed:
                connection.close()
            elif visitor.line is not None and room > 0:
                room -= 1
                yield visitor
            else:
                self._here.append(visitor)
                self._make_room()

    def close(self) -> None:
        """Close the listener and every connection that is still here."""
        self._drop(list(self._here))
        self._listener.close()

    def _make_room(self) -> None:
        """Drop one connection if there are too many: the one silent longest, of the address with the most."""
        if len(self._here) > _MOST:
            of_source = Counter(v.source for v in self._here)
            self._drop([max(self._here, key=lambda v: (of_source[v.source], v.line is None))])

    def _drop(self, visitors: Iterable[Visitor]) -> None:
        for visitor in visitors:
            self._here.remove(visitor)
            visitor.connection.close()
