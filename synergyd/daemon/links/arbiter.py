"""The link arbiter's shell: a port where running jobs ask before their all-reduces, one thread, no decision.

links/arbiter.py says which jobs may send. This module holds connections, credentials (checked in threads that may block, as munged may),
and the handling of a job's several reduction groups (channels): the first that asks asks for the job, the last that ends ends its
message. The daemon says by `follow` which jobs there are; any other is turned away, and then is not gated.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from synergy_core.errors import SynergyError, UsageError, one_line
from synergy_core.wire import munge
from synergy_core.wire.link_protocol import (
    MAX_HELLO_BYTES,
    MAX_LINE_BYTES,
    Hello,
    Question,
    answer_line,
    read_hello,
    read_question,
    welcome_line,
    welcome_text,
)

from synergyd.daemon.links.chooser import JobObservations, LinkChooser
from synergyd.daemon.links.sessions import ArbiterCounts, JobSessions, LineBound, Session, set_up_socket
from synergyd.links.arbiter import (
    ArbiterState,
    ArbiterTerms,
    ArbiterTick,
    Event,
    JobJoined,
    JobLeft,
    SendDone,
    SendGrant,
    asks_in_vain,
    step,
    wake_s,
)
from synergyd.links.disciplines import Discipline

log = logging.getLogger("synergyd.links")
MAX_OPEN = 4096  # connections at a time
MAX_UNKNOWN = 256  # connections among them that have not said who they are
MAX_UNKNOWN_SOURCE = 64  # such connections from one address: one node's jobs connect at the same time
MAX_CHECKS = 8  # credentials being checked at a time
LINES_A_TURN = 16  # for one connection
MAX_READ_BYTES = 2048  # from a known connection, at a time
PUT_OFF_S = 0.005
HELLO_S = 10.0  # for a credential to arrive and to be checked
_SWEEP_S = 1.0
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True)
class Member:
    """A running job as the daemon knows it. `left_s`: its remaining seconds of training, inf if it does not tell."""

    uid: int
    restarts: int
    nodes: tuple[str, ...]
    gpus: int
    left_s: float


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. Raises UsageError when the port can't be had."""
    try:
        return socket.create_server((host, port), backlog=512)
    except OSError as error:
        what = f"can't listen on port {port} ({error.strerror})"
        raise UsageError("LinkArbiterPort", what, "choose a free port") from None


