"""Strangers at the daemon's ports: slow ones, many of them, and those that send too much."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from synergy_core.job_report import Report
from synergy_core.wire.report import to_json

from synergyd.daemon.metrics import PrometheusMetrics
from synergyd.daemon.ports.bounded_server import BoundedServer, ServerBounds
from synergyd.daemon.ports.refusals import Refusals
from synergyd.daemon.ports.report_inbox import MAX_WAITING_JOB, ReportInbox
from tests.unit.daemon.test_parts import decode, send

SLOW = 1000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def slow_strangers(port: int, number: int = SLOW, every_s: float = 0.2) -> Iterator[Callable[[], int]]:
    """`number` connections that send a byte now and then, and come back when they are closed; gives how often they did."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    stop, rounds, anew = threading.Event(), threading.Event(), 0

    def attack() -> None:
        nonlocal anew
        wires: list[socket.socket | None] = [None] * number
        while not stop.is_set():
            for n, wire in enumerate(wires):
                if stop.is_set():
                    break
                try:
                    if wire is None:
                        wires[n] = socket.create_connection(("127.0.0.1", port), timeout=1)
                        wires[n].setblocking(False)  # type: ignore[union-attr]
                        anew += 1
                    else:
                        wire.send(b"M")
                        with contextlib.suppress(BlockingIOError):
                            if not wire.recv(1):
                                raise ConnectionResetError
                except OSError:
                    if wire is not None:
                        wire.close()
                    wires[n] = None
            rounds.set()
            stop.wait(every_s)
        for wire in wires:
            if wire is not None:
                wire.close()

    thread = threading.Thread(target=attack, daemon=True)
    thread.start()
    assert rounds.wait(30)
    try:
        yield lambda: anew
    finally:
        stop.set()
        thread.join(30)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def delivered(port: int, line: bytes) -> bool:
    """As a reporter does: what gets no ok is sent again. A busy machine may be late with one of them."""
    for _ in range(3):
        try:
            if send(port, line) == b"ok\n":
                return True
        except OSError:
            pass
    return False


def test_no_report_is_lost_beside_a_thousand_slow_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergyd.daemon.ports.report_inbox.munge.decode", decode)
    inbox = ReportInbox("127.0.0.1", 0)
    lost, slowest_s = [], 0.0
    with slow_strangers(inbox.port) as came:
        for n in range(100):  # from the strangers' own address
            began = time.monotonic()
            if not delivered(inbox.port, b"5:" + to_json(Report(n + 1, 0, 1)).hex().encode() + b"\n"):
                lost.append(n)
            slowest_s = max(slowest_s, time.monotonic() - began)
            time.sleep(0.01)
        assert came() >= SLOW
    assert lost == [] and slowest_s < 15.0
    assert sorted({r.report.job_id for r in inbox.take()}) == list(range(1, 101))
    assert inbox.refusals["room"] > 100
    inbox.close()


