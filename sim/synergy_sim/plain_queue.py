"""Slurm's own queue for the jobs that Synergy does not decide about: first come, first served, with EASY backfilling.

A job that can't start yet reserves its earliest start, by the time limits of what runs (Lifka, JSSPP'95, the core of sched/backfill).
Others pass it if they end before then, or take GPUs that it leaves over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from synergy_sim.node_pool import NodePool, Placement

#: seconds for which a reservation stands; Slurm's own backfill looks that often (bf_interval, slurm.conf(5))
RESERVES_S = 30.0
#: jobs of one shape that are looked at behind the first; Slurm's bf_max_job_test is 500 jobs of all shapes
DEPTH = 50


@dataclass(frozen=True)
class PlainRequest:
    """A waiting job: `limit_s` is its time limit."""

    key: int
    submit_s: float
    nodes: int
    each: int
    limit_s: float

    @property
    def gpus(self) -> int:
        return self.nodes * self.each


@dataclass
class Reservation:
    """The first waiting job's earliest start, and the GPUs that are left over then."""

    key: int
    made_s: float
    start_s: float
    spare: int

    def allows(self, now_s: float, limit_s: float, gpus: int) -> bool:
        return now_s + limit_s <= self.start_s or gpus <= self.spare


class PlainQueue:
    """The waiting jobs, by shape: where one does not fit, no other of its shape does."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], deque[PlainRequest]] = {}
        self.reservation: Reservation | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, job: PlainRequest) -> None:
        self._waiting.setdefault((job.nodes, job.each), deque()).append(job)

    def first(self) -> PlainRequest | None:
        """Return the job that has waited longest."""
        return min((jobs[0] for jobs in self._waiting.values()), key=lambda j: (j.submit_s, j.key), default=None)

    def start(
        self, now_s: float, pool: NodePool, running: Iterable[tuple[float, Placement]]
    ) -> Iterator[tuple[PlainRequest, Placement]]:
        """Start what can start, in order, and yield each job with its GPUs, which are taken from `pool`.

        `running`: (when its time limit ends, what it holds) of what runs, the earliest end first; only read when a job must wait.
        """
        while (head := self.first()) is not None:
            placement = pool.take(head.nodes, head.each)
            if placement is None:
                break
            self._remove(head)
            yield head, placement
        if head is None:
            self.reservation = None
            return
        reservation = self.reservation
        if (
            reservation is None
            or reservation.key != head.key
            or not now_s < min(reservation.made_s + RESERVES_S, reservation.start_s)
        ):
            self.reservation = reservation = _reserve(head, now_s, pool, running)
        yield from self._backfill(now_s, pool, reservation)

    def _backfill(
        self, now_s: float, pool: NodePool, reservation: Reservation
    ) -> Iterator[tuple[PlainRequest, Placement]]:
        for shape in sorted(self._waiting, key=lambda s: self._waiting[s][0].submit_s):
            for job in list(islice(self._waiting[shape], DEPTH)) if pool.has_room(*shape) else ():
                if job.key == reservation.key or not reservation.allows(now_s, job.limit_s, job.gpus):
                    continue
                placement = pool.take(*shape)
                if placement is None:
                    break
                if now_s + job.limit_s > reservation.start_s:
                    reservation.spare -= job.gpus
                self._remove(job)
                yield job, placement

    def _remove(self, job: PlainRequest) -> None:
        shape = job.nodes, job.each
        self._waiting[shape].remove(job)
        if not self._waiting[shape]:
            del self._waiting[shape]


def _reserve(
    head: PlainRequest, now_s: float, pool: NodePool, running: Iterable[tuple[float, Placement]]
) -> Reservation:
    free, able, total = list(pool.free), 0, pool.total
    able = sum(gpus >= head.each for gpus in free)
    for end_s, placement in running:
        for node, gpus in placement:
            able += free[node] < head.each <= free[node] + gpus
            free[node] += gpus
            total += gpus
        if able >= head.nodes:
            return Reservation(head.key, now_s, max(now_s, end_s), total - head.gpus)
    return Reservation(head.key, now_s, math.inf, 0)
