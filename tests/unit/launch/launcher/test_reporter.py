"""The reporter and the sending of a report: what counts as delivered, and when a report is sent again."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from synergy_core.errors import UnavailableError
from synergy_core.job_report import Report
from synergy_core.wire import munge
from synergy_core.wire import report as wire_report
from synergy_core.wire.report import send
from synergy_launch.launcher.reporter import Reporter


class Wire:
    """`report.send` in memory; the first `fails` deliveries fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: int = 0) -> None:
        self.steps: list[int] = []
        self.fails = fails
        monkeypatch.setattr(wire_report, "send", self)

    def __call__(self, newest: Report, address: str, by: int | None) -> None:
        assert (address, by) == ("ctl:1", None)
        if self.fails:
            self.fails -= 1
            raise UnavailableError("daemon at ctl:1", "away")
        self.steps.append(newest.step)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_only_the_newest_goes_and_urgent_goes_now(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    made = Reporter("ctl:1", every_s=60)
    for step in range(5):
        made.offer(Report(1, 0, step))
    time.sleep(0.05)
    assert wire.steps == []
    made.offer(Report(1, 0, 5), urgent=True)
    until(lambda: wire.steps == [5])
    made.offer(Report(1, 0, 6))
    made.close()
    assert wire.steps == [5, 6]
    assert not made._thread.is_alive()


def test_what_was_not_delivered_is_sent_again_unless_newer_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wire = Wire(monkeypatch, fails=3)
    made = Reporter("ctl:1", every_s=0.01)
    made.offer(Report(1, 0, 1), urgent=True)
    until(lambda: wire.steps == [1])
    made.close()
    assert wire.steps == [1]
    assert capsys.readouterr().err.count("training goes on") == 1  # an absent daemon is one line, not one a try


def test_close_is_quick_with_nothing_to_say_or_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch, fails=99)
    idle, lost = Reporter("ctl:1", every_s=60), Reporter("ctl:1", every_s=60)
    lost.offer(Report(1, 0, 1))
    began = time.monotonic()
    idle.close()
    lost.close()
    assert time.monotonic() - began < 20 and wire.steps == [] and wire.fails == 98


def test_another_daemon_is_found_and_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, str]] = []

    def send(newest: Report, address: str, by: int | None) -> None:
        assert by == 64030
        if address != "ctl2:1":
            raise UnavailableError(f"daemon at {address}", "away")
        told.append((newest.step, address))

    monkeypatch.setattr(wire_report, "send", send)
    made = Reporter("ctl:1", every_s=60, find=lambda: "ctl2:1", by=lambda: 64030)
    made.offer(Report(1, 0, 1), urgent=True)
    until(lambda: told == [(1, "ctl2:1")])
    made.close()


# -- over a socket -----------------------------------------------------------------------------------------------------


class Daemon:
    """A server that takes one report a connection. `answers` holds what it says to each, (seconds until then, bytes); the last
    one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(munge, "encode", lambda payload: "CRED:" + payload.decode())
        self.answers: list[tuple[float, bytes]] = [(0.0, b"ok\n")]
        self.lines: list[bytes] = []
        self._closed = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._server.accept()
                with connection:
                    self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        self.lines.append(b"".join(iter(lambda: connection.recv(4096), b"")))
        wait_s, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self._closed.wait(wait_s)
        for i in range(len(answer)):  # in as many pieces as can be
            connection.sendall(answer[i : i + 1])

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    made = Daemon(monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("answer", [b"", b"okay\n", b"no\n", b"\n", b"\xff" * 9000, b"o", b" \n"])
def test_a_report_without_ok_is_not_delivered(daemon: Daemon, answer: bytes) -> None:
    daemon.answers = [(0.0, answer)]
    with pytest.raises(UnavailableError, match="report not delivered"):
        send(Report(7, 0, 1), daemon.address)
    assert daemon.lines[0].startswith(b"CRED:{")  # it was read: only the answer is missing


@pytest.mark.parametrize("answer", [b"ok\n", b"ok", b"ok nonsense\n"])
def test_ok_is_delivered_and_what_follows_is_no_plan(daemon: Daemon, answer: bytes) -> None:
    daemon.answers = [(0.2, answer)]
    assert send(Report(7, 0, 1), daemon.address, timeout_s=5) is None


@pytest.mark.parametrize("answer", [(30.0, b"ok\n"), (0.0, b"")])
def test_an_answer_that_comes_too_late_is_none(daemon: Daemon, answer: tuple[float, bytes]) -> None:
    daemon.answers = [answer]
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="report not delivered"):
        send(Report(7, 0, 1), daemon.address, timeout_s=0.3)
    assert time.monotonic() - began < 15


def test_an_answer_in_drops_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge, "encode", lambda payload: "CRED:")
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                while not over.wait(0.1):
                    try:
                        connection.sendall(b"o")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="report not delivered"):
            send(Report(7, 0, 1), f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.5)
        assert time.monotonic() - began < 15
        over.set()
        thread.join(5)


def test_an_acknowledgement_whose_ok_was_lost_is_sent_again(daemon: Daemon) -> None:
    daemon.answers = [(0.0, b""), (0.0, b"what?\n"), (0.0, b"ok\n")]
    made = Reporter(daemon.address, every_s=0.1)
    made.offer(Report(7, 0, 5, checkpoint_requests=1), urgent=True)
    until(lambda: len(daemon.lines) == 3)
    time.sleep(0.3)
    made.close()
    assert len(set(daemon.lines)) == 1 and len(daemon.lines) == 3 and b'"checkpoint_requests":1' in daemon.lines[2]


def test_the_newest_status_takes_the_place_of_one_that_was_not_delivered(daemon: Daemon) -> None:
    daemon.answers = [(0.0, b"")]
    made = Reporter(daemon.address, every_s=0.4)
    made.offer(Report(7, 0, 5), urgent=True)
    until(lambda: len(daemon.lines) == 1)
    daemon.answers = [(0.0, b"ok\n")]
    made.offer(Report(7, 0, 6))
    until(lambda: len(daemon.lines) == 2)
    made.close()
    assert [b'"step":6' in line for line in daemon.lines] == [False, True]


def test_tries_are_bounded_however_many_urgent_reports_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    tried_s: list[float] = []

    def away(*_: object) -> None:
        tried_s.append(time.monotonic())
        raise UnavailableError("daemon at ctl:1", "away")

    monkeypatch.setattr(wire_report, "send", away)
    made = Reporter("ctl:1", every_s=1.0)
    step, end = 0, time.monotonic() + 30
    while len(tried_s) < 8 and time.monotonic() < end:
        step += 1
        made.offer(Report(7, 0, step), urgent=True)
        time.sleep(0.002)
    assert len(tried_s) >= 8
    assert min(b - a for a, b in itertools.pairwise(tried_s)) > 0.08  # one each 0.1 s
    made.close()


def test_retries_come_less_often_up_to_a_bound() -> None:
    made = Reporter("127.0.0.1:1", every_s=10.0)
    waits = []
    for failures in (0, 1, 2, 3, 4, 5, 6, 1000):
        made._failures = failures
        waits.append(made._wait_s())
    made._failures = 0
    made.close()
    assert waits[0] == 10.0
    for wait_s, usual_s in zip(waits[1:], (5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0), strict=True):
        assert 0.75 * usual_s <= wait_s <= 1.25 * usual_s
