"""Detection, from outside a training process, that its steps have stopped: a hung collective reports nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEAST_S = 60.0
#: the shortest pause that is a hang: a collective's peers notice nothing for much longer (torch waits 10 minutes for NCCL, 30 for gloo)
HANG_S = 10.0
PAUSES = 2.0  # times the longest pause that has ended: such as an evaluation, or a checkpoint
STEPS = 10.0  # a step that takes this many times the usual one will hardly end
_UNKNOWN_S = 1800.0  # for loading and the first steps, whose time is unknown
# Saving ends within half of that. The daemon may restart a run as soon as its stall is told: HangTimeout is mostly shorter.
_SAVING_S = 3600.0
# The launcher looks five times a second: so long a gap is a suspended job's (scontrol suspend, gang scheduling).
_GAP_S = 30.0
_LOOK_GAP_S = 2.0  # the same where seconds count
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
    known = isinstance(step_s, int | float) and not isinstance(step_s, bool) and step_s > 0
    # a training script's own log may have a line only every so many steps
    steps = STEPS + _positive(status.get("steps_between"))
    return max(shortest_s, _positive(status.get("least_s")), steps * float(step_s or 0.0)) if known else _UNKNOWN_S


def _positive(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0.0


class HangDetector:
    """A watch over the steps of a job's runs, for those that the launcher is to kill. Clock: seconds, monotonic.

    Call `begin` at each further run. What earlier runs have shown of their pauses counts for the later ones.
    """

    def __init__(self, now_s: float) -> None:
        self._longest_s = 0.0  # pause between two steps, the usual ones included
        self.begin(now_s)

    def begin(self, now_s: float) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = self._looked = now_s
        self._usual = False  # the first steps, which take longer, were over at the latest change

    def check(self, status: Mapping[str, Any], now_s: float) -> float | None:
        """Return the seconds without a step, if they are more than HANG_S, STEPS usual steps and PAUSES times the longest pause; else None.

        A gap between two looks doesn't count. No run hangs before its usual step is known, or while it waits by itself.
        """
        if now_s - self._looked > _LOOK_GAP_S:
            self._since += now_s - self._looked
        self._looked = now_s
        state, usual = status.get("state"), bool(_positive(status.get("step_s")))
        moved = (status.get("step"), state, status.get("checkpoint_requests"))
        if moved != self._seen:
            if self._usual and usual and state == self._seen[1] == "training":
                self._longest_s = max(self._longest_s, now_s - self._since)
            self._seen, self._since, self._usual = moved, now_s, usual
        limit_s = stall_limit_s(status, HANG_S) if usual else None
        if limit_s is None or state != "training":
            return None
        idle_s = now_s - self._since
        return idle_s if idle_s > max(limit_s, PAUSES * self._longest_s) else None


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
