"""Reports to the daemon, sent from a thread of their own: a slow or absent daemon does not delay the job."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from synergy_core.errors import SynergyError
from synergy_core.job_report import Report
from synergy_core.wire import report
from synergy_core.wire.line import Line
from synergy_core.wire.report import ReportAnswer

FIRST_RETRY, LAST_RETRY = 0.5, 6.0  # times the usual interval
_SHORTEST_GAP = 0.1  # times the usual interval, between two tries while the daemon does not answer
_KNOCK_GAP_S = 0.2  # between two reports that the daemon's knocks ask for


class Reporter:
    """A sender of reports: `offer` keeps only the newest; a thread sends it, at most one each `every_s` unless it is urgent.

    A report that the daemon did not answer with `ok` is not delivered. It is sent again, or a newer one in its place, after FIRST_RETRY
    intervals, doubled with each further failure up to LAST_RETRY; an urgent one goes sooner. `find` returns the address after a failure:
    another daemon may have taken over. `heard` is called, in the reporter's thread, with what the daemon's answer tells. `by` returns the
    daemon's uid, whose answers are believed.

    The connection of a delivered report stays open as a line, on which the daemon knocks where it has something to say: the launcher then
    reports at once. Where the daemon has no room for a line, a report without news asks it at each interval.
    """

    def __init__(
        self,
        address: str,
        every_s: float = 10.0,
        find: Callable[[], str] = lambda: "",
        heard: Callable[[ReportAnswer], None] = lambda answer: None,
        by: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._address, self._every_s, self._find, self._heard, self._by = address, every_s, find, heard, by
        self._newest: Report | None = None
        self._delivered: Report | None = None  # the latest
        self._line = Line()
        self._wake, self._awake = socket.socketpair()
        self._wake.setblocking(False)
        self._urgent = False
        self._closing = False
        self._failures = 0  # in a row
        self._tried_at = time.monotonic()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="synergy-reporter", daemon=True)
        self._thread.start()

    def offer(self, newest: Report, *, urgent: bool = False) -> None:
        """Take a report to be sent; `urgent` sends it now."""
        with self._changed:
            self._newest = newest
            if urgent and not self._urgent:
                self._urgent = True
                self._poke()

    def close(self, timeout_s: float = 3.0) -> None:
        """Send the reports that are left, and wait for no longer than `timeout_s`."""
        with self._changed:
            self._closing = self._urgent = True
            self._changed.notify()
            self._poke()
        self._thread.join(timeout_s)

    def _poke(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already
            self._wake.send(b".")

    def _loop(self) -> None:
        while True:
            knocked = self._pause(self._wait_s())
            with self._changed:
                if self._failures:  # urgent reports too may come in quick succession
                    self._changed.wait_for(lambda: self._closing, self._gap_left_s())
                newest, closing, self._urgent, self._newest = self._newest, self._closing, False, None
            if newest is None and not closing and (knocked or not self._line.is_open):
                newest = self._question()
            if newest is not None and not self._deliver(newest):
                with self._changed:
                    self._newest = self._newest or newest
            if closing:
                for each in (self._line, self._wake, self._awake):
                    each.close()
                return

    def _pause(self, wait_s: float) -> bool:
        """Wait until a report is urgent, the daemon knocks, or `wait_s` have passed. Return whether it knocked."""
        until_s = time.monotonic() + wait_s
        while not self._urgent and (left_s := until_s - time.monotonic()) > 0:
            waiting = select.poll()
            waiting.register(self._awake, select.POLLIN)
            if self._line.is_open:
                waiting.register(self._line, select.POLLIN)
            for number, _ in waiting.poll(left_s * 1000):
                if number == self._awake.fileno():
                    self._awake.recv(4096)
                elif self._line.read_knock():
                    time.sleep(max(0.0, self._tried_at + _KNOCK_GAP_S - time.monotonic()))
                    return True
        return False

    def _question(self) -> Report | None:
        """Return a report without news, to hear what the daemon has to say; None if this launcher can't be told anything."""
        last = self._delivered
        return replace(last, silent=True) if last is not None and last.listens and not last.ended else None

    def _wait_s(self) -> float:
        """Return the seconds until the next report, spread so that not all jobs meet a returning daemon at once."""
        if not self._failures:
            return self._every_s
        times = min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(self._failures - 1, 10))
        return self._every_s * times * random.uniform(0.75, 1.25)

    def _gap_left_s(self) -> float:
        return max(0.0, self._tried_at + _SHORTEST_GAP * self._every_s - time.monotonic())

    def _deliver(self, newest: Report) -> bool:
        if self._send(newest):
            return True
        address = self._find()
        if address in ("", self._address):
            return False
        self._address = address
        return self._send(newest)

    def _send(self, newest: Report) -> bool:
        holds = newest.listens and not newest.ended
        self._tried_at = time.monotonic()
        try:
            if holds:
                answer = report.send(newest, self._address, self._by(), line=self._line)
            else:
                answer = report.send(newest, self._address, self._by())
        except SynergyError as error:
            if not self._failures:
                print(f"synergy-launch: {error}; training goes on", file=sys.stderr, flush=True)
            self._failures += 1
            self._tried_at = time.monotonic()
            return False
        self._failures, self._delivered = 0, newest
        if answer is not None:
            self._heard(answer)
        return True
