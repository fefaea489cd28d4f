"""Allocations beside jobs' own that nobody ends: slurmctld, killed just after one's end, comes back with it running.

Such an allocation has no process, so it would keep its GPUs until its time limit. Launchers end their own within ten seconds of losing
their job (more_nodes.py), hence whatever is there longer has no launcher.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from synergyd.slurm.client import DeniedError, SlurmError, SlurmWriter

#: seconds in which a launcher that has lost its job's first node ends its allocation (10), twice: slurmctld may be slow to answer
UNCLAIMED_S = 20.0
log = logging.getLogger("synergyd")


@dataclass
class LostAllocations:
    """The allocations that the queue has shown without a run, each since when."""

    slurm: SlurmWriter
    _since_s: dict[int, float] = field(default_factory=dict)
    _refused: set[int] = field(default_factory=set)  # logged once

    def end(self, unclaimed: Iterable[int], now_s: float) -> None:
        """End those that have been without a run for UNCLAIMED_S. `unclaimed`: all that are without one now."""
        self._since_s = {job_id: min(self._since_s.get(job_id, now_s), now_s) for job_id in unclaimed}
        self._refused &= self._since_s.keys()
        for job_id, since_s in self._since_s.items():
            if now_s - since_s < UNCLAIMED_S:
                continue
            try:
                self.slurm.end_allocation(job_id)
            except (SlurmError, DeniedError) as error:  # tried again at the next epoch
                if job_id not in self._refused:
                    log.warning("allocation %d of a run that has ended could not be ended: %s", job_id, error)
                self._refused.add(job_id)
            else:
                log.info("allocation %d ended: its job's run is over, and nothing else would end it", job_id)