class LinkArbiter:
    """The arbiter, which answers on `listener` from construction on, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        terms: ArbiterTerms | None = None,
        *,
        decode: Callable[[str], munge.Credential] = munge.decode,
        encode: Callable[[bytes], str] = munge.encode,
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the arbiter.

        `on_failure` is called, last of all, in a thread that ends by a fault of its own: nobody is answered any more.
        """
        self.terms = terms or ArbiterTerms()
        self.counts = ArbiterCounts()
        self._decode, self._encode, self._clock, self._on_failure = decode, encode, clock, on_failure
        self._members: Mapping[int, Member] = {}
        self._state = ArbiterState()
        self._seen = JobObservations()
        self._jobs: dict[int, JobSessions] = {}
        self._sessions: set[Session] = set()
        self._calls: deque[Callable[[], None]] = deque()  # from other threads, to be made in this one
        self._checks = 0
        self._to_check: deque[tuple[Session, bytes]] = deque()
        self._unknown: set[Session] = set()
        self._line_bounds: dict[int, LineBound] = {}  # by job
        # not read from: more lines have come than its turn takes, or (True) its job's bound
        self._put_off: dict[Session, bool] = {}
        self._deaf = False  # the listener is not looked at until the next sweep: there is no room
        self._closing = False
        self._listener = listener
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._awake = socket.socketpair()
        self._wake.setblocking(False)
        self._awake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._live, name="link-arbiter", daemon=True)
        self._thread.start()
        self._chooser = LinkChooser(lambda: (self._state, self.terms), self._seen, self._choose, clock)

    @property
    def connections(self) -> int:
        """Return the number of connections that are open now."""
        return len(self._sessions)

    def follow(self, members: Mapping[int, Member]) -> None:
        """Replace the jobs by `members`, by id. The daemon calls this after each look at Slurm. Never waits."""
        self._call(lambda: self._follow(dict(members)))

    def close(self) -> None:
        """Stop the arbiter; every job goes on ungated."""
        self._closing = True
        self._chooser.close()
        self._call(lambda: None)
        self._thread.join(5.0)

    # -- in the arbiter's thread -----------------------------------------------------------------------------------

    def _call(self, what: Callable[[], None]) -> None:
        self._calls.append(what)
        with contextlib.suppress(BlockingIOError, OSError):  # full: it is awake already
            self._wake.send(b".")

    def _live(self) -> None:
        try:
            self._serve()
        except BaseException:
            log.exception("the link arbiter's loop ended by a fault")
            self._on_failure()

    def _choose(self, disciplines: Mapping[int, Discipline]) -> None:
        """Put the choice in force. Called in the look-ahead's thread."""
        self._call(
            lambda: setattr(
                self, "terms", replace(self.terms, disciplines=disciplines if self.terms.look_ahead else {})
            )
        )

    def _serve(self) -> None:
        swept_s = self._clock()
        while not self._closing:
            due = wake_s(self._state, self.terms)
            wait_s = _SWEEP_S if due is None else min(_SWEEP_S, max(0.0, due - self._clock()))
            if self._put_off:
                wait_s = min(wait_s, PUT_OFF_S) if all(self._put_off.values()) else 0.0
            for key, _ in self._selector.select(wait_s):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._awake:
                    with contextlib.suppress(BlockingIOError):
                        self._awake.recv(4096)
                elif key.data in self._sessions:
                    self._read(key.data)
            for session in list(self._put_off):
                self._read_lines(session)
            while self._calls:
                self._calls.popleft()()
            now_s = self._clock()
            due = wake_s(self._state, self.terms)
            if now_s - swept_s >= _SWEEP_S or (due is not None and due <= now_s):
                swept_s = now_s
                if self._deaf:
                    self._deaf = False
                    self._selector.register(self._listener, selectors.EVENT_READ)
                self._event(ArbiterTick())
                for late in [s for s in self._unknown if now_s - s.since_s > HELLO_S]:
                    self._end(late, "no credential in time")
        for session in list(self._sessions):
            self._end(session)
        self._selector.close()
        for endpoint in (self._listener, self._wake, self._awake):
            endpoint.close()

    def _accept(self) -> None:
        try:
            wire, address = self._listener.accept()
        except OSError as error:  # gone again, or no file descriptor left: whoever asks is not gated
            if error.errno in _NO_ROOM:  # it would be readable again at once, and nothing else be done
                log.warning("link arbiter: no connection can be taken (%s)", error.strerror)
                self._selector.unregister(self._listener)
                self._deaf = True
            return
        source = str(address[0])
        alike = [s for s in self._unknown if s.source == source]
        for full, idle in (
            (len(alike) >= MAX_UNKNOWN_SOURCE, alike),
            (len(self._unknown) >= MAX_UNKNOWN, self._unknown),
        ):
            if full:  # the one that has been silent longest makes room
                silent = [s for s in idle if not s.checking]
                if silent:
                    self._end(min(silent, key=lambda s: s.since_s), "no credential, and others wait")
        if len(self._sessions) >= MAX_OPEN or len(self._unknown) >= MAX_UNKNOWN:
            self.counts = replace(self.counts, refused=self.counts.refused + 1)
            wire.close()
            return
        set_up_socket(wire)
        session = Session(wire, self._clock(), source)
        self._sessions.add(session)
        self._unknown.add(session)
        self._selector.register(wire, selectors.EVENT_READ, session)

    def _read(self, session: Session) -> None:
        try:
            more = session.wire.recv(65536 if session.hello is None else MAX_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self._end(session)
            return
        session.received += more
        if session.hello is None:
            self._read_credential(session)
            return
        self._read_lines(session)

    def _read_lines(self, session: Session) -> None:
        """Take in the lines that have come, a few at a time: the others' turn comes in between.

        One of a job that has sent too many is neither read nor answered until it may send again.
        """
        assert session.hello is not None
        bound, now_s, turn = (
            self._line_bounds.setdefault(session.hello.job_id, LineBound()),
            self._clock(),
            LINES_A_TURN,
        )
        while session in self._sessions and b"\n" in session.received and turn and bound.take(now_s):
            line, _, session.received = session.received.partition(b"\n")
            turn -= 1
            try:
                self._take(session, line)
            except UsageError as error:
                self._end(session, str(error))
        if session not in self._sessions:
            return
        if b"\n" in session.received:
            if session not in self._put_off:
                self._selector.unregister(session.wire)
            self._put_off[session] = turn > 0
        elif len(session.received) > MAX_LINE_BYTES:
            self._end(session, "a line without an end")
        elif session in self._put_off:
            del self._put_off[session]
            self._selector.register(session.wire, selectors.EVENT_READ, session)

    def _read_credential(self, session: Session) -> None:
        line, newline, rest = session.received.partition(b"\n")
        if session.checking or rest or len(session.received) > MAX_HELLO_BYTES:
            self._end(session, "more than a credential")  # before the welcome there is nothing to say
            return
        if not newline:
            return
        session.checking = True
        session.received = b""
        self._to_check.append((session, line))
        self._begin_checks()

    def _begin_checks(self) -> None:
        """Begin as many checks as may run at a time. The others wait in turn, until HELLO_S after they came."""
        while self._to_check and self._checks < MAX_CHECKS:
            session, line = self._to_check.popleft()
            if session in self._sessions:
                self._begin_check(session, line)

    def _begin_check(self, session: Session, line: bytes) -> None:
        check = threading.Thread(target=self._check, args=(session, line), name="link-arbiter-check", daemon=True)
        try:
            check.start()
        except RuntimeError:  # no more threads
            self._end(session, "busy")
            return
        self._checks += 1

    def _check(self, session: Session, line: bytes) -> None:
        """Check a credential, in a thread of its own."""
        check_result: tuple[Hello, int, bytes] | None = None
        problem = "the credential can't be checked"
        try:
            credential = self._decode(line.decode("ascii", "replace").strip())
            hello = read_hello(credential.payload)
            welcome = welcome_line(self._encode(welcome_text(hello, self.terms.bound_s)))
            check_result = hello, credential.uid, welcome
        except SynergyError as error:
            problem = str(error)
        finally:  # after any error: else there would be one check less for ever
            self._call(lambda: self._take_check(session, check_result, problem))

    def _take_check(self, session: Session, check_result: tuple[Hello, int, bytes] | None, problem: str) -> None:
        self._checks -= 1
        session.checking = False
        self._begin_checks()
        if session not in self._sessions:
            return
        if check_result is None:
            self._end(session, problem)
            return
        hello, uid, welcome = check_result
        member = self._members.get(hello.job_id)
        # a stranger is not told which jobs there are
        if member is None or member.uid != uid:
            self._end(session, f"job {hello.job_id} is not known as a running job of uid {uid}")
        elif (member.restarts, set(member.nodes)) != (hello.restarts, set(hello.nodes)):
            self._end(session, f"job {hello.job_id} is another incarnation here")
        else:
            old = self._jobs[hello.job_id].sessions if hello.job_id in self._jobs else set()
            for other in [s for s in old if s.hello and s.hello.channel == hello.channel]:
                self._end(other, "connected anew")
            job = self._jobs.get(hello.job_id)
            if job is not None and len(job.sessions) >= max(1, member.gpus):
                self._end(session, f"job {hello.job_id} has a connection for each of its GPUs")
                return
            session.hello = hello
            self._unknown.discard(session)
            if job is None:  # also where that other one was all there was of the job
                job = self._jobs[hello.job_id] = JobSessions()
                self._event(JobJoined(hello.job_id, member.nodes, member.gpus, member.left_s))
            job.sessions.add(session)
            self._say(session, welcome)

    def _take(self, session: Session, line: bytes) -> None:
        """Take one line of a job that is known. Raises UsageError."""
        assert session.hello is not None
        job_id = session.hello.job_id
        job = self._jobs[job_id]
        question = read_question(line)
        if not isinstance(question, Question):
            self._end_message(session, job)
            return
        self._end_message(session, job)  # whoever asks again has ended what it was granted before
        self.counts = replace(self.counts, asked=self.counts.asked + 1)
        if job.sending:
            job.sending.add(session)  # the job has the link: its groups do not wait for one another
            self._say(session, answer_line("go", question.number))
            return
        waiting = any(s.asked for s in job.sessions)
        session.asked = question.number
        if not waiting:
            self._event(self._seen.question(job_id, question, self._state, self.terms))
        if session.asked and session in self._sessions:
            self.counts = replace(self.counts, waited=self.counts.waited + 1)
            self._say(session, answer_line("wait", question.number))

    def _end_message(self, session: Session, job: JobSessions) -> None:
        """Note that the session's message is over, or that it does not wait for one any more."""
        assert session.hello is not None
        session.asked = 0
        if session in job.sending:
            job.sending.discard(session)
            if not job.sending:
                self._event(SendDone(session.hello.job_id))

    def _event(self, event: Event) -> None:
        now_s = self._clock()
        self._seen.note(event, now_s)
        self._state, grants = step(self._state, event, now_s, self.terms)
        for grant in grants:
            self._grant(grant)

    def _grant(self, grant: SendGrant) -> None:
        job = self._jobs.get(grant.job_id)
        if job is None:
            return
        self.counts = replace(self.counts, bound=self.counts.bound + (grant.why == "bound"))
        free = asks_in_vain(self._state, grant.job_id, self.terms)
        free = free and self._seen.can_be_dismissed(grant.job_id, grant.job_id in self.terms.disciplines)
        for session in [s for s in job.sessions if s.asked]:
            number, session.asked = session.asked, 0
            job.sending.add(session)
            self._say(session, answer_line("free" if free else "go", number))

    def _say(self, session: Session, line: bytes) -> None:
        try:
            if session.wire.send(line) == len(line):
                return
        except OSError:
            pass
        # it does not read; the loop ends it, for this may be the middle of another job's event
        self._call(lambda: self._end(session))

    def _end(self, session: Session, why: str = "") -> None:
        """Close a connection and free what it held."""
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        self._unknown.discard(session)
        if session in self._put_off:
            del self._put_off[session]
        else:
            self._selector.unregister(session.wire)
        if why:
            self.counts = replace(self.counts, refused=self.counts.refused + 1)
            log.info("link arbiter: %s", one_line(why, 200))
            with contextlib.suppress(OSError):
                session.wire.send(f"no {one_line(why, 200)}\n".encode())
        session.wire.close()
        if session.hello is None:
            return
        job_id = session.hello.job_id
        job = self._jobs[job_id]
        waited = bool(session.asked)
        self._end_message(session, job)
        job.sessions.discard(session)
        if not job.sessions:
            del self._jobs[job_id]
            self._event(JobLeft(job_id))
        elif waited and not job.sending and not any(s.asked for s in job.sessions):
            self._event(JobLeft(job_id))  # nobody waits for its grant any more
            member = self._members.get(job_id)
            if member is not None:
                self._event(JobJoined(job_id, member.nodes, member.gpus, member.left_s))

    def _follow(self, members: Mapping[int, Member]) -> None:
        before, self._members = self._members, members
        self._line_bounds = {job_id: bound for job_id, bound in self._line_bounds.items() if job_id in members}
        for job_id, job in list(self._jobs.items()):
            old, new = before.get(job_id), members.get(job_id)
            if new is None or old is None or (new.uid, new.restarts, new.nodes) != (old.uid, old.restarts, old.nodes):
                for session in list(job.sessions):
                    self._end(session, f"job {job_id} no longer runs as it did")
            elif new != old:
                self._event(JobJoined(job_id, new.nodes, new.gpus, new.left_s))
        for job_id, was in before.items():
            now = members.get(job_id)
            if now is None or (now.uid, now.restarts, now.nodes) != (was.uid, was.restarts, was.nodes):
                self._seen.forget(job_id)
