"""What the launchers of a job's nodes say to one another: the first one decides what runs next, the others follow.

Each other node connects to the first one. Both sides show a munge credential of the job's own user, for this job and
incarnation; after that the lines are plain:

    ended RUN CODE KIND          a node's run is over
    run NUMBER ORDER NODES PLAN  the next run, on these nodes; PLAN is `-` for the script's own arguments
    over CODE                    no run follows; the first node's exit code
    hold                         no run follows; the daemon is asked to requeue the job

A connection that breaks before `ended` is a lost node. Nothing here blocks but the connect, for a second.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from synergy_launch.launcher.allocation import JobAllocation, rendezvous_port
from synergyd.errors import SynergyError, UsageError
from synergyd.records import Plan
from synergyd.wire import munge
from synergyd.wire.hostlist import expand
from synergyd.wire.plan import plan_from_text, plan_text

CHANNEL = -1  # in place of a run's number, for its port
_MOST_BYTES = 65_536  # of a line: the names of a thousand nodes
_CONNECT_S, _AGAIN_S = 1.0, 2.0
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))  # a node without power is lost after 20 s


@dataclass(frozen=True)
class NextRun:
    """What the first node says. `number` 0: no run follows, and `holds` tells whether a requeue does; else all end with `code`."""

    number: int
    order: int = 0
    nodes: tuple[str, ...] = ()
    plan: Plan | None = None
    holds: bool = False
    code: int = 0

    def line(self) -> str:
        if not self.number:
            return "hold" if self.holds else f"over {self.code}"
        plan = plan_text(self.plan) if self.plan else "-"
        return f"run {self.number} {self.order} {','.join(self.nodes)} {plan}"


def next_run(line: str) -> NextRun | None:
    """What such a line says; None for any other."""
    words = line.split(" ")
    if line == "hold":
        return NextRun(0, holds=True)
    if len(words) == 2 and words[0] == "over" and words[1].isdecimal() and len(words[1]) < 4:
        return NextRun(0, code=int(words[1]))
    if len(words) != 5 or words[0] != "run" or not all(w.isdecimal() and len(w) < 8 for w in words[1:3]):
        return None
    try:
        plan = None if words[4] == "-" else plan_from_text(words[4], "next run")
        return NextRun(int(words[1]), int(words[2]), expand(words[3], "next run"), plan)
    except UsageError:
        return None


@dataclass
class _Peer:
    """A connection. `rank` -1: it has not shown who it is."""

    connection: socket.socket
    rank: int = -1
    heard: bytes = b""
    closed: bool = False

    def lines(self) -> list[str]:
        """The lines that have come since the last call."""
        try:
            while not self.closed and len(self.heard) <= _MOST_BYTES:
                piece = self.connection.recv(65_536)
                self.closed = not piece
                self.heard += piece
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        if len(self.heard) > _MOST_BYTES:
            self.closed = True
        *whole, self.heard = self.heard.split(b"\n")
        return [line.decode("ascii", "replace") for line in whole]

    def say(self, text: str) -> None:
        try:
            self.connection.settimeout(_CONNECT_S)
            self.connection.sendall(text.encode() + b"\n")
            self.connection.settimeout(0)
        except OSError:
            self.closed = True


@dataclass
class Crew:
    """One node's end. `address`: the first node's. `poll` it often; `ended` (by rank: run, exit code, kind) and `lost` are what the
    first node hears, `word` what the others do."""

    allocation: JobAllocation
    address: str
    uid: int
    monotonic: Callable[[], float] = time.monotonic
    ended: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    word: NextRun | None = None
    _listener: socket.socket | None = None
    _peers: list[_Peer] = field(default_factory=list)
    _try_at: float = 0.0

    @property
    def first(self) -> bool:
        return self.allocation.node_rank == 0

    @property
    def connected(self) -> bool:
        """The first node: with all others that are not lost; another one: with the first."""
        here = {p.rank for p in self._peers if p.rank >= 0 and not p.closed}
        return len(here) == len(self.allocation.nodes) - 1 - len(self.lost) if self.first else here == {0}

    def poll(self) -> None:
        """Takes in what has come."""
        self._accept() if self.first else self._connect()
        for peer in self._peers:
            for line in peer.lines():
                self._take(peer, line)
        for peer in [p for p in self._peers if p.closed]:
            self._peers.remove(peer)
            peer.connection.close()
            well = self.ended.get(peer.rank, (0, 1, ""))[1] in (0, 130, 143)
            if self.first and peer.rank > 0 and not well:
                self.lost.add(peer.rank)

    def tell(self, word: NextRun) -> None:
        """The first node's word to all others."""
        self.ended = {}
        for peer in self._peers:
            if peer.rank > 0:
                peer.say(word.line())

    def say_ended(self, run: int, code: int, kind: str) -> None:
        """Another node's word to the first."""
        for peer in self._peers:
            peer.say(f"ended {run} {code} {kind}")

    def close(self) -> None:
        for peer in self._peers:
            peer.connection.close()
        if self._listener is not None:
            self._listener.close()
        self._peers, self._listener = [], None

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _port(self) -> int:
        return rendezvous_port(self.allocation.job_id or 0, self.allocation.restarts, CHANNEL)

    def _accept(self) -> None:
        if self._listener is None and self.monotonic() >= self._try_at:
            self._try_at = self.monotonic() + _AGAIN_S
            with contextlib.suppress(OSError):  # taken: there is no crew then
                self._listener = socket.create_server(("", self._port), backlog=len(self.allocation.nodes))
                self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            while self._listener is not None and len(self._peers) < 2 * len(self.allocation.nodes):
                connection, _ = self._listener.accept()
                self._peers.append(_Peer(_kept(connection)))

    def _connect(self) -> None:
        if self._peers or self.monotonic() < self._try_at:
            return
        self._try_at = self.monotonic() + _AGAIN_S
        with contextlib.suppress(OSError, SynergyError):
            credential = munge.encode(self._words("node", self.allocation.node_rank).encode())
            connection = socket.create_connection((self.address, self._port), timeout=_CONNECT_S)
            peer = _Peer(_kept(connection))
            peer.say(credential)
            self._peers.append(peer)

    def _take(self, peer: _Peer, line: str) -> None:
        if peer.rank < 0:
            self._greet(peer, line)
            return
        words = line.split(" ")
        if not self.first:
            self.word = next_run(line) or self.word
        elif len(words) == 4 and words[0] == "ended" and all(w.isdecimal() and len(w) < 8 for w in words[1:3]):
            self.ended[peer.rank] = int(words[1]), min(int(words[2]), 255), words[3][:16]

    def _greet(self, peer: _Peer, line: str) -> None:
        """Its first line shows who it is; one of another user or job is closed."""
        try:
            credential = munge.decode(line)
            words = credential.payload.decode("ascii")
        except (SynergyError, UnicodeDecodeError):
            peer.closed = True
            return
        ranks = range(1, len(self.allocation.nodes)) if self.first else (self.allocation.node_rank,)
        side = "node" if self.first else "first"
        rank = next((r for r in ranks if words == self._words(side, r)), -1)
        if credential.uid != self.uid or rank < 0 or any(p.rank == rank for p in self._peers):
            peer.closed = True
            return
        if self.first:
            try:
                peer.say(munge.encode(self._words("first", rank).encode()))
            except SynergyError:
                peer.closed = True
        peer.rank = rank if self.first else 0

    def _words(self, side: str, rank: int) -> str:
        return f"synergy-{side} {self.allocation.job_id} {self.allocation.restarts} {rank}"


def _kept(connection: socket.socket) -> socket.socket:
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection
