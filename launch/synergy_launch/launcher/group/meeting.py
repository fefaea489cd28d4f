"""The meeting of torchrun's agents on a job's nodes: on a port that the first node takes at random, and tells the others.

It tells them on one of a few ports that only the job's secret gives away, and both sides sign what they say with it. Nobody waits
forever: a run whose nodes can't meet ends with NO_MEETING and one line. A job without a secret has no meeting: its nodes go to the port
that they work out from the job's id, as anybody can.
"""

from __future__ import annotations

import contextlib
import errno
import random
import select
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from synergy_core.errors import SynergyError, UsageError
from synergy_core.wire import job_key

from synergy_launch.launcher.group.lobby import BACKLOG, Lobby, Visitor
from synergy_launch.launcher.job.allocation import FIRST_PORT, PORTS
from synergy_launch.launcher.job.job_secret import key_of_incarnation, meeting_ports, read_secret

VARIABLE = "SYNERGY_MEETING"  # for torchrun's wrapper: which meeting it goes to
NO_MEETING = 75  # exit code: no plan and no script is to blame
MEETING_S = 600.0  # seconds within which all nodes must come: torchrun's own wait
_TRIES = 64  # ports, at random
_CONNECT_S, _ANSWER_S, _AGAIN_S, _LINGER_S = 1.0, 3.0, 0.5, 5.0


class NoMeetingError(SynergyError):
    """The error where the job's nodes can't meet."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The meeting of one run of a step on `nodes` nodes, seen from the node of `rank`. `address`: the first node's."""

    job_id: int
    restarts: int
    step: int
    run: int
    nodes: int
    rank: int
    address: str
    secret: bytes

    def find_port(self) -> int:
        """Return the port to meet on; on the first node torchrun is to listen there next. Raises NoMeetingError."""
        if self.rank:
            return self._ask()
        with bind_first_free(random_ports(), listens=False) as free:
            port: int = free.getsockname()[1]
            listener = bind_first_free(self._places, listens=True)
        threading.Thread(target=self._answer, args=(listener, port), name="meeting", daemon=True).start()
        return port

    @property
    def _places(self) -> tuple[int, ...]:
        return meeting_ports(self.secret, self.job_id, self.restarts, self.run)

    # -- the first node ------------------------------------------------------------------------------------------------

    def _answer(self, listener: socket.socket, port: int) -> None:
        """Tell each other node the port, until all know it or MEETING_S seconds have passed."""
        lobby, ranks, until = Lobby(listener), set(range(1, self.nodes)), time.monotonic() + MEETING_S
        while time.monotonic() < until:
            select.select([listener], [], [], _AGAIN_S)
            for visitor in lobby.poll():
                ranks -= self._tell(visitor, port)
                visitor.connection.close()
                if not ranks:  # one whose answer was lost asks again
                    until = min(until, time.monotonic() + _LINGER_S)
        lobby.close()

    def _tell(self, visitor: Visitor, port: int) -> set[int]:
        """Return the rank of a node that has been told the port, or an empty set for a stranger."""
        with contextlib.suppress(OSError, UsageError):
            signed, payload = job_key.open_line(visitor.line or "", self.secret, time.time())
            for rank in range(1, self.nodes):
                if signed.incarnation == (self.job_id, self.restarts) and payload == self._meeting_line(rank):
                    visitor.connection.settimeout(_CONNECT_S)
                    visitor.connection.sendall(signed.answer(str(port).encode(), time.time()).encode() + b"\n")
                    return {rank}
        return set()

    # -- the others ----------------------------------------------------------------------------------------------------

    def _ask(self) -> int:
        until = time.monotonic() + MEETING_S
        while time.monotonic() < until:
            for place in self._places:
                with contextlib.suppress(OSError, UsageError, ValueError):
                    return self._ask_port(place)
            time.sleep(_AGAIN_S)
        what = f"the first node ({self.address}) did not say within {MEETING_S:.0f} s where to meet"
        raise NoMeetingError(
            "rendezvous", what, "look for what the first node wrote, and for firewalls between the nodes"
        )

    def _ask_port(self, place: int) -> int:
        """Return the port that the first node names on port `place`. Raises OSError, UsageError or ValueError if it names none."""
        key = key_of_incarnation(self.secret, self.job_id, self.restarts)
        line, request = job_key.sign_report(key, self._meeting_line(self.rank), time.time())
        with socket.create_connection((self.address, place), timeout=_CONNECT_S) as wire:
            wire.sendall(line.encode() + b"\n")
            answer, until = b"", time.monotonic() + _ANSWER_S
            while not answer.endswith(b"\n") and len(answer) < 4096:
                wire.settimeout(max(0.001, until - time.monotonic()))
                piece = wire.recv(4096)
                if not piece:
                    break
                answer += piece
        port = int(request.verify_answer(answer.decode("ascii", "replace").strip()))
        if not 0 < port < 65536:
            raise ValueError
        return port

    def _meeting_line(self, rank: int) -> bytes:
        return f"meet {self.step} {self.run} {rank}".encode()


def find_meeting(arguments: list[str], environment: Mapping[str, str]) -> Meeting | None:
    """Return the meeting that the launcher's environment and torchrun's arguments name, or None where there is none."""
    words, secret = environment.get(VARIABLE, "").split(), read_secret(environment)
    if not secret or len(words) != 4 or not all(w.isdecimal() for w in words):
        return None

    def value(option: str) -> str:
        return arguments[arguments.index(option) + 1]  # torchrun's own come before the script's

    job_id, restarts, step, run = map(int, words)
    return Meeting(
        job_id=job_id,
        restarts=restarts,
        step=step,
        run=run,
        nodes=int(value("--nnodes")),
        rank=int(value("--node-rank")),
        address=value("--master-addr"),
        secret=secret,
    )


def random_ports() -> list[int]:
    """Return ports that nobody can foretell, in the range that the nodes of jobs use among one another."""
    return random.SystemRandom().sample(range(FIRST_PORT, FIRST_PORT + PORTS), _TRIES)


def bind_first_free(ports: Iterable[int], *, listens: bool) -> socket.socket:
    """Return a socket on the first free one of `ports`.

    A socket that does not listen yet is seen by no other user, and has a port that no connection had lately. Raises NoMeetingError.
    """
    for port in ports:
        dual = socket.has_dualstack_ipv6()
        candidate = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
        try:
            if dual:
                candidate.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if listens:
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            candidate.bind(("", port))
            if listens:
                candidate.listen(BACKLOG)
            return candidate
        except OSError as error:
            candidate.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise NoMeetingError(
                    "rendezvous", f"no port can be had ({error.strerror})", "tell your admin"
                ) from None
    right = f"see who listens there: ss -ltnp 'sport >= {FIRST_PORT} and sport < {FIRST_PORT + PORTS}'"
    raise NoMeetingError("rendezvous", "all ports that were tried are taken on the first node by other programs", right)
