"""Jobs that arrive or end between two epochs: the next epoch comes early for them. Pure.

Slurm's own counts tell of them in one small answer, however long the queue is. Without a daemon Slurm starts a job within seconds of
its submission, or of the end of the one that it waits for; one that waits for the next point of a grid of a minute loses half a
minute on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from synergyd.scheduler.problem.records import Policy
from synergyd.settings import Settings

LOOK_S = 0.9  # between two looks at the counts, in an epoch of LOOKS seconds and more
LOOKS = 12  # looks in a shorter epoch's time, and where Slurm limits the daemon's requests
EARLIEST_S = 1.0  # between two epochs, in an epoch of EARLIEST seconds and more
EARLIEST = 6  # epochs in a shorter epoch's time, at most
SHARE = 0.2  # share of the time that may go into early epochs: at 10,000 jobs one takes seconds, and Slurm's


@dataclass(frozen=True)
class JobCounts:
    """The number of jobs since slurmctld last began to count: at its start, and at midnight."""

    submitted: int
    ended: int


def should_come_early(settings: Settings, policy: Policy) -> bool:
    """Return whether epochs come early. A peer's rounds are part of its rule."""
    return settings.early_epochs and not policy.rule


class Arrivals:
    """The arrivals that one daemon watches. All times are seconds of a clock that nobody sets."""

    def __init__(self, epoch_s: float) -> None:
        self._seldom_s, self._every_s = epoch_s / LOOKS, min(LOOK_S, epoch_s / LOOKS)
        self._gap_s = min(EARLIEST_S, epoch_s / EARLIEST)
        self._counts: JobCounts | None = None  # as they were when the last epoch began
        self._looked_s = self._began_s = -math.inf
        self._not_before_s = math.inf  # no epoch has ended yet
        self._waits = False

    def begin_epoch(self, now_s: float, counts: JobCounts | None) -> None:
        """Take `counts`, read before the queue, so that no job falls between the two.

        They are None if Slurm does not tell.
        """
        self._began_s, self._looked_s, self._counts = now_s, now_s, counts
        self._not_before_s = math.inf

    def end_epoch(self, now_s: float, *, waits: bool = False, limited: bool = False) -> None:
        """Let an early epoch come from here on, once it is its turn.

        `waits`: a job waits for Synergy to start it, so the end of another counts too. `limited`: Slurm's limit on
        requests has held the daemon up.
        """
        self._not_before_s = max(self._began_s + self._gap_s, now_s + (now_s - self._began_s) / SHARE)
        self._waits = waits
        if limited:
            self._every_s = self._seldom_s

    def can_look(self, now_s: float) -> bool:
        """Return whether it is time to ask Slurm for its counts."""
        return self._counts is not None and now_s >= max(self._not_before_s, self._looked_s + self._every_s)

    def is_epoch_due(self, now_s: float, counts: JobCounts | None) -> bool:
        """Return whether the next epoch should come at once.

        It should if a job was submitted since the last one began, or one has ended that another may wait for. `counts`:
        as in `begin_epoch`; they fall to 0 at midnight, and when slurmctld starts.
        """
        self._looked_s, before = now_s, self._counts
        if counts is None or before is None:
            self._counts = None  # not asked again before the next epoch
            return False
        if counts.submitted < before.submitted or counts.ended < before.ended:  # they began anew
            self._counts = JobCounts(0, 0)
            return counts.submitted > 0 or (self._waits and counts.ended > 0)
        return counts.submitted != before.submitted or (self._waits and counts.ended != before.ended)
