"""The memory of a job's changes while it runs: when they were begun, and what its checkpoints took. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

DAY_S = 86_400.0
_KEPT = 100  # changes of one job


@dataclass(frozen=True)
class Moves:
    """The changes of a running job.

    `at_s`: when its changes of size, plan or nodes within the last day were begun, oldest first; `checkpoint_s`: seconds from the
    question to the answer of the latest checkpoint before such a change, 0 where there was none.
    """

    at_s: tuple[float, ...] = ()
    checkpoint_s: float = 0.0

    def with_change(self, now_s: float) -> Moves:
        """Return the moves with a change that begins now."""
        return replace(self, at_s=(*self._lately(now_s), now_s)[-_KEPT:])

    def with_clock_set(self, by_s: float) -> Moves:
        """Return the moves as they would be, had the clock always been set by so much."""
        return replace(self, at_s=tuple(at + by_s for at in self.at_s))

    def without_times_after(self, now_s: float) -> Moves:
        """Return the moves without times that lie ahead: the clock may have been ahead when they were stored."""
        return replace(self, at_s=tuple(min(at, now_s) for at in self.at_s))

    def count(self, now_s: float) -> int:
        """Return how many changes were begun within the last day."""
        return len(self._lately(now_s))

    def again_s(self, most: int, now_s: float) -> float:
        """Return the seconds until there are less than `most` within a day, or 0 if there are now."""
        lately = self._lately(now_s)
        return lately[-most] + DAY_S - now_s if len(lately) >= most else 0.0

    def _lately(self, now_s: float) -> tuple[float, ...]:
        """Return when the changes of the last day were begun."""
        return tuple(at for at in self.at_s if now_s - at < DAY_S)


NO_MOVES = Moves()
