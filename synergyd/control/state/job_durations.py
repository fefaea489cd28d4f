"""How long jobs take here, from those that have ended."""

from __future__ import annotations

from collections import deque
from statistics import median

_REMEMBERED, _FEW = 200, 10


class JobDurations:
    """The seconds that ended jobs trained, at the size asked for: what is typical."""

    def __init__(self) -> None:
        self._ended: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, attained_gpu_s: float, asked_gpus: int) -> None:
        if attained_gpu_s > 0 and asked_gpus > 0:
            self._ended.append(attained_gpu_s / asked_gpus)

    @property
    def typical_s(self) -> float | None:
        """Return the median of the latest durations in seconds, or None while there are too few to tell."""
        return median(self._ended) if len(self._ended) >= _FEW else None
