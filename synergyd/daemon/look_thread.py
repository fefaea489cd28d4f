"""A thread with a database connection of its own that takes what epochs saw, so that no epoch waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from synergy_core.errors import SynergyError

from synergyd.store.store import Store

Look = TypeVar("Look")


class LookThread(Generic[Look]):
    """The thread: it calls `take(store, look)` for each look, one at a time.

    No job depends on what it does. Whatever `take` raises is logged behind `trouble`, once for each text, and the database is opened
    anew. `most`: looks that wait at most; the next one replaces the last of them. `finishes`: `close` lets it take those that wait.
    """

    def __init__(
        self,
        name: str,
        open_store: Callable[[], Store],
        take: Callable[[Store, Look], None],
        log: logging.Logger,
        trouble: str,
        *,
        most: int = 1,
        finishes: bool = False,
    ) -> None:
        self._open_store, self._take, self._log, self._trouble = open_store, take, log, trouble
        self._most, self._finishes = most, finishes
        self._store: Store | None = None
        self._problem = ""
        self._waiting: list[Look] = []
        self._arrived = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def see(self, look: Look) -> None:
        """Hand a look over. Never waits."""
        with self._arrived:
            self._waiting = [*self._waiting[: self._most - 1], look]
            self._arrived.notify()

    def close(self) -> None:
        """End the thread. Return when it has ended, or after 5 s."""
        with self._arrived:
            self._closing = True
            if not self._finishes:
                self._waiting = []
            self._arrived.notify()
        self._thread.join(5.0)

    def _run(self) -> None:
        while looks := self._next():
            for look in looks:
                try:
                    self._store = self._store or self._open_store()
                    self._take(self._store, look)
                    self._problem = ""
                except Exception as error:
                    self._log_failure(error)
        self._close_store()

    def _next(self) -> list[Look]:
        """Wait for looks and return them; none: the thread is to end."""
        with self._arrived:
            while not self._waiting and not self._closing:
                self._arrived.wait()
            looks, self._waiting = self._waiting, []
            return looks

    def _log_failure(self, error: Exception) -> None:
        if str(error) != self._problem:
            self._log.warning("%s: %s", self._trouble, error, exc_info=not isinstance(error, SynergyError))
        self._problem = str(error)
        self._close_store()

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
