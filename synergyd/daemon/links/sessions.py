"""The link arbiter's connections, the jobs that they belong to, and how many lines a job may send."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from synergy_core.wire.link_protocol import Hello

LINES_S = 5000.0  # lines a second of one job: two for each of its messages, on all of its connections
LINES_AT_ONCE = 2500.0  # lines that may come faster than that


@dataclass(frozen=True)
class ArbiterCounts:
    """The counts since the start: questions, grants that were not at once, and those by the bound; connections turned away."""

    asked: int = 0
    waited: int = 0
    bound: int = 0
    refused: int = 0


@dataclass(eq=False)
class Session:
    """One connection. `hello` is None until the job has said who it is. `asked`: the question that waits for its grant, 0: none."""

    wire: socket.socket
    since_s: float
    source: str = ""
    received: bytes = b""
    checking: bool = False
    hello: Hello | None = None
    asked: int = 0


@dataclass
class JobSessions:
    """The connections of one job, and those of them that have a grant."""

    sessions: set[Session] = field(default_factory=set)
    sending: set[Session] = field(default_factory=set)


@dataclass
class LineBound:
    """A token bucket for one job's lines. It outlives the job's connections: a job that connects anew gets no more."""

    lines: float = LINES_AT_ONCE
    at_s: float = float("-inf")

    def take(self, now_s: float) -> bool:
        """Return whether one more line may be read now."""
        self.lines = min(LINES_AT_ONCE, self.lines + max(0.0, now_s - self.at_s) * LINES_S)
        self.at_s = now_s
        if self.lines < 1.0:
            return False
        self.lines -= 1.0
        return True


def set_up_socket(wire: socket.socket) -> None:
    """Set what every connection has: no delay, and a host that died without a word is noticed within a minute."""
    wire.setblocking(False)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
