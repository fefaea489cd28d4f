"""Connections that launchers leave open, so that their jobs are asked at once."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from synergyd.daemon.ports.open_lines import MAX_JOB_LINES, OpenLines
from synergyd.wire.line import Line

LIFE = (7, 0)


@pytest.fixture
def wires() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def line(lines: OpenLines, wires: ExitStack, life: tuple[int, int] = LIFE, launcher: str = "0.0") -> Line:
    ours, theirs = socket.socketpair()
    made = wires.enter_context(closing_line())
    made.take(theirs)
    lines.add(life, launcher, ours)
    return made


class closing_line(Line):
    def __enter__(self) -> closing_line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def readable(one: Line) -> bool:
    return one.is_open and bool(select.select([one], [], [], 0)[0])


def test_a_knock_reaches_all_launchers_of_one_incarnation(wires: ExitStack) -> None:
    lines = OpenLines(10)
    first, last = line(lines, wires, launcher="0.0"), line(lines, wires, launcher="0.3")
    other, later = line(lines, wires, (8, 0)), line(lines, wires, (7, 1))
    lines.knock(LIFE)
    assert [one.hears_knock() for one in (first, last)] == [True, True]
    assert not readable(other) and not readable(later) and len(lines) == 2
    lines.knock(LIFE)  # nobody is there
    lines.retain(())


def test_a_line_that_closes_without_a_knock_says_nothing(wires: ExitStack) -> None:
    lines = OpenLines(10)
    dropped, ended = line(lines, wires), line(lines, wires, (8, 0))
    lines.drop(LIFE, "0.0")
    lines.retain({LIFE})
    assert readable(dropped) and not dropped.hears_knock() and not dropped.is_open
    assert not ended.hears_knock() and len(lines) == 0


def test_lines_are_bounded(wires: ExitStack) -> None:
    lines = OpenLines(MAX_JOB_LINES + 1)
    own = [line(lines, wires, launcher=f"{i}.0") for i in range(MAX_JOB_LINES + 1)]
    assert [readable(one) for one in own] == [False] * MAX_JOB_LINES + [True]  # the last is closed: no room
    kept, refused = line(lines, wires, (8, 0)), line(lines, wires, (9, 0))
    assert not readable(kept) and readable(refused)
    again = line(lines, wires, (8, 0))  # in place of its last one
    assert readable(kept) and not readable(again) and len(lines) == MAX_JOB_LINES + 1
    lines.retain(())
    assert len(lines) == 0