def test_metrics_are_read_beside_slow_strangers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    metrics = PrometheusMetrics(port)
    with slow_strangers(port, 200):
        for _ in range(10):
            answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)
            assert answer.status == 200 and b"synergy_store_healthy" in answer.read()
    for request, status in ((b"POST / HTTP/1.1\r\n\r\n", b" 405 "), (b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", b" 200 ")):
        assert status in send(port, request).partition(b"\r\n")[0]
    metrics.close()


@pytest.fixture
def refusals() -> Refusals:
    return Refusals(logging.getLogger("test"), "line")


def echo(request: bytes, source: str) -> bytes:
    if request == b"fail\n":
        raise ZeroDivisionError("a fault")
    return source.encode() + b":" + request * (2_000_000 if request == b"much\n" else 1)


def test_a_byte_now_and_then_does_not_move_the_deadline(refusals: Refusals) -> None:
    server = BoundedServer(("127.0.0.1", 0), b"\n", echo, refusals, ServerBounds(deadline_s=0.5))
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 30:
                wire.sendall(b"x")
                time.sleep(0.05)
    assert time.monotonic() - began < 20.0 and refusals.counts == {"late": 1}
    server.close()


def test_who_does_not_read_the_answer_holds_up_nobody(refusals: Refusals) -> None:
    server = BoundedServer(
        ("127.0.0.1", 0), b"\n", echo, refusals, ServerBounds(deadline_s=3.0, workers=1, max_source=8)
    )
    deaf = []
    for _ in range(4):
        wire = socket.socket()
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        wire.connect(("127.0.0.1", server.port))
        wire.sendall(b"much\n")
        deaf.append(wire)
    assert send(server.port, b"hello\n") == b"127.0.0.1:hello\n"
    end = time.monotonic() + 60
    while refusals.counts.get("late", 0) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    assert refusals.counts == {"late": 4}
    for wire in deaf:
        wire.close()
    server.close()


def test_a_fault_costs_its_own_request_alone(refusals: Refusals) -> None:
    server = BoundedServer(("127.0.0.1", 0), b"\n", echo, refusals, ServerBounds(workers=1, max_bytes=100))
    assert send(server.port, b"fail\n") == b""
    assert send(server.port, b"half") == b"127.0.0.1:half"  # the end of the input ends a request
    with contextlib.suppress(OSError):
        assert send(server.port, b"x" * 200) == b""
    assert send(server.port, b"one\ntwo\n") == b"127.0.0.1:one\n"
    assert refusals.counts == {"fault": 1, "long": 1}
    server.close()


def test_one_job_can_not_fill_the_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergyd.daemon.ports.report_inbox.munge.decode", decode)
    inbox = ReportInbox("127.0.0.1", 0)
    line = to_json(Report(7, 0, 1)).hex().encode() + b"\n"
    answers = [send(inbox.port, b"5:" + line) for _ in range(MAX_WAITING_JOB + 3)]
    assert answers.count(b"ok\n") == MAX_WAITING_JOB and inbox.refusals == {"flood": 3}
    assert send(inbox.port, b"6:" + line) == b"ok\n"  # another user's word about the same job is kept apart
    assert len(inbox.take()) == MAX_WAITING_JOB + 1
    assert send(inbox.port, b"5:" + line) == b"ok\n"
    inbox.close()


def test_reports_for_another_users_job_write_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("synergyd.daemon.ports.report_inbox.munge.decode", decode)
    inbox = ReportInbox("127.0.0.1", 0)
    inbox.tell({}, {(7, 0): 5})
    line = to_json(Report(7, 0, 1)).hex().encode() + b"\n"
    unknown = to_json(Report(8, 0, 1)).hex().encode() + b"\n"
    # a stranger is not told which jobs there are
    for sent in (line, unknown):
        answers = [send(inbox.port, b"6:" + sent) for _ in range(MAX_WAITING_JOB + 3)]
        assert answers == [b"ok\n"] * MAX_WAITING_JOB + [b""] * 3
    assert send(inbox.port, b"5:" + line) == b"ok\n" and inbox.take()[-1].uid == 5
    assert inbox.refusals == {"owner": MAX_WAITING_JOB + 3, "flood": 6}
    told = [r.message for r in caplog.records if "is not uid" in r.message]
    assert told == ["report from 127.0.0.1 refused: job 7 is not uid 6's"]
    inbox.close()


def test_a_cause_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(logging.getLogger("test"), "report", clock)
    for n in range(120):
        clock.now = float(n)
        refusals.add("late", "10.0.0.1", f"number {n}")
        refusals.add("long", "10.0.0.2", f"number {n}")
    late = [r.message for r in caplog.records if "10.0.0.1" in r.message]
    assert late == ["report from 10.0.0.1 refused: number 0",
                    "report from 10.0.0.1 refused: number 60 (59 more since the last line)"]  # fmt: skip
    assert len(caplog.records) == 4 and refusals.counts == {"late": 120, "long": 120}
