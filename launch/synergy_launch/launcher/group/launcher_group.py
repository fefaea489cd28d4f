"""Messages between the launchers of a job's nodes: the first one decides what runs next, the others follow.

Each other node connects to the first one. Both sides show, by the job's secret or else by a munge credential of the job's own user,
that they belong to this job and incarnation; after that the lines are plain:

    ended RUN CODE KIND [FAULT]  a node's run is over; FAULT is a record as JSON without spaces
    run NUMBER ORDER NODES PLAN  the next run, on these nodes; PLAN is `-` for the script's own arguments
    over CODE                    no run follows; the first node's exit code
    hold                         no run follows; the daemon is asked to requeue the job
    mends                        what follows a failure is decided for all nodes together from now on
    heard NUMBER                 a node knows of that run
    status RUN STATUS            what a node's processes say of a run, as JSON without spaces, where they say anything
    check CHECK                  a node's check before the run, as JSON without spaces
    batch PLAN                   the batch that the daemon proposes, for the node whose processes hear proposals
    memory RECORD                about memory checkpoints (memory/copies.py), as JSON without spaces, either way

A connection that is closed before `ended` is a lost node: its launcher is gone. One that is reset, or over which nothing comes any more,
may be a node without power or a network out of order for a while. Nothing here blocks but the connect, for a second, and `wait`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from synergy_core.errors import SynergyError, UsageError
from synergy_core.job_report import Fault
from synergy_core.node_check import NodeCheck
from synergy_core.records import Plan
from synergy_core.wire import job_key, munge
from synergy_core.wire.codec import decode, encode
from synergy_core.wire.hostlist import expand
from synergy_core.wire.job_key import SignedReport
from synergy_core.wire.node_check import read_check
from synergy_core.wire.plan import plan_from_text, plan_text
from synergy_core.wire.report import harmless_fault

from synergy_launch.launcher.group.lobby import BACKLOG, CREDENTIALS, Lobby
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.job.job_secret import key_of_incarnation, meeting_ports

CHANNEL = -1  # in place of a run's number, for its port
_MOST_BYTES = 65_536  # the longest line: the names of a thousand nodes
_CONNECT_S, _AGAIN_S = 1.0, 2.0
REJOIN_S = 2 * _AGAIN_S  # for the other side of a connection that was reset, which knows of it too: two tries
_ANSWER_S = 10.0  # from the first node, which polls in between
#: for a node without power to be silent, whether or not something was sent to it; the kernel answers for a launcher that is suspended
LOST_S = 8
_PROBE_S = 2  # a lost packet or two are no lost node
_KEEPALIVE = (
    ("TCP_KEEPIDLE", _PROBE_S),
    ("TCP_KEEPINTVL", _PROBE_S),
    ("TCP_KEEPCNT", LOST_S // _PROBE_S - 1),
    ("TCP_USER_TIMEOUT", LOST_S * 1000),  # milliseconds
)
_RESETS = (errno.ECONNRESET, errno.ECONNABORTED)
_OF_NETWORK = (errno.EHOSTUNREACH, errno.ENETUNREACH, *_RESETS)
_MENDS, _BATCH, _MEMORY = "mends", "batch ", "memory "
_MOST_RECORDS = 1000  # unread ones: several of each node, of a thousand nodes at most
_BREATH_S = 0.02  # after each wait: whoever sends without end keeps no launcher busy


@dataclass(frozen=True)
class NextRun:
    """The first node's message.

    `number` 0: no run follows. Then `holds` tells whether a requeue follows; if not, all nodes end with `code`.
    """

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
    """Return what a line from the first node says, or None for any other line."""
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
    """A connection to another node of the job, or to something that claims to be one.

    `rank` -1: it has not shown who it is. `greeting`: what its answer is signed with, where the job has a secret.
    """

    connection: socket.socket
    rank: int = -1
    buffer: bytes = b""
    greeting: SignedReport | None = None
    is_closed: bool = False
    is_cut_off: bool = False  # closed since the network broke it
    is_reset: bool = False  # the network, or a host, did so at once
    knows_mending: bool = False
    heard_run: int = 0  # the latest run that it has said it knows of
    known_check: NodeCheck | None = None  # the check of this node that it was sent

    def lines(self) -> list[str]:
        """Return the lines that have come since the last call."""
        try:
            while not self.is_closed and len(self.buffer) <= _MOST_BYTES:
                piece = self.connection.recv(65_536)
                self.is_closed = not piece
                self.buffer += piece
        except BlockingIOError:
            pass
        except OSError as error:
            self._note_break(error)
        if len(self.buffer) > _MOST_BYTES:
            self.is_closed = True
        *whole, self.buffer = self.buffer.split(b"\n")
        return [line.decode("ascii", "replace") for line in whole]

    def say(self, text: str) -> None:
        try:
            self.connection.settimeout(_CONNECT_S)
            self.connection.sendall(text.encode() + b"\n")
            self.connection.settimeout(0)
        except OSError as error:
            self._note_break(error)

    def _note_break(self, error: OSError) -> None:
        self.is_closed, self.is_cut_off = True, _is_of_network(error)
        self.is_reset = error.errno in _RESETS


@dataclass
class LauncherGroup:
    """One node's side of the connections. `address`: the first node's.

    Call `poll` often. The first node hears `ends` (by rank: run, exit code, kind, in the order in which they came), `lost_ranks` and
    `silent_ranks` (by rank: from when on, by `monotonic`), which may connect anew, and `status` (run, status) from the node whose processes
    have one; the others hear `word`, `proposal`, and `mends` once the first node has set it.
    """

    allocation: JobAllocation
    address: str
    uid: int
    secret: bytes = b""
    monotonic: Callable[[], float] = time.monotonic
    ends: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    faults: dict[int, Fault | None] = field(default_factory=dict)  # of these ends, where they are known
    lost_ranks: set[int] = field(default_factory=set)
    silent_ranks: dict[int, float] = field(default_factory=dict)
    word: NextRun | None = None
    status: tuple[int, Mapping[str, Any]] | None = None
    proposal: Plan | None = None
    mends: bool = False
    own_check: NodeCheck | None = None  # of this node, for the first one
    checks: dict[str, NodeCheck] = field(default_factory=dict)  # of the other nodes, by name
    memory_records: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)  # (sender's rank, record), unread
    members: tuple[str, ...] = ()  # all nodes that the job has or had, by rank
    expected_ranks: set[int] = field(default_factory=set)  # the other nodes' ranks in the present run
    run: int = 0  # the latest run that the others were told of
    _lobby: Lobby | None = None
    peers: list[_Peer] = field(default_factory=list)  # open connections
    _next_try_s: float = 0.0
    _answer_due_s: float = 0.0
    _passed_on: tuple[int, Mapping[str, Any]] | None = None  # the status sent last over the present connection
    _said_word: NextRun | None = None
    _strangers: int = 0  # listeners that did not answer as the first node does
    _seen_signatures: dict[str, None] = field(default_factory=dict)  # signatures of nodes' first lines

    def __post_init__(self) -> None:
        self.members = self.members or self.allocation.nodes
        self.expected_ranks = set(range(len(self.members))) - {self.allocation.node_rank}

    @property
    def first(self) -> bool:
        return self.allocation.node_rank == 0

    @property
    def is_connected(self) -> bool:
        """Return whether this node is connected: the first node to all others of the run that are not lost, another node to the first."""
        return self.expected_ranks - self.lost_ranks <= self.ranks if self.first else self.ranks == {0}

    @property
    def ranks(self) -> set[int]:
        """Return the ranks of the nodes that this one is connected to."""
        return {p.rank for p in self.peers if p.rank >= 0 and not p.is_closed}

    def poll(self) -> None:
        """Read what has come from the other nodes."""
        self._accept() if self.first else self._connect()
        for peer in self.peers:
            self._hear(peer)
            if self.first and self.mends and peer.rank > 0 and not peer.knows_mending:
                peer.knows_mending = True
                peer.say(_MENDS)
            if peer.rank == 0 and self.own_check is not None and peer.known_check != self.own_check:
                peer.known_check = self.own_check
                peer.say(f"check {_compact(encode(self.own_check))}")
        for peer in [p for p in self.peers if p.is_closed]:
            self.peers.remove(peer)
            peer.connection.close()
            run, code, _ = self.ends.get(peer.rank, (self.run, 1, ""))
            well = run >= self.run and code in (0, 130, 143)
            if self.first and peer.rank > 0 and not well and peer.is_cut_off:
                self.silent_ranks[peer.rank] = self.monotonic() + (REJOIN_S if peer.is_reset else 0.0)
            elif self.first and peer.rank > 0 and not well:
                self.lost_ranks.add(peer.rank)
        self.silent_ranks = {rank: at_s for rank, at_s in self.silent_ranks.items() if rank not in self.ranks}

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes from another node, at most `timeout_s`."""
        poll = select.poll()
        for peer in self.peers:
            if not peer.is_closed:
                poll.register(peer.connection, select.POLLIN)
        poll.poll(1000 * max(0.0, timeout_s - _BREATH_S))
        time.sleep(_BREATH_S)

    def is_known_to_all(self, run: int) -> bool:
        """Return whether every node of the run that is not lost has said that it knows of `run`. Launchers before 0.3 never say so."""
        return self.is_connected and all(
            peer.heard_run >= run for peer in self.peers if peer.rank > 0 and not peer.is_closed
        )

    def tell(self, word: NextRun) -> None:
        """Send the first node's message to all other nodes."""
        self.ends, self.faults, self.run = {}, {}, max(self.run, word.number)
        self._said_word = word
        for peer in self.peers:
            if peer.rank > 0:
                peer.say(word.line())

    def report_end(self, run: int, code: int, kind: str, fault: Fault | None = None) -> None:
        """Send to the first node that run `run` has ended here, with `code` and `kind`, for `fault` if that is known."""
        detail = "" if fault is None else f" {_compact(encode(fault))}"
        for peer in self.peers:
            peer.say(f"ended {run} {code} {kind}{detail}")

    def pass_on_status(self, run: int, status: Mapping[str, Any]) -> None:
        """Send to the first node what this node's processes say of `run`, if it is news."""
        if self._passed_on == (run, status):
            return
        self._passed_on = run, dict(status)
        for peer in self.peers:
            peer.say(f"status {run} {_compact(status)}")

    def send_memory_record(self, record: Mapping[str, Any], rank: int | None = None) -> None:
        """Send a record about memory checkpoints to the node of `rank`, or to all that this one is connected to."""
        for peer in self.peers:
            if peer.rank >= 0 and rank in (None, peer.rank):
                peer.say(f"{_MEMORY}{_compact(record)}")

    def find_peer_address(self, rank: int) -> str:
        """Return the address of the node of `rank`, as its connection shows it, or "" if there is none."""
        with contextlib.suppress(OSError):
            for peer in self.peers:
                if peer.rank == rank and not peer.is_closed:
                    return str(peer.connection.getpeername()[0])
        return ""

    def propose_batch(self, plan: Plan) -> None:
        """Send to all other nodes the batch of `plan`, which the daemon proposes."""
        for peer in self.peers:
            if peer.rank > 0:
                peer.say(f"{_BATCH}{plan_text(plan)}")

    def close(self) -> None:
        for peer in self.peers:
            peer.connection.close()
        if self._lobby is not None:
            self._lobby.close()
        self.peers, self._lobby = [], None

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _places(self) -> tuple[int, ...]:
        return meeting_ports(self.secret, self.allocation.job_id or 0, self.allocation.restarts, CHANNEL)

    def _accept(self) -> None:
        if self._lobby is None and self.monotonic() >= self._next_try_s:
            self._next_try_s = self.monotonic() + _AGAIN_S
            self._listen()
        for visitor in self._lobby.poll() if self._lobby is not None else ():
            peer = _Peer(_keep_alive(visitor.connection), buffer=visitor.rest)
            self._greet(peer, visitor.line or "")
            self._hear(peer)
            if peer.is_closed:  # also one that had no answer in time, and has connected anew
                peer.connection.close()
            else:
                self.peers.append(peer)

    def _listen(self) -> None:
        """Listen on the first free port; where all are taken there is no group."""
        for port in self._places:
            with contextlib.suppress(OSError):
                listener = socket.create_server(("", port), backlog=BACKLOG)
                self._lobby = Lobby(listener, None if self.secret else CREDENTIALS, self.monotonic)
                return

    def _connect(self) -> None:
        for peer in self.peers:
            self._hear(peer)
            if peer.rank < 0 and self.monotonic() >= self._answer_due_s:
                peer.is_closed = True  # a stranger, who listens there in the first node's place
                self._strangers += 1
        if any(not p.is_closed for p in self.peers) or self.monotonic() < self._next_try_s:
            return
        self._next_try_s = self.monotonic() + _AGAIN_S
        self._answer_due_s = self.monotonic() + _ANSWER_S
        with contextlib.suppress(OSError, SynergyError):
            line, greeting = self._hello(self._words("node", self.allocation.node_rank).encode())
            peer = _Peer(_keep_alive(self._dial_first_node()), greeting=greeting)
            peer.say(line)
            self.peers.append(peer)
            self._passed_on = None

    def _dial_first_node(self) -> socket.socket:
        """Return a connection to the first port that somebody listens on. Raises OSError where nobody does."""
        ports, skipped = self._places, self._strangers % len(self._places)
        for port in (*ports[skipped:], *ports[:skipped]):
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection((self.address, port), timeout=_CONNECT_S)
        raise ConnectionRefusedError

    def _hello(self, words: bytes) -> tuple[str, SignedReport | None]:
        """Return the first line to send to the first node, and what its answer is signed with. Raises SynergyError."""
        if not self.secret:
            return munge.encode(words), None
        key = key_of_incarnation(self.secret, self.allocation.job_id or 0, self.allocation.restarts)
        return job_key.sign_report(key, words, time.time())

    def _hear(self, peer: _Peer) -> None:
        for line in peer.lines():
            self._take(peer, line)

    def _take(self, peer: _Peer, line: str) -> None:
        if peer.rank < 0:
            self._greet(peer, line)
            return
        words = line.split(" ")
        if line.startswith(_MEMORY):
            if (read := _read_record(peer.rank, line.removeprefix(_MEMORY))) is not None:
                self.memory_records = [*self.memory_records[-_MOST_RECORDS:], read]
        elif not self.first:
            self.mends = self.mends or line == _MENDS
            word = next_run(line)
            self.word = word or self.word
            self.proposal = _read_proposal(line) or self.proposal
            if word is not None and word.number:
                peer.say(f"heard {word.number}")
        elif len(words) == 2 and words[0] == "heard" and words[1].isdecimal() and len(words[1]) < 8:
            peer.heard_run = int(words[1])
        elif len(words) in (4, 5) and words[0] == "ended" and all(w.isdecimal() and len(w) < 8 for w in words[1:3]):
            self.ends[peer.rank] = int(words[1]), min(int(words[2]), 255), words[3][:16]
            self.faults[peer.rank] = _read_fault(words[4]) if len(words) == 5 else None
        elif len(words) == 3 and words[0] == "status" and words[1].isdecimal() and len(words[1]) < 8:
            self.status = _read_record(int(words[1]), words[2]) or self.status
        elif len(words) == 2 and words[0] == "check" and (check := _read_check(words[1])) is not None:
            name = self.members[peer.rank]
            self.checks[name] = replace(check, node=name)

    def _greet(self, peer: _Peer, line: str) -> None:
        """Take the first line of `peer`, which shows who it is; close a peer of another user or job."""
        try:
            words, signed = self._open_first_line(peer, line)
            ranks = range(1, len(self.members)) if self.first else (self.allocation.node_rank,)
            rank = next((r for r in ranks if words == self._words("node" if self.first else "first", r)), -1)
            for old in [p for p in self.peers if p.rank == rank]:
                self._hear(old)
                if old.is_closed:
                    self.peers.remove(old)
                    old.connection.close()
            if rank < 0 or any(p.rank == rank for p in self.peers):
                peer.is_closed = True
            elif self.first:
                answer = self._words("first", rank).encode()
                peer.say(signed.answer(answer, time.time()) if signed else munge.encode(answer))
                if self._said_word is not None:  # it may have missed it; who knows the run already takes it for no news
                    peer.say(self._said_word.line())
        except (SynergyError, UnicodeDecodeError):
            peer.is_closed = True
        if not peer.is_closed:
            peer.rank = rank if self.first else 0

    def _open_first_line(self, peer: _Peer, line: str) -> tuple[str, SignedReport | None]:
        """Return the text of a first line, and what its answer is to be signed with.

        Raises SynergyError if no node of this job's user has signed the line, or if some node sent it before.
        """
        if not self.secret:
            credential = munge.decode(line)
            if credential.uid != self.uid:
                raise UsageError("group", "the sender is another user")
            return credential.payload.decode("ascii"), None
        if peer.greeting is not None:
            return peer.greeting.verify_answer(line).decode("ascii"), None
        signed, payload = job_key.open_line(line, self.secret, time.time())
        if signed.signature in self._seen_signatures:
            raise UsageError("group", "the line was sent before")
        self._seen_signatures[signed.signature] = None
        return payload.decode("ascii"), signed

    def _words(self, side: str, rank: int) -> str:
        return f"synergy-{side} {self.allocation.job_id} {self.allocation.restarts} {rank}"


def _keep_alive(connection: socket.socket) -> socket.socket:
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _is_of_network(error: OSError) -> bool:
    """Return whether the network may have broken a connection: nothing came from the other host, or something between the two reset it.

    One that the other side closes as its process ends breaks otherwise, as a rule.
    """
    return isinstance(error, TimeoutError) or error.errno in _OF_NETWORK


def _compact(record: object) -> str:
    """Return `record` as JSON without a space, so that it is one word of a line."""
    return json.dumps(record, separators=(",", ":")).replace(" ", "\\u0020")


def _read_record(number: int, text: str) -> tuple[int, Mapping[str, Any]] | None:
    """Return `number` and the record in `text`, or None where there is none."""
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return (number, status) if isinstance(status, dict) else None


def _read_proposal(line: str) -> Plan | None:
    try:
        return plan_from_text(line.removeprefix(_BATCH), "batch") if line.startswith(_BATCH) else None
    except UsageError:
        return None


def _read_check(text: str) -> NodeCheck | None:
    try:
        return read_check(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _read_fault(text: str) -> Fault | None:
    try:
        return harmless_fault(decode(Fault, json.loads(text)))
    except (UsageError, ValueError, RecursionError):
        return None
