"""Jobs that wait for a decision are kept from starting by themselves; how long, and again before it has passed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from synergyd.control.events import Refused
from synergyd.control.instructions import Park
from synergyd.control.resize import JobLifecycle, ResizeState
from synergyd.records import Job
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.rows import JobRow

log = logging.getLogger("synergyd")


class Parking:
    """`park_s` seconds at a time. A job's first is its own call, which stamps its size too; later ones go together."""

    def __init__(self, actuator: Actuator, park_s: float, epoch_s: float) -> None:
        self._actuator, self._park_s, self._epoch_s = actuator, park_s, epoch_s
        self._parked: set[tuple[int, int]] = set()  # with their own size stamped, by this daemon
        self._problem = ""

    def keep(self, job: Job, row: JobRow, life: JobLifecycle, schedulable: bool, now_s: float) -> list[int]:
        """A job that waits for a decision must not start by itself; one that can't be scheduled is left to Slurm.

        Returns its id where it only has to be put off once more, which `again` does for many at once.
        """
        if life.state is not ResizeState.QUEUED or not schedulable or job.fixed or job.begin_s is not None:
            return []
        if row.state == "PENDING" and (row.eligible_s is None or row.eligible_s < now_s + max(30.0, 2 * self._epoch_s)):
            if (job.job_id, job.restarts) in self._parked:
                return [job.job_id]
            answer = self._actuator.carry_out(Park(job.job_id, self._park_s))
            self._tell(job.job_id, answer.error if isinstance(answer, Refused) else "")
            if not isinstance(answer, Refused):
                self._parked.add((job.job_id, job.restarts))
        return []

    def again(self, job_ids: Sequence[int]) -> None:
        """Puts those off once more, in one call."""
        if job_ids:
            self._tell(job_ids[0], self._actuator.park_again(job_ids, self._park_s))

    def forget(self, job_id: int) -> None:
        self._parked = {t for t in self._parked if t[0] != job_id}

    def _tell(self, job_id: int, problem: str) -> None:
        if problem and problem != self._problem:  # once, not for every job at every epoch
            log.warning("job %d could not be kept waiting: %s", job_id, problem)
        self._problem = problem
