"""The refused requests, counted by cause. The log gets one line a minute a cause, however many a stranger sends."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

LOG_EVERY_S = 60.0


class Refusals:
    """The counts of refusals. May be used from several threads. `what` names the thing refused in the log. Causes are a few fixed words."""

    def __init__(self, log: logging.Logger, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._what, self._clock = log, what, clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}  # when a line was last written of a cause, and its count then

    @property
    def counts(self) -> Mapping[str, int]:
        """Return a copy of the counts since the start, by cause."""
        with self._lock:
            return dict(self._counts)

    def add(self, cause: str, source: str, text: str) -> None:
        """Count one more refusal. `text` says what was wrong with this one."""
        now_s = self._clock()
        with self._lock:
            self._counts[cause] += 1
            count = self._counts[cause]
            last_s, before = self._logged.get(cause, (float("-inf"), 0))
            if now_s - last_s < LOG_EVERY_S:
                return
            self._logged[cause] = now_s, count
        more = f" ({count - before - 1} more since the last line)" if count - before > 1 else ""
        self._log.warning("%s from %s refused: %s%s", self._what, source, text, more)
