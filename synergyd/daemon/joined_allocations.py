"""Allocations beside jobs' own, as far as their launchers can't look after them.

Nobody ends one that slurmctld, killed just after its end, comes back with: without a process it would keep its GPUs until its time limit.
Launchers end their own within ten seconds of losing their job (more_nodes.py), hence whatever is there longer has no launcher.
Nobody raises the limit of one whose job an admin has given more time: a user can only lower it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from synergyd.slurm.client import DeniedError, SlurmError, SlurmWriter

#: seconds in which a launcher that has lost its job's first node ends its allocation (10), twice: slurmctld may be slow to answer
UNCLAIMED_S = 20.0
log = logging.getLogger("synergyd")


@dataclass
class JoinedAllocations:
    """The allocations that the queue has shown without a run, each since when."""

    slurm: SlurmWriter
    _since_s: dict[int, float] = field(default_factory=dict)
    _refused: set[tuple[str, int]] = field(default_factory=set)  # logged once

    def end(self, unclaimed: Iterable[int], now_s: float) -> None:
        """End those that have been without a run for UNCLAIMED_S. `unclaimed`: all that are without one now."""
        self._since_s = {job_id: min(self._since_s.get(job_id, now_s), now_s) for job_id in unclaimed}
        self._forget_refusals("ended", self._since_s)
        for job_id, since_s in self._since_s.items():
            if now_s - since_s >= UNCLAIMED_S and self._is_done(
                job_id, "ended", partial(self.slurm.end_allocation, job_id)
            ):
                log.info("allocation %d ended: its job's run is over, and nothing else would end it", job_id)

    def extend(self, short: Iterable[tuple[int, str]]) -> None:
        """Give allocations the time limit of their jobs. `short`: those that would end before, with the TimeLimit that they need."""
        limits = dict(short)
        self._forget_refusals("extended", limits)
        for job_id, limit in limits.items():
            if self._is_done(job_id, "extended", partial(self.slurm.update, job_id, {"TimeLimit": limit})):
                log.info("allocation %d has TimeLimit=%s now, as its job", job_id, limit)

    def _forget_refusals(self, action: str, present: Collection[int]) -> None:
        self._refused = {(done, job_id) for done, job_id in self._refused if done != action or job_id in present}

    def _is_done(self, job_id: int, done: str, write: Callable[[], None]) -> bool:
        """Write to an allocation; return whether that succeeded. If not, it is tried again at the next epoch."""
        try:
            write()
        except (SlurmError, DeniedError) as error:
            if (done, job_id) not in self._refused:
                log.warning("allocation %d could not be %s: %s", job_id, done, error)
            self._refused.add((done, job_id))
            return False
        self._refused.discard((done, job_id))
        return True
