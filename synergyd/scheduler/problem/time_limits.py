"""What a job's time limit means for its Cells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from synergyd.records import Cell
from synergyd.scheduler.problem.records import Progress

# share of its goodput that a Cell counts for which does not finish in time: a job that lies about its length can gain a
# quarter by it at most
_UNFINISHED = 0.8


def time_discount(left_s: float | None, restart_cost_s: float) -> float:
    """The share of the time left (seconds; None: no limit) in which a job trains that is restarted now: multiplies the goodput of
    every change, so that one is chosen only if it pays before the limit ends the job. 0 forbids changes."""
    if left_s is None or restart_cost_s <= 0:
        return 1.0
    return max(0.0, 1.0 - restart_cost_s / left_s) if left_s > 0 else 0.0


def finishing_first(
    relative: Sequence[float], cells: Sequence[Cell], progress: Progress, left_s: float | None
) -> Sequence[float]:
    """The relative goodputs; where some Cells finish the sequences left within `left_s`, those that can't count for less."""
    if left_s is None or left_s <= 0 or progress.remaining is None or progress.refuted:
        return relative
    ends = [cell.goodput * left_s >= progress.remaining for cell in cells]
    if all(ends) or not any(ends):
        return relative
    return tuple(r if end else _UNFINISHED * r for r, end in zip(relative, ends, strict=True))
