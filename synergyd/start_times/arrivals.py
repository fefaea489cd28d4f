"""Jobs still to be submitted, as those of earlier days came: later jobs that pass a waiting one make it wait longer. Pure.

The hours to come are drawn from hours that were seen, each with all of its jobs: of the same hour of the day if there are some, else of
any. A job keeps its place in the queue: the share of those waiting that it came before.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from synergyd.start_times.records import PendingJob, Queue

HOUR_S = 3600.0
_HOURS = 24 * 14  # hours that are remembered
_JOBS_AN_HOUR = 2000
_DAY = 24


@dataclass(frozen=True)
class Arrival:
    """A job that came `after_s` into its hour, before the share `passes` of those that waited then."""

    after_s: float
    passes: float
    job: PendingJob


class Arrivals:
    """The jobs that came in the last hours, by hour since 1970."""

    def __init__(self) -> None:
        self._hours: dict[int, list[Arrival]] = {}
        self._first_s: float | None = None  # the first look: its jobs came before
        self._last_s = 0.0
        self._known: set[int] = set()

    def look(self, queue: Queue) -> None:
        """Learn which jobs have come since the last look."""
        present = {
            job.job_id: job for job in (*(r.asked for r in queue.running if r.asked is not None), *queue.pending)
        }
        if self._first_s is None:
            self._first_s = queue.now_s
        else:
            for hour in range(int(self._last_s // HOUR_S), int(queue.now_s // HOUR_S) + 1):
                self._hours.setdefault(hour, [])
            ahead = _passes(queue.pending)
            for job_id, job in present.items():
                if job_id not in self._known and self._first_s <= job.submit_s <= queue.now_s:
                    self._add(job, ahead.get(job_id, 0.0))
            oldest = int(queue.now_s // HOUR_S) - _HOURS
            self._hours = {hour: some for hour, some in self._hours.items() if hour >= oldest}
        self._last_s = queue.now_s
        self._known = set(present)

    def _add(self, job: PendingJob, passes: float) -> None:
        hour_arrivals = self._hours.setdefault(int(job.submit_s // HOUR_S), [])
        if len(hour_arrivals) < _JOBS_AN_HOUR:
            hour_arrivals.append(
                Arrival(
                    job.submit_s % HOUR_S, passes, replace(job, after=(), cap=None, may_start_s=0.0, planned_s=None)
                )
            )

    def jobs(self) -> Iterator[PendingJob]:
        """Yield the jobs that a draw may hold."""
        for some in self._hours.values():
            for arrival in some:
                yield arrival.job

    def hours_like(self, at_s: float) -> Sequence[int]:
        """Return the hours that were seen from begin to end and that one at `at_s` may be like."""
        if self._first_s is None:
            return ()
        whole = [h for h in self._hours if h * HOUR_S >= self._first_s and (h + 1) * HOUR_S <= self._last_s]
        same = [h for h in whole if (h - int(at_s // HOUR_S)) % _DAY == 0]
        return same or whole

    def of_hour(self, hour: int) -> Sequence[Arrival]:
        return self._hours.get(hour, ())


class ArrivalDraw:
    """One draw of the hours to come."""

    def __init__(self, arrivals: Arrivals, seed: int) -> None:
        self._arrivals = arrivals
        self._chances = np.random.default_rng((seed, 1))

    def hour(self, at_s: float) -> Sequence[Arrival]:
        """Return the jobs that come in the hour of `at_s`, none if no hour has been seen."""
        alike = self._arrivals.hours_like(at_s)
        return self._arrivals.of_hour(alike[int(self._chances.integers(len(alike)))]) if alike else ()


def _passes(pending: Sequence[PendingJob]) -> dict[int, float]:
    """Return by job the share of the jobs submitted before it that it comes before. `pending`: in the order of their priority."""
    shares: dict[int, float] = {}
    all_s = sorted(job.submit_s for job in pending)
    behind_s: list[float] = []
    for job in reversed(pending):
        before, passed = bisect_left(all_s, job.submit_s), bisect_left(behind_s, job.submit_s)
        if passed:
            shares[job.job_id] = passed / before
        insort(behind_s, job.submit_s)
    return shares
