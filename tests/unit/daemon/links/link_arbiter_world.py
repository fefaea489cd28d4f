"""What tests of the link arbiter share: jobs, gates, connections; munge is replaced by `uid:payload in hex`."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from synergy_core.errors import UnavailableError
from synergy_core.wire import link_protocol
from synergy_core.wire.link_protocol import Hello, encode_hello, read_hello
from synergy_core.wire.munge import Credential
from synergy_launch.links.link_gate import LinkGate

from synergyd.daemon.links.arbiter import LinkArbiter, Member

BOUND_S = 1.0
MB = 1_000_000


def encode(payload: bytes, uid: str = "") -> str:
    return f"{uid or 5}:{payload.hex()}"


def decode(credential: str, _socket: str = "") -> Credential:
    uid, _, text = credential.partition(":")
    try:
        return Credential(bytes.fromhex(text), int(uid), int(uid))
    except ValueError:
        raise UnavailableError("munge", "Invalid credential") from None


def made_gate(port: int, hello: Hello, **changes: Any) -> LinkGate:
    """Whose arbiter is uid 5's."""
    return LinkGate(("127.0.0.1", port), hello, **{"by": 5, "encode": encode, "decode": decode, **changes})


def welcome(credential: bytes, bound_s: float = BOUND_S, uid: str = "") -> bytes:
    """What the arbiter says to a line with a Hello in it."""
    hello = read_hello(decode(credential.decode().strip()).payload)
    return link_protocol.welcome_line(encode(link_protocol.welcome_text(hello, bound_s), uid))


def member(*nodes: str, restarts: int = 0, left: float = 100.0) -> Member:
    return Member(5, restarts, nodes, 2 * len(nodes), left)


MEMBERS = {1: member("a", "b"), 2: member("b", "c"), 3: member("x", "y")}


class InBackground(threading.Thread):
    """`begin` in a thread; `waited_s` once it has come back."""

    def __init__(self, gate: LinkGate, size_bytes: int) -> None:
        super().__init__(daemon=True)
        self.gate, self.size_bytes, self.waited_s = gate, size_bytes, math.nan
        self.start()

    def run(self) -> None:
        self.waited_s = self.gate.begin(self.size_bytes)


def until(what: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    end = time.monotonic() + timeout_s
    while not what() and time.monotonic() < end:
        time.sleep(0.005)
    return what()


@contextlib.contextmanager
def raw(arbiter: LinkArbiter, job_id: int, welcomed: bool = True, **changes: object) -> Iterator[socket.socket]:
    hello = replace(Hello(job_id, 0, MEMBERS[job_id].nodes), **changes)  # type: ignore[arg-type]
    with socket.create_connection(("127.0.0.1", arbiter.port), timeout=30) as wire:
        said = encode(encode_hello(hello)).encode() + b"\n"
        wire.sendall(said)
        if welcomed:
            assert line_of(wire) == welcome(said)
        yield wire


def line_of(wire: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (more := wire.recv(1)):
        line += more
    return line
