"""What is remembered of a job's changes while it runs: when they were begun, and what its checkpoints took. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

DAY_S = 86_400.0
_KEPT = 100  # changes of one job


@dataclass(frozen=True)
class Moves:
    """`at_s`: when its changes of size, plan or nodes within the last day were begun, oldest first; `checkpoint_s`: seconds from the
    question to the answer of the latest checkpoint before such a change, 0 where there was none."""

    at_s: tuple[float, ...] = ()
    checkpoint_s: float = 0.0

    def begun(self, now_s: float) -> Moves:
        """With one more."""
        return replace(self, at_s=(*self._lately(now_s), now_s)[-_KEPT:])

    def clock_set(self, by_s: float) -> Moves:
        return replace(self, at_s=tuple(at + by_s for at in self.at_s))

    def not_after(self, now_s: float) -> Moves:
        """As read back, where the clock was ahead when it was written."""
        return replace(self, at_s=tuple(min(at, now_s) for at in self.at_s))

    def count(self, now_s: float) -> int:
        """Of the last day."""
        return len(self._lately(now_s))

    def again_s(self, most: int, now_s: float) -> float:
        """Seconds until there are less than `most` within a day; 0: there are now."""
        lately = self._lately(now_s)
        return lately[-most] + DAY_S - now_s if len(lately) >= most else 0.0

    def _lately(self, now_s: float) -> tuple[float, ...]:
        return tuple(at for at in self.at_s if now_s - at < DAY_S)


NO_MOVES = Moves()
