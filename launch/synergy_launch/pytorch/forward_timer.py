"""A rank's own time in a step: its forward passes, which come before DDP's collectives."""

from __future__ import annotations

import time
from typing import Any

import torch


class ForwardTimer:
    """A timer of forward passes: `begin` and `end` around each, `take` at the end of the step. On a GPU it uses events and never waits."""

    def __init__(self) -> None:
        self._cuda = torch.cuda.is_available()
        self._began: Any = None
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        self._began = _event() if self._cuda else time.perf_counter()

    def end(self) -> None:
        """End the forward pass that was begun last; without one nothing is counted."""
        if self._began is None:
            return
        if self._cuda:
            self._events.append((self._began, _event()))
        else:
            self._seconds += time.perf_counter() - self._began
        self._began = None

    def take(self) -> float:
        """Return the seconds since the last call. The step's loss has been read by then, so the events have happened."""
        seconds = self._seconds
        seconds += sum(float(start.elapsed_time(stop)) / 1000 for start, stop in self._events)
        self._seconds = 0.0
        self._events.clear()
        return seconds


def _event() -> Any:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
