"""A TCP server for one short request and one answer a connection, which strangers can't keep from its users.

One thread does all input and output and never waits for a peer. A request has a deadline from its connection's begin, whatever
trickles in. If there is no room, the connection that has waited longest for its request is closed, first of the same source
address. Requests are answered in a few threads, since an answer may take a while.
"""

from __future__ import annotations

import contextlib
import queue
import resource
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from synergyd.daemon.ports.refusals import Refusals

_SWEEP_S = 0.25
_BACKLOG = 1024


@dataclass(frozen=True, kw_only=True)
class ServerBounds:
    #: seconds from the connection to the end of its request, and again to the end of the answer
    deadline_s: float = 5.0
    #: bytes of a request
    max_bytes: int = 64 * 1024
    #: connections at a time
    max_open: int = 1000
    #: open connections from one address
    max_source: int = 128
    #: threads that answer
    workers: int = 4


@dataclass(frozen=True)
class HeldAnswer:
    """An answer whose connection is not closed behind it: `hold` takes it over, and closes it some day."""

    text: bytes
    hold: Callable[[socket.socket], None]


@dataclass(eq=False)
class _Connection:
    wire: socket.socket
    source: str
    since_s: float
    received: bytearray = field(default_factory=bytearray)
    answering: bool = False  # in a worker's hands
    answer: bytes | None = None  # the part that is still to be sent
    hold: Callable[[socket.socket], None] | None = None  # the function that takes it over then


class BoundedServer:
    """The server, which listens from construction on, until `close`.

    `answer` gets a request (up to `end`, or to the end of the input) and the sender's address in a thread of its own,
    and returns what is sent back; b"" closes without a word.
    """

    def __init__(
        self,
        address: tuple[str, int],
        end: bytes,
        answer: Callable[[bytes, str], bytes | HeldAnswer],
        refusals: Refusals,
        bounds: ServerBounds,
    ) -> None:
        """Start the server. Raises OSError when the port can't be had."""
        self._end, self._answer, self._refusals, self._bounds = end, answer, refusals, bounds
        self._listener = socket.create_server(address, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._room = max(1, min(bounds.max_open, soft // 2))  # the rest of this process needs files too
        self._open: dict[_Connection, None] = {}  # in the order of their begin
        self._sources: Counter[str] = Counter()  # counts of open connections
        self._requests: queue.SimpleQueue[_Connection | None] = queue.SimpleQueue()
        self._answered: deque[tuple[_Connection, bytes | HeldAnswer]] = deque()
        self._wake, self._awake = socket.socketpair()
        self._wake.setblocking(False)
        self._awake.setblocking(False)
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._threads = [threading.Thread(target=self._serve, name=f"port-{self.port}", daemon=True)]
        self._threads += [
            threading.Thread(target=self._work, name=f"port-{self.port}-{n}", daemon=True)
            for n in range(bounds.workers)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop listening and close every connection."""
        self._closing = True
        self._poke()
        for _ in self._threads[1:]:
            self._requests.put(None)
        for thread in self._threads:
            thread.join(5.0)

    def _poke(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already
            self._wake.send(b".")

    def _work(self) -> None:
        while (connection := self._requests.get()) is not None:
            answer: bytes | HeldAnswer = b""
            try:
                answer = self._answer(bytes(connection.received), connection.source)
            except Exception as error:  # a fault of ours costs this request alone
                self._refusals.add("fault", connection.source, f"{type(error).__name__}: {error}"[:200])
            self._answered.append((connection, answer))
            self._poke()

    # -- in the server's thread ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        swept_s = time.monotonic()
        while not self._closing:
            for key, _ in self._selector.select(_SWEEP_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._awake:
                    with contextlib.suppress(OSError):
                        self._awake.recv(4096)
                elif key.data in self._open:
                    self._read(key.data) if key.data.answer is None else self._write(key.data)
            while self._answered:
                self._begin_answer(*self._answered.popleft())
            now_s = time.monotonic()
            if now_s - swept_s < _SWEEP_S:
                continue
            swept_s = now_s
            for connection in [
                c for c in self._open if now_s - c.since_s > self._bounds.deadline_s and not c.answering
            ]:
                self._refuse(connection, "late", "its request or its reading of the answer took too long")
        for connection in list(self._open):
            self._drop(connection)
        self._selector.close()
        for endpoint in (self._listener, self._wake, self._awake):
            endpoint.close()

    def _accept(self) -> None:
        for _ in range(64):  # and then to those that are open
            try:
                wire, address = self._listener.accept()
            except OSError as error:
                if not isinstance(error, BlockingIOError | ConnectionError) and not self._make_room(None):
                    time.sleep(_SWEEP_S)  # no file is left, and none of ours can be spared
                return
            connection = _Connection(wire, str(address[0]), time.monotonic())
            wire.setblocking(False)
            full_of_source = self._sources[connection.source] >= self._bounds.max_source
            if (full_of_source and not self._make_room(connection.source)) or (
                len(self._open) >= self._room and not self._make_room(None)
            ):
                self._refusals.add("full", connection.source, "all open connections wait for their answers")
                wire.close()
                continue
            self._open[connection] = None
            self._sources[connection.source] += 1
            self._selector.register(wire, selectors.EVENT_READ, connection)

    def _make_room(self, source: str | None) -> bool:
        """Close the connection that has been idle longest, of this source if one is named. Return False if there is none."""
        for connection in self._open:
            if not connection.answering and (source is None or connection.source == source):
                self._refuse(connection, "room", "too many connections are open")
                return True
        return False

    def _read(self, connection: _Connection) -> None:
        try:
            more = connection.wire.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self._refuse(connection, "gone", "the connection broke")
            return
        received = connection.received
        received += more
        at = received.find(self._end, max(0, len(received) - len(more) - len(self._end)))
        if at >= 0:
            del received[at + len(self._end) :]
        if len(received) > self._bounds.max_bytes:
            self._refuse(connection, "long", f"longer than {self._bounds.max_bytes} bytes")
        elif not more and not received:
            self._refuse(connection, "gone", "nothing was said")
        elif at >= 0 or not more:
            self._selector.unregister(connection.wire)
            connection.answering = True
            self._requests.put(connection)

    def _begin_answer(self, connection: _Connection, answer: bytes | HeldAnswer) -> None:
        connection.answering = False
        if isinstance(answer, HeldAnswer):
            connection.hold, answer = answer.hold, answer.text
        if not answer:
            self._drop(connection)
            return
        connection.answer, connection.since_s = answer, time.monotonic()
        self._selector.register(connection.wire, selectors.EVENT_WRITE, connection)
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        assert connection.answer is not None
        try:
            connection.answer = connection.answer[connection.wire.send(connection.answer) :]
        except BlockingIOError:
            return
        except OSError:
            connection.answer, connection.hold = b"", None
        if not connection.answer:
            self._drop(connection)

    def _refuse(self, connection: _Connection, cause: str, text: str) -> None:
        self._refusals.add(cause, connection.source, text)
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if connection in self._open:
            del self._open[connection]
            self._sources[connection.source] -= 1
            if not self._sources[connection.source]:
                del self._sources[connection.source]
        if not connection.answering:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection.wire)
        if connection.hold is not None and connection.answer == b"" and not self._closing:
            connection.hold(connection.wire)
            return
        with contextlib.suppress(OSError):
            connection.wire.shutdown(socket.SHUT_WR)  # an answer that was sent arrives, whatever was not read
        connection.wire.close()
