"""Hands each incarnation of each of Synergy's jobs the key that it may sign its reports with."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

from synergyd.slurm.owner_file import write_for
from synergyd.slurm.rows import JobRow
from synergyd.wire import job_key
from synergyd.wire.plan_file import plan_path

log = logging.getLogger("synergyd")


def key_path(state_dir: Path, job_id: int) -> Path:
    """Beside the job's plan."""
    return plan_path(state_dir, job_id).with_suffix(".key")


class JobKeys:
    """No job depends on it: most have munge."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._secret = b""
        self._given: dict[int, tuple[int, int]] = {}  # job -> (restarts, uid)
        self._problem = ""  # told once, not for every job at every epoch

    def keep(self, rows: Iterable[JobRow]) -> None:
        """Files for jobs that are in the queue, where they lack one; none for those that have left."""
        here = {r.job_id: (r.restarts, r.uid) for r in rows}
        problem = ""
        for job_id in self._given.keys() - here.keys():
            with contextlib.suppress(OSError):  # it signs for nothing any more
                key_path(self._state_dir, job_id).unlink(missing_ok=True)
        self._given = {i: life for i, life in self._given.items() if i in here}
        for job_id, life in here.items():
            if self._given.get(job_id) == life:
                continue
            try:
                self._secret = self._secret or job_key.secret(self._state_dir)
                key = job_key.key_of(self._secret, job_id, *life)
                write_for(key_path(self._state_dir, job_id), key.text(), life[1])
                self._given[job_id] = life
            except OSError as error:
                problem = f"{error.filename}: {error.strerror}"
        if problem and problem != self._problem:
            log.warning("jobs without munge can't report: %s", problem)
        self._problem = problem
