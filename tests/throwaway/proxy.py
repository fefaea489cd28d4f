"""A network between two programs on this machine that can be cut: a TCP proxy that forwards, breaks connections, or is silent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close() resets the connection
_POLL_S = 0.1


class Proxy:
    """Forwards `port` of 127.0.0.1 to `target`, another port there. `mode`: "open", "cut" (refused), "silent" (no byte passes)."""

    def __init__(self, target: int) -> None:
        self.mode = "open"
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_POLL_S)
        self.port: int = self._listener.getsockname()[1]
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def silence(self) -> None:
        """Bytes are taken and not handed on, as by a network that is cut somewhere behind."""
        self.mode = "silent"

    def mend(self) -> None:
        self.mode = "open"

    def close(self) -> None:
        """Breaks every connection, and listens no more."""
        self._closing = True
        for thread in self._threads:
            thread.join(5.0)
        self._listener.close()

    def _start(self, work: object, *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                wire, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._start(self._carry, wire)

    def _carry(self, near: socket.socket) -> None:
        """One connection, to its end."""
        wires = [near]
        try:
            while self.mode == "silent" and not self._closing:
                threading.Event().wait(_POLL_S)
            if self.mode == "open" and not self._closing:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5.0)
                wires.append(far)
                far.settimeout(_POLL_S)
                near.settimeout(_POLL_S)
                back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
                back.start()
                self._pump(near, far)
                back.join(5.0)
        except OSError:
            pass
        finally:
            for wire in wires:
                with contextlib.suppress(OSError):
                    if self.mode == "cut":
                        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                wire.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Until `source` says no more, or the connection is to be cut."""
        with contextlib.suppress(OSError):
            while self.mode != "cut" and not self._closing:
                try:
                    data = source.recv(65536)
                except TimeoutError:
                    continue
                while self.mode == "silent" and not self._closing:
                    threading.Event().wait(_POLL_S)
                if not data:
                    break
                self._send(sink, data)
            sink.shutdown(socket.SHUT_WR)

    def _send(self, sink: socket.socket, data: bytes) -> None:
        while data and self.mode != "cut" and not self._closing:
            try:
                data = data[sink.send(data) :]
            except TimeoutError:
                continue
