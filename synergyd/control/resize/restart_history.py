"""The cost of a job's restarts, and the restart that is under way. Pure records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class RestartInProgress:
    """A restart whose cost is not known yet. Times are seconds since 1970; 0: not yet."""

    #: when its checkpoint was asked for, or its incarnation ended
    begun_s: float
    #: Synergy's objective chose it, and not Slurm, a user, a node, a time limit or a plan that failed
    chosen: bool = False
    #: when its checkpoint was written
    saved_s: float = 0.0
    #: seconds for which the checkpoint held it up; None: not measured
    checkpoint_s: float | None = None
    #: it has waited for a decision or for Slurm: time that is no cost of a restart
    waited: bool = False
    started_s: float = 0.0
    #: it kept its allocation: no requeue, and no sample of what one costs
    in_place: bool = False

    def spent_s(self, now_s: float) -> float:
        """Return the seconds that the restart has taken so far, at the most."""
        since_s = (self.started_s or now_s) if self.waited else self.begun_s
        return (self.checkpoint_s or 0.0) * self.waited + max(0.0, now_s - since_s)


@dataclass(frozen=True, kw_only=True)
class RestartHistory:
    """The restarts of one job."""

    #: when it first ran; 0: not yet
    first_s: float = 0.0
    #: that restarts which Synergy chose have taken, and how many they were
    lost_s: float = 0.0
    chosen: int = 0
    #: bytes for each writer of the last checkpoint that it was requeued with; None: not told
    bytes_per_writer: float | None = None
    under_way: RestartInProgress | None = None

    def spent_s(self, now_s: float) -> float:
        """Return the seconds spent in restarts that Synergy chose. The one under way counts as far as it has come."""
        one = self.under_way
        return self.lost_s + (one.spent_s(now_s) if one is not None and one.chosen else 0.0)

    def life_s(self, now_s: float) -> float:
        """Return the seconds since the job first ran; infinite before."""
        return max(0.0, now_s - self.first_s) if self.first_s else math.inf

    def with_restart_closed(self, now_s: float) -> RestartHistory:
        """Return the history with the restart under way ended, without having been measured."""
        return replace(self, lost_s=self.spent_s(now_s), under_way=None)

    def with_clock_set(self, by_s: float) -> RestartHistory:
        """Return the history as it would be, had the clock always been set by so much."""
        return self._with_times(lambda time_s: time_s + by_s if time_s else time_s)

    def without_times_after(self, now_s: float) -> RestartHistory:
        """Return the history without times that lie ahead."""
        return self._with_times(lambda time_s: min(time_s, now_s))

    def _with_times(self, change: Callable[[float], float]) -> RestartHistory:
        """Return the history with each time changed."""
        one = self.under_way
        if one is not None:
            one = replace(
                one, begun_s=change(one.begun_s), saved_s=change(one.saved_s), started_s=change(one.started_s)
            )
        return replace(self, first_s=change(self.first_s), under_way=one)


NO_RESTARTS = RestartHistory()
