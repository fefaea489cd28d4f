"""Which nodes' checks a report says: a part at a time, and each part for so long that a report with it is delivered. Pure."""

from __future__ import annotations

from synergy_core.node_check import NodeCheck
from synergy_core.wire.node_check import MAX_CHECKS

#: seconds for which a part is said: a report without news of its own goes out every 10 s
PART_S = 20.0
#: seconds for which checks are said at least, should no daemon be there at first; a report then says nothing of them
SAID_S = 600.0


class CheckParts:
    """The part of the checks that is said now."""

    def __init__(self) -> None:
        self._checks: tuple[NodeCheck, ...] = ()
        self._since_s = 0.0

    def choose(self, checks: tuple[NodeCheck, ...], now_s: float) -> tuple[NodeCheck, ...]:
        """Return at most MAX_CHECKS of `checks`, the latest of all nodes, at `now_s` (monotonic); () once all were said for long."""
        if checks != self._checks:
            self._checks, self._since_s = checks, now_s
        parts = -(-len(checks) // MAX_CHECKS)
        number = int((now_s - self._since_s) // PART_S)
        if not checks or number >= max(parts, SAID_S // PART_S):
            return ()
        first = number % parts * MAX_CHECKS
        return checks[first : first + MAX_CHECKS]
