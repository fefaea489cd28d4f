"""A job's side of the link arbiter: `begin` before an all-reduce between nodes, `end` when it has arrived.

The gate fails open. Only an arbiter that is connected and answers within ANSWER_S is ever asked; connecting, credentials and
back-off (1 s, doubled up to 60 s) are a thread's of its own. A wait ends at the arbiter's bound, whatever happens; an arbiter that lets
several of them run out is not asked for an hour. Only the daemon's user, root and the job's own, by munge, are accepted as the
arbiter. No torch here.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from synergy_core.errors import SynergyError, UnavailableError, UsageError, one_line
from synergy_core.wire import munge
from synergy_core.wire.hostlist import expand
from synergy_core.wire.link_protocol import (
    FREE_S,
    LEAST_OF,
    Hello,
    Question,
    ask_line,
    done_line,
    encode_hello,
    read_answer,
    read_welcome,
    read_welcome_bound,
)

ADDRESS = "SYNERGY_LINK_ARBITER"
BY = "SYNERGY_LINK_ARBITER_UID"  # the daemon's
ANSWER_S = 0.05  # an arbiter that takes longer to say `go` or `wait` is slow: not asked again for a while
MAX_BOUND_S = 10.0  # the longest wait, whatever the arbiter's bound is
CONNECT_S, WELCOME_S = 5.0, 15.0
FIRST_BACK_OFF_S, MAX_BACK_OFF_S = 1.0, 60.0
MAX_RAN_OUT, GIVEN_UP_S = 4, 3600.0  # after so many waits that no answer ended, the arbiter is not asked for so long
_GOOD = 20  # answers in time before earlier failures are forgotten


@dataclass(frozen=True)
class GateCounts:
    """Counts of a gate: questions, those that had to wait, seconds waited in all, failures, and the last one's reason."""

    asked: int = 0
    waited: int = 0
    waited_s: float = 0.0
    failures: int = 0
    problem: str = ""


def from_environment(environment: Mapping[str, str], channel: int = 0) -> LinkGate | None:
    """Return the gate that the launcher's environment asks for.

    Returns None where it asks for none, where the job has one node, or where a part of it makes no sense: gating never stops a job.
    """
    address = environment.get(ADDRESS, "")
    if not address:
        return None
    try:
        nodes = expand(environment.get("SLURM_JOB_NODELIST", ""))
        hello = Hello(int(environment["SLURM_JOB_ID"]), int(environment.get("SYNERGY_RESTARTS") or 0), nodes, channel)
        host, _, port = address.rpartition(":")
        where = host.strip("[]"), int(port)
        by = int(environment[BY]) if environment.get(BY) else None
    except (KeyError, ValueError, UsageError):
        return None
    return LinkGate(where, hello, by=by) if len(nodes) > 1 else None


