"""The inbox of jobs' reports: a TCP port, a line each, by munge or signed with a job's key. It only checks who sent what."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from synergy_core.errors import SynergyError, UsageError
from synergy_core.job_report import Report
from synergy_core.wire import job_key, munge
from synergy_core.wire.job_key import SecretFile, SignedReport
from synergy_core.wire.report import MAX_BYTES, ReportAnswer, answer_line, from_json

from synergyd.daemon.ports.bounded_server import BoundedServer, HeldAnswer, ServerBounds
from synergyd.daemon.ports.open_lines import Life, OpenLines
from synergyd.daemon.ports.refusals import Refusals

log = logging.getLogger("synergyd.inbox")
MAX_WAITING = 100_000
MAX_WAITING_USER = 10_000
MAX_WAITING_JOB = 64  # reports of one user about one job
MAX_MARKS, MAX_LIVES = 128, 10_000  # signatures remembered of one incarnation, and incarnations
MAX_OPEN = 1000  # connections at a time
MAX_SOURCE = 128  # connections from one address


@dataclass(frozen=True)
class ReceivedReport:
    """A report within bounds, and the user who sent it, as munged or the key says."""

    report: Report
    uid: int


class ReportInbox:
    """The inbox of reports, which listens from construction on. `take` empties what has arrived; `arrived` is set meanwhile.

    `answers` is what jobs are told when they report, by (job id, restarts): the owner's uid, and the message. `owners` holds the
    owners of the running jobs, likewise: their launchers' connections stay open as `lines`.
    """

    def __init__(self, host: str, port: int, munge_socket: str = "", secret: SecretFile | None = None) -> None:
        """Start listening. If `secret` is None, only munge's lines are taken. Raises UsageError when the port can't be had."""
        self._lock = threading.Lock()
        self._waiting: list[ReceivedReport] = []
        self._of_job: Counter[tuple[int, int]] = Counter()  # count of waiting reports, by (uid, job id)
        self._of_user: Counter[int] = Counter()
        self.arrived = threading.Event()
        self.answers: Mapping[
            tuple[int, int], tuple[int, ReportAnswer]
        ] = {}  # replaced as a whole: handlers read it meanwhile
        self.owners: Mapping[Life, int] = {}  # likewise
        self.lines = OpenLines()
        self._munge_socket, self._secret = munge_socket, secret
        # signatures of the latest lines by job and incarnation, so that none counts twice
        self._seen: dict[tuple[int, int], deque[str]] = {}
        self._refusals = Refusals(log, "report")
        bounds = ServerBounds(max_bytes=2 * MAX_BYTES, max_open=MAX_OPEN, max_source=MAX_SOURCE)
        try:
            self._server = BoundedServer((host, port), b"\n", self._answer, self._refusals, bounds)
        except OSError as error:
            raise UsageError(
                "ReportPort", f"can't listen on port {port} ({error.strerror})", "choose a free port"
            ) from None
        self.port = self._server.port

    @property
    def refusals(self) -> Mapping[str, int]:
        """Return the reports and connections turned away since the start, by cause."""
        return self._refusals.counts

    def take(self) -> list[ReceivedReport]:
        """Return everything that has arrived since the last call."""
        with self._lock:
            self.arrived.clear()
            reports, self._waiting = self._waiting, []
            self._of_job.clear()
            self._of_user.clear()
        return reports

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        self.lines.retain(())

    def tell(self, answers: Mapping[Life, tuple[int, ReportAnswer]], owners: Mapping[Life, int]) -> None:
        """Take what jobs are told from now on. Those that are told anything new are asked to report at once."""
        fresh = [life for life, answer in answers.items() if self.answers.get(life) != answer]
        self.answers, self.owners = answers, owners
        self.lines.retain(owners.keys())
        for life in fresh:
            self.lines.knock(life)

    def _answer(self, line: bytes, source: str) -> bytes | HeldAnswer:
        """Return the answer to one report, or b"" for one that is refused, which its sender keeps for later."""
        signed = None
        try:
            text = line.decode("ascii", "replace").strip()
            if text.startswith(job_key.PREFIX):
                signed, payload = self._open_line(text)
                uid = signed.key.uid
            else:
                credential = munge.decode(text, self._munge_socket)
                payload, uid = credential.payload, credential.uid
        except SynergyError as error:
            self._refusals.add("credential", source, str(error))
            return b""
        try:
            received = ReceivedReport(from_json(payload), uid)
            life = received.report.job_id, received.report.restarts
            if signed is not None and life != signed.incarnation:
                raise UsageError(
                    "report", f"is signed with the key of job {signed.incarnation[0]}, restart {signed.incarnation[1]}"
                )
        except SynergyError as error:
            self._refusals.add("report", source, f"of uid {uid}: {error}")
            return b""
        if self.owners.get(life, uid) != uid:
            # the loop drops it: an answer of another kind would tell a stranger which jobs there are
            self._refusals.add("owner", source, f"job {life[0]} is not uid {uid}'s")
        if not self._keep(received):
            self._refusals.add("flood", source, f"uid {received.uid} sends faster than reports are taken")
            return b""
        owner, order = self.answers.get(life, (None, None))
        answer = _answer(order if owner == received.uid else None, life, self._munge_socket, signed)
        report = received.report
        if self.owners.get(life) != received.uid or not report.listens:
            return answer
        if report.ended:
            self.lines.drop(life, report.launcher)
            return answer
        return HeldAnswer(answer, lambda wire: self._hold(wire, life, report.launcher, order))

    def _hold(self, wire: socket.socket, life: Life, launcher: str, order: ReportAnswer | None) -> None:
        self.lines.add(life, launcher, wire)
        if self.answers.get(life, (None, None))[1] != order:  # it came between the answer and this
            self.lines.knock(life)

    def _open_line(self, text: str) -> tuple[SignedReport, bytes]:
        """Return the signed report of a line, and its payload. Raises UsageError."""
        try:
            secret = self._secret.read() if self._secret else b""
        except OSError:  # JobKeys tells of it, and hands no key out
            secret = b""
        report_and_payload = job_key.open_line(text, secret, time.time())
        life, mark = report_and_payload[0].incarnation, report_and_payload[0].signature
        with self._lock:
            marks = self._seen.pop(life, None) or deque(maxlen=MAX_MARKS)
            self._seen[life] = marks  # the newest last
            if len(self._seen) > MAX_LIVES:
                del self._seen[next(iter(self._seen))]
            if mark in marks:
                raise UsageError("report", "was sent before")
            marks.append(mark)
        return report_and_payload

    def _keep(self, received: ReceivedReport) -> bool:
        key = received.uid, received.report.job_id
        with self._lock:
            if (
                self._of_job[key] >= MAX_WAITING_JOB
                or self._of_user[received.uid] >= MAX_WAITING_USER
                or len(self._waiting) >= MAX_WAITING
            ):
                return False
            self._of_job[key] += 1
            self._of_user[received.uid] += 1
            self._waiting.append(received)
            self.arrived.set()
        return True


def _answer(order: ReportAnswer | None, life: tuple[int, int], munge_socket: str, signed: SignedReport | None) -> bytes:
    """Return the answer to a report that was taken. If what the job is told can't be signed, it is left out and said at a later report."""
    try:
        return answer_line(order, *life, munge_socket, signed)
    except SynergyError as error:
        log.warning("answer to job %d without what it is told: %s", life[0], error)
        return answer_line(None)
