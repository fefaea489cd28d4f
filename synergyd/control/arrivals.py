"""Jobs that arrive between two epochs: the next epoch comes early for them. Pure.

Slurm's own count of the jobs submitted tells of them in one small answer, however long the queue is. Without a daemon Slurm starts
a job within seconds; one that waits for the next point of a grid of a minute loses half a minute on average.
"""

from __future__ import annotations

import math

from synergyd.scheduler.problem.records import Policy
from synergyd.settings import Settings

LOOKS = 12  # looks at that count in an epoch's time
EARLIEST = 6  # epochs in an epoch's time, at most
SHARE = 0.1  # of the time may go into epochs that come early: at 10,000 jobs one takes seconds, and Slurm's


def come_early(settings: Settings, policy: Policy) -> bool:
    """Do epochs come early? A peer's rounds are part of its rule."""
    return settings.early_epochs and not policy.rule


class Arrivals:
    """Of one daemon. All times are seconds of a clock that nobody sets."""

    def __init__(self, epoch_s: float) -> None:
        self._every_s, self._gap_s = epoch_s / LOOKS, epoch_s / EARLIEST
        self._count: int | None = None  # of the jobs submitted, as it was when the last epoch began
        self._looked_s = self._began_s = -math.inf
        self._not_before_s = math.inf  # no epoch has ended yet

    def epoch_began(self, now_s: float, count: int | None) -> None:
        """`count`: read before the queue, so that no job falls between the two; None where Slurm does not tell."""
        self._began_s, self._looked_s, self._count = now_s, now_s, count
        self._not_before_s = math.inf

    def epoch_ended(self, now_s: float) -> None:
        """An early one may come from here on, once it is its turn."""
        self._not_before_s = max(self._began_s + self._gap_s, now_s + (now_s - self._began_s) / SHARE)

    def may_look(self, now_s: float) -> bool:
        """Is it time to ask Slurm for its count?"""
        return self._count is not None and now_s >= max(self._not_before_s, self._looked_s + self._every_s)

    def came(self, now_s: float, count: int | None) -> bool:
        """Has a job been submitted since the last epoch began? `count` as in `epoch_began`; it falls to 0 at midnight, and when
        slurmctld starts."""
        self._looked_s = now_s
        if not count:
            self._count = count  # None: not asked again before the next epoch
            return False
        return count != self._count