class LinkGate:
    """One reduction group's gate. `begin` and `end` are called in turns, `end` from any thread."""

    def __init__(
        self,
        address: tuple[str, int],
        hello: Hello,
        *,
        by: int | None = None,
        munge_socket: str = "",
        encode: Callable[[bytes, str], str] = munge.encode,
        decode: Callable[[str, str], munge.Credential] = munge.decode,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the gate up. `by`: the arbiter's uid, where it is neither root's nor this process's."""
        self.counts = GateCounts()
        self._address, self._hello, self._encode, self._decode = address, hello, encode, decode
        self._trusted = {0, os.getuid()} | ({by} if by is not None else set())
        self._munge_socket, self._monotonic = munge_socket, monotonic
        self._wire: socket.socket | None = None
        self._rest = b""
        self._bound_s = 0.0
        self._poll = select.poll()
        self._number = 0
        self._held = 0  # the question whose grant is in use; 0: none
        self._since = 0.0
        self._free_until = 0.0  # the arbiter need not be asked before
        self._good = self._bad = 0
        self._ran_out = 0  # waits that no answer ended
        self._took: deque[float] = deque(maxlen=LEAST_OF)
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._keep_connection, name="synergy-link-gate", daemon=True)
        self._thread.start()

    @property
    def is_asking(self) -> bool:
        """Return whether `begin` would ask now: the arbiter is there, and has not said that asking is in vain."""
        return self._wire is not None and self._monotonic() >= self._free_until

    def begin(self, size_bytes: int) -> float:
        """Wait until a message of `size_bytes` that is ready may go, until the arbiter's bound at the latest. Return the seconds waited."""
        self.end()  # ends what was begun before, where its end was not reported
        wire = self._wire
        if wire is None or not self.is_asking:
            return 0.0
        began = self._monotonic()
        self._number += 1
        exposed_s = min(self._took, default=0.0)
        must_wait = False
        try:
            wire.send(ask_line(Question(self._number, size_bytes / 1e6, exposed_s)))
            until = began + ANSWER_S
            while (word := self._answer(wire, until)) == "wait":
                must_wait = True
                until = began + self._bound_s + ANSWER_S
        except (OSError, SynergyError) as error:
            late = isinstance(error, TimeoutError)
            self._ran_out += late and must_wait
            self._drop(wire, "it is slow" if late else one_line(str(error), 200))
            word = ""
        now = self._monotonic()
        waited_s = now - began
        counts = self.counts
        self.counts = GateCounts(
            counts.asked + 1, counts.waited + must_wait, counts.waited_s + waited_s, counts.failures, counts.problem
        )
        if word == "free":
            self._free_until = now + FREE_S
        if word in ("go", "free"):
            self._good += 1
            if self._good >= _GOOD:
                self._bad = 0
            self._since, self._held = now, self._number
        return waited_s

    def end(self) -> None:
        """Tell the arbiter, if it was asked, that the message has arrived. Never waits."""
        with self._changed:
            question, self._held = self._held, 0
            wire = self._wire
        if not question or wire is None:
            return
        self._took.append(self._monotonic() - self._since)
        try:
            wire.send(done_line(question))
        except OSError as error:
            self._drop(wire, one_line(str(error), 200))

    def wait_for_connection(self, timeout_s: float) -> bool:
        """Return whether the arbiter can be asked, as soon as it can within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._wire is not None, timeout_s)

    def close(self) -> None:
        """Let the arbiter go; from then on `begin` returns at once."""
        with self._changed:
            self._closed = True
            wire, self._wire = self._wire, None
            self._changed.notify_all()
        if wire is not None:
            wire.close()

    def _answer(self, wire: socket.socket, until: float) -> str:
        """Return the next word about the present question. Raises OSError, UnavailableError."""
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                word_and_number = read_answer(line)
                if word_and_number is None:
                    raise UnavailableError("link arbiter", f"answered {line[:40]!r}")
                if word_and_number[1] == self._number:
                    return word_and_number[0]
                continue
            left_s = until - self._monotonic()
            if left_s <= 0:
                raise TimeoutError
            if not self._poll.poll(left_s * 1000.0):
                raise TimeoutError
            more = wire.recv(4096)
            if not more or len(self._rest) > 4096:
                raise UnavailableError("link arbiter", "ended the connection")
            self._rest += more

    def _drop(self, wire: socket.socket, why: str) -> None:
        """Drop the connection; nothing more is asked until the thread has connected again, after a back-off."""
        with self._changed:
            if self._wire is wire:
                self._wire = None
                self._note_failure(why)
                self._changed.notify_all()
        wire.close()

    def _note_failure(self, why: str) -> None:
        self._good = 0
        self._bad += 1
        counts = self.counts
        self.counts = GateCounts(counts.asked, counts.waited, counts.waited_s, counts.failures + 1, why)

    def _keep_connection(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._wire is None)
                if not self._closed and self._bad:
                    back_off_s = min(MAX_BACK_OFF_S, FIRST_BACK_OFF_S * 2 ** min(self._bad - 1, 10))
                    if self._ran_out >= MAX_RAN_OUT:
                        back_off_s, self._ran_out = GIVEN_UP_S, 0
                    # jittered: an arbiter that comes back is not met by all jobs at once
                    self._changed.wait_for(lambda: self._closed, back_off_s * random.uniform(0.75, 1.25))
                if self._closed:
                    return
            try:
                wire, bound_s = self._connect()
            except (OSError, SynergyError, ValueError, OverflowError) as error:
                with self._changed:
                    self._note_failure(one_line(str(error), 200))
                continue
            with self._changed:
                if self._closed:
                    wire.close()
                    return
                wire.setblocking(False)
                # one call waits and one reads; a timeout on the socket would cost several more
                self._poll = select.poll()
                self._poll.register(wire, select.POLLIN)
                self._rest, self._bound_s, self._wire = b"", bound_s, wire
                self._changed.notify_all()

    def _connect(self) -> tuple[socket.socket, float]:
        """Return a connection on which questions may be asked, and the arbiter's bound. Raises OSError, UnavailableError."""
        hello = replace(self._hello, nonce=secrets.token_hex(8))
        credential = self._encode(encode_hello(hello), self._munge_socket)
        with contextlib.ExitStack() as undo:
            wire = undo.enter_context(socket.create_connection(self._address, timeout=CONNECT_S))
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.sendall(credential.encode("ascii") + b"\n")
            line = b""
            until = self._monotonic() + WELCOME_S
            while not line.endswith(b"\n") and len(line) < 4096:
                wire.settimeout(max(0.001, until - self._monotonic()))
                more = wire.recv(1)
                if not more:
                    break
                line += more
            welcome = read_welcome(line)
            if welcome is None:
                refusal = line.decode("ascii", "replace").strip() or "ended the connection"
                raise UnavailableError("link arbiter", refusal)
            signed = self._decode(welcome, self._munge_socket)
            bound_s = read_welcome_bound(signed.payload, hello)
            if bound_s is None or signed.uid not in self._trusted:
                raise UnavailableError(
                    "link arbiter", f"uid {signed.uid} sent a welcome that is not the daemon's to this job"
                )
            undo.pop_all()
            return wire, min(bound_s, MAX_BOUND_S)
