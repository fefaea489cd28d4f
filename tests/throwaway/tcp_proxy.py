"""A TCP proxy that can fall silent: packets are taken and not handed on, as by a network that is cut somewhere behind."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType


class TcpProxy:
    """Listens on `port` of 127.0.0.1 and forwards to `target` of the same. One thread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._open = threading.Event()
        self._open.set()
        self._end = threading.Event()
        self._pairs: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._open.set()
        self._thread.join(5)
        for each in (self._listener, *self._pairs):
            each.close()
        self._selector.close()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def _run(self) -> None:
        while not self._end.is_set():
            for key, _ in self._selector.select(0.1):
                self._open.wait()
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._forward(key)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            self._selector.register(one, selectors.EVENT_READ, other)
            self._pairs.append(one)

    def _forward(self, key: selectors.SelectorKey) -> None:
        source = key.fileobj
        assert isinstance(source, socket.socket)
        other: socket.socket = key.data
        try:
            data = source.recv(65536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for each in (source, other):
            if each.fileno() >= 0:  # else closed a moment ago, with the other end of its pair
                self._selector.unregister(each)
                each.close()
