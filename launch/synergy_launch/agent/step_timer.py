"""The duration of a step: the median of the recent ones."""

from __future__ import annotations

import statistics
from collections import deque

_WARM_UP_STEPS = 2  # the first steps after a start include allocation, compilation and connections


class StepTimer:
    """The median duration of the recent steps; the first ones after a start don't count.

    Where replicas step alone, only the last step of a round pays for their average: a round counts as one step of its mean duration.
    """

    def __init__(self, window: int = 20, skip: int = _WARM_UP_STEPS) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._skip = skip
        self._round: list[float] = []

    def add(self, seconds: float, round_over: bool = True) -> None:
        self._round.append(seconds)
        if not round_over:
            return
        mean_s = sum(self._round) / len(self._round)
        self._round.clear()
        if self._skip:
            self._skip -= 1
        else:
            self._recent.append(mean_s)

    @property
    def median_s(self) -> float | None:
        return statistics.median(self._recent) if self._recent else None
