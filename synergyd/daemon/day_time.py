"""The time of day, and by how many seconds somebody set it."""

from __future__ import annotations

import time
from collections.abc import Callable

# A smaller step changes no wait noticeably. RestartDelay, the shortest wait, leaves a second for it.
LEAST_S = 0.5


class DayTime:
    """The time of day and its steps. `clock` is the time of day, seconds since 1970; `monotonic` counts seconds whatever that does."""

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock, self._monotonic = clock, monotonic
        self._ahead_s = clock() - monotonic()

    def read(self) -> tuple[float, float]:
        """Return (the time of day, seconds by which it was set since the last call)."""
        now_s, counted_s = self._clock(), self._monotonic()
        by_s = now_s - counted_s - self._ahead_s
        if abs(by_s) < LEAST_S:
            return now_s, 0.0
        self._ahead_s += by_s
        return now_s, by_s


def minute_of_day(now_s: float) -> int:
    """Return the minutes since midnight, local time."""
    local = time.localtime(now_s)
    return local.tm_hour * 60 + local.tm_min
