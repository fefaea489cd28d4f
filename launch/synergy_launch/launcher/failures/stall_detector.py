"""Detection, from outside a training process, that its steps have stopped: a hung collective reports nothing by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

LEAST_S = 60.0
STEPS = 10.0  # a step that takes this many times the usual one will hardly end
_UNKNOWN_S = 1800.0  # for loading and the first steps, whose time is unknown
# Saving ends within half of that. The daemon may restart a run as soon as its stall is told: HangTimeout is mostly shorter.
_SAVING_S = 3600.0
# The launcher looks five times a second: so long a gap is a suspended job's (scontrol suspend, gang scheduling).
_GAP_S = 30.0
# Times the last stride: the daemon counts only the stalls that it was told of.
_STRIDE = 1.25


def stall_limit_s(status: Mapping[str, Any], shortest_s: float = LEAST_S) -> float | None:
    """Return the seconds that may pass without a finished step in this state; None where none is expected."""
    state = status.get("state")
    if state == "checkpointing":
        return _SAVING_S
    if state not in ("training", "starting"):
        return None
    step_s = status.get("step_s")
    has_step_time = isinstance(step_s, int | float) and not isinstance(step_s, bool) and step_s > 0
    # a training script's own log may have a line only every so many steps
    steps = STEPS + _positive(status.get("steps_between"))
    return (
        max(shortest_s, _positive(status.get("least_s")), steps * float(step_s or 0.0)) if has_step_time else _UNKNOWN_S
    )


def _positive(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0.0


class StallDetector:
    """A watch over one process's status. Clock: seconds, monotonic. `shortest_s`: the shortest stall that is told."""

    def __init__(self, now_s: float, shortest_s: float = LEAST_S) -> None:
        self._shortest_s = shortest_s
        self._seen: object = None
        self._since = now_s
        self._told = 0.0
        self._looked = now_s

    def check(self, status: Mapping[str, Any], now_s: float) -> float | None:
        """Return the seconds without a step, if that is longer than it should be, in strides of _STRIDE; else None.

        A gap between two looks doesn't count.
        """
        if now_s - self._looked > _GAP_S:
            self._since += now_s - self._looked
        self._looked = now_s
        moved = (status.get("step"), status.get("state"), status.get("checkpoint_requests"))
        if moved != self._seen:
            self._seen, self._since, self._told = moved, now_s, 0.0
        limit, idle = stall_limit_s(status, self._shortest_s), now_s - self._since
        if limit is None or idle < limit:
            return None
        if idle >= _STRIDE * self._told:
            self._told = idle
        return round(self._told, 1)


#: seconds after which a process that was stopped counts as hung: a debugger or a job control of some seconds may go on
STOPPED_S = 10.0
_LOOK_S = 1.0


def has_stopped_process(pids: Iterable[int]) -> bool:
    """Return whether one of these processes is stopped by a signal (state T of /proc; one under a debugger has state t)."""
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            if Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "T":
                return True
    return False


class StoppedRanks:
    """A watch for training processes that a signal has stopped: they hold all others up, and nothing ends by itself."""

    def __init__(self, has_stopped: Callable[[Iterable[int]], bool] = has_stopped_process) -> None:
        self._has_stopped = has_stopped
        self._looked_s = self._since_s = -_GAP_S

    def check(self, find_pids: Callable[[], Iterable[int]], now_s: float) -> bool:
        """Return whether one of the processes has been stopped for STOPPED_S. A suspended job's launcher is stopped with them."""
        gap_s = now_s - self._looked_s
        if gap_s < _LOOK_S:
            return False
        self._looked_s = now_s
        if gap_s > STOPPED_S / 2 or not self._has_stopped(find_pids()):
            self._since_s = now_s
        return now_s - self._since_s >= STOPPED_S
