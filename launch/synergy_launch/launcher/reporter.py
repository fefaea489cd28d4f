"""Sends the newest status to the daemon from a thread of its own: a slow or absent daemon never holds up the job."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from synergyd.errors import SynergyError
from synergyd.records import Plan, Report
from synergyd.wire import report


class Reporter:
    """`offer` keeps the newest report only; a thread sends it, at most one each `every_s` unless it is urgent.

    `find` tells the address anew after a failure: another daemon may have taken over.
    `heard` is called, in the reporter's thread, with the plan whose batch the daemon's answer names; `by` tells the
    daemon's uid, whose answers are believed.
    What could not be delivered is sent again, until something newer takes its place: the latest state is never lost.
    """

    def __init__(
        self,
        address: str,
        every_s: float = 10.0,
        find: Callable[[], str] = lambda: "",
        heard: Callable[[Plan], None] = lambda plan: None,
        by: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._address, self._every_s, self._find, self._heard, self._by = address, every_s, find, heard, by
        self._newest: Report | None = None
        self._urgent = False
        self._closing = False
        self._failures = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="synergy-reporter", daemon=True)
        self._thread.start()

    def offer(self, newest: Report, *, urgent: bool = False) -> None:
        """Takes a report to be sent; `urgent` sends it now."""
        with self._changed:
            self._newest = newest
            if urgent and not self._urgent:
                self._urgent = True
                self._changed.notify()

    def close(self, timeout_s: float = 3.0) -> None:
        """Sends what is left, waiting for no longer than `timeout_s`."""
        with self._changed:
            self._closing = self._urgent = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _loop(self) -> None:
        while True:
            with self._changed:
                if not self._urgent:
                    self._changed.wait(self._every_s * min(6, 1 + self._failures))
                newest, closing, self._urgent, self._newest = self._newest, self._closing, False, None
            if newest is not None and not self._deliver(newest):
                with self._changed:
                    self._newest = self._newest or replace(newest)
            if closing:
                return

    def _deliver(self, newest: Report) -> bool:
        if self._send(newest):
            return True
        found = self._find()
        if found in ("", self._address):
            return False
        self._address = found
        return self._send(newest)

    def _send(self, newest: Report) -> bool:
        try:
            answer = report.send(newest, self._address, self._by())
        except SynergyError as error:
            if not self._failures:
                print(f"synergy-launch: {error}; training goes on", file=sys.stderr, flush=True)
            self._failures += 1
            return False
        self._failures = 0
        if answer is not None:
            self._heard(answer)
        return True
