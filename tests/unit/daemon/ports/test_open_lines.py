"""Connections that stay open behind reports, and the knocks on them: the inbox, the sending and the reporter over real sockets."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from synergy_core.job_report import Report
from synergy_core.records import Plan
from synergy_core.wire import munge
from synergy_core.wire.line import Line
from synergy_core.wire.munge import Credential
from synergy_core.wire.report import ReportAnswer, send
from synergy_launch.launcher.reporter import Reporter

from synergyd.daemon.ports.open_lines import MAX_JOB_LINES, OpenLines
from synergyd.daemon.ports.report_inbox import ReportInbox

LIFE = (7, 2)
REPORT = Report(7, 2, 5, launcher="0.0", listens=True)
ASKED = ReportAnswer(Plan(), request=4)


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReportInbox]:
    """One in front of a munge that vouches that uid 1000 says everything."""
    monkeypatch.setattr(munge, "encode", lambda payload, socket="": f"MUNGE:{payload.hex()}:")
    monkeypatch.setattr(
        munge, "decode", lambda text, socket="": Credential(bytes.fromhex(text.split(":")[1]), 1000, 1000)
    )
    made = ReportInbox("127.0.0.1", 0)
    made.tell({}, {LIFE: 1000})
    yield made
    made.close()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def over(line: Line) -> None:
    """Waits for something on the line."""
    assert select.select([line], [], [], 30)[0]


def test_a_running_job_s_owner_is_knocked_for_and_then_told(inbox: ReportInbox) -> None:
    line, address = Line(), f"127.0.0.1:{inbox.port}"
    assert send(REPORT, address, 1000, line=line) is None and line.is_open
    until(lambda: len(inbox.lines) == 1)
    inbox.tell({LIFE: (1000, ASKED)}, {LIFE: 1000})
    over(line)
    assert line.read_knock() and not line.is_open and len(inbox.lines) == 0
    assert send(REPORT, address, 1000, line=line) == ASKED
    # told already: no knock more
    until(lambda: len(inbox.lines) == 1)
    inbox.tell({LIFE: (1000, ASKED)}, {LIFE: 1000})
    assert not select.select([line], [], [], 0.2)[0]
    line.close()


@pytest.mark.parametrize(
    ("report", "owner"),
    [(REPORT, 1001), (replace(REPORT, restarts=1), 1000), (replace(REPORT, listens=False), 1000), (replace(REPORT, ended=True), 1000)],
)  # fmt: skip
def test_nobody_else_has_a_line(inbox: ReportInbox, report: Report, owner: int) -> None:
    inbox.tell({}, {LIFE: owner})
    line = Line()
    send(report, f"127.0.0.1:{inbox.port}", 1000, line=line)
    over(line)
    assert not line.read_knock() and not line.is_open and len(inbox.lines) == 0


def test_a_launcher_has_one_line_and_loses_it_with_its_job(inbox: ReportInbox) -> None:
    first, second = Line(), Line()
    for line in (first, second):
        send(REPORT, f"127.0.0.1:{inbox.port}", 1000, line=line)
    over(first)
    assert not first.read_knock()
    until(lambda: len(inbox.lines) == 1)
    inbox.tell({}, {})
    over(second)
    assert not second.read_knock() and len(inbox.lines) == 0


def test_there_is_a_bound_and_a_dead_end_costs_nothing() -> None:
    lines, ends = OpenLines(most=3), [socket.socketpair() for _ in range(9)]
    for number, (ours, _) in enumerate(ends[:4]):
        lines.add((number, 0), "0.0", ours)
    assert len(lines) == 3 and ends[3][1].recv(1) == b""
    ends[0][1].close()
    lines.knock((0, 0))
    assert len(lines) == 2
    lines.retain([])
    many = OpenLines()
    for number, (ours, _) in enumerate(ends[4:]):
        many.add(LIFE, f"{number}.0", ours)
    assert len(many) == MAX_JOB_LINES
    many.retain([])
    for pair in ends:
        for end in pair:
            end.close()


def test_a_knock_brings_the_request_at_once_and_a_question_brings_it_later(inbox: ReportInbox) -> None:
    heard: list[ReportAnswer] = []
    arrived = threading.Event()

    def hear(told: ReportAnswer) -> None:
        heard.append(told)
        arrived.set()

    slow = Reporter(f"127.0.0.1:{inbox.port}", every_s=600, heard=hear, by=lambda: 1000)
    slow.offer(REPORT, urgent=True)
    until(lambda: len(inbox.lines) == 1)
    inbox.tell({LIFE: (1000, ASKED)}, {LIFE: 1000})
    assert arrived.wait(60)  # ten times less than its interval
    assert heard[0] == ASKED
    silent = [r.report for r in inbox.take()][1:]
    assert all(r.silent and r.step == 5 for r in silent)  # a question without news teaches nothing
    slow.close()
    # without a line, as with a daemon that has no room for one, it asks at its interval
    arrived.clear()
    inbox.tell({}, {})
    lineless = Reporter(f"127.0.0.1:{inbox.port}", every_s=0.2, heard=hear, by=lambda: 1000)
    lineless.offer(REPORT, urgent=True)
    until(inbox.take)
    inbox.answers = {LIFE: (1000, ASKED)}
    assert arrived.wait(60)
    lineless.close()
