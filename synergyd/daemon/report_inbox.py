"""Where jobs' reports arrive: a TCP port, one munge credential a line. Nothing here decides; it only checks who sent what."""

from __future__ import annotations

import logging
import socketserver
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synergyd.errors import SynergyError, UsageError
from synergyd.records import Plan, Report
from synergyd.wire import munge
from synergyd.wire.report import MAX_BYTES, answer_line, from_json

log = logging.getLogger("synergyd.inbox")
MAX_WAITING = 100_000
MAX_OPEN = 1000  # connections at a time: whoever opens more keeps nobody's memory


@dataclass(frozen=True)
class ReceivedReport:
    """A report within bounds, and the user who munged says sent it."""

    report: Report
    uid: int


class ReportInbox:
    """Listens from construction on. `take` empties what has arrived; `arrived` is set meanwhile.

    `answers` is what jobs are told when they report, by (job id, restarts): the owner's uid, and the plan whose batch they
    should go on with.
    """

    def __init__(self, host: str, port: int, munge_socket: str = "") -> None:
        """Raises UsageError when the port can't be had."""
        self._waiting: deque[ReceivedReport] = deque(maxlen=MAX_WAITING)
        self.arrived = threading.Event()
        self.answers: Mapping[tuple[int, int], tuple[int, Plan]] = {}  # replaced as a whole: handlers read it meanwhile
        inbox = self
        room = threading.BoundedSemaphore(MAX_OPEN)

        class Handler(socketserver.StreamRequestHandler):
            timeout = 10

            def handle(self) -> None:
                try:
                    line = self.rfile.readline(2 * MAX_BYTES)
                    taken = inbox._accept(line, munge_socket)
                    life = taken.report.job_id, taken.report.restarts
                    uid, plan = inbox.answers.get(life, (None, None))
                    self.wfile.write(_answer(plan if uid == taken.uid else None, life, munge_socket))
                except (SynergyError, OSError) as error:
                    log.warning("report from %s refused: %s", self.client_address[0], error)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            request_queue_size = 512

            def verify_request(self, request: object, client_address: object) -> bool:
                return room.acquire(blocking=False)

            def process_request(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request(request, client_address)
                except BaseException:  # no thread was to be had
                    room.release()
                    raise

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    room.release()

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise UsageError(
                "ReportPort", f"can't listen on port {port} ({error.strerror})", "choose a free port"
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="inbox", daemon=True)
        self._thread.start()

    def take(self) -> list[ReceivedReport]:
        """All that has arrived since the last call."""
        self.arrived.clear()
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()

    def _accept(self, line: bytes, munge_socket: str) -> ReceivedReport:
        credential = munge.decode(line.decode("ascii", "replace").strip(), munge_socket)
        report = from_json(credential.payload)
        received = ReceivedReport(report, credential.uid)
        self._waiting.append(received)
        self.arrived.set()
        return received


def _answer(plan: Plan | None, life: tuple[int, int], munge_socket: str) -> bytes:
    """The answer to a report that was taken; a plan that can't be signed is said at a later one."""
    try:
        return answer_line(plan, *life, munge_socket)
    except SynergyError as error:
        log.warning("answer to job %d without its plan: %s", life[0], error)
        return answer_line(None)
