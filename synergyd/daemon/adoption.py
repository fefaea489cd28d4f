"""The addresses for jobs that Synergy does not start.

They are told where to report while they run, or before, if they need it from their start on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Container, Iterable
from pathlib import Path

from synergy_core.errors import SynergyError, UsageError
from synergy_core.wire import plan_file

from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.client import DeniedError

log = logging.getLogger("synergyd")
ADOPTED_AN_EPOCH = 200  # each is an update to slurmctld


class Adoption:
    """The hand-over of addresses. `reports` and `links` are this daemon's own; `state_dir` is where jobs are handed theirs."""

    def __init__(self, actuator: Actuator, state_dir: Path, reports: str, links: str) -> None:
        self._actuator, self._state_dir, self._addresses = actuator, state_dir, (reports, links)
        self._told: set[tuple[int, int]] = set()

    def adopt(self, lives: Iterable[JobLifecycle], waiting: Container[int] = ()) -> None:
        """Tell their addresses to jobs that were not told yet, a limited number an epoch.

        These are jobs that run, or that Slurm is to start next (`waiting`). Raise DeniedError if this daemon may not
        update jobs.
        """
        reports, links = self._addresses
        room = ADOPTED_AN_EPOCH
        for life in lives:
            is_due = life.state is ResizeState.RUNNING or life.job_id in waiting
            if (life.job_id, life.incarnation) in self._told or not is_due:
                continue
            answer = read_start_answer(self._state_dir, life.job_id)
            addresses = None if answer is None else (answer.report, answer.by, answer.links, answer.only_reports)
            if self._is_open(life.job_id) or addresses != (reports, os.getuid(), links, self._actuator.only_reports):
                if not room:
                    continue
                room -= 1
                try:
                    self._actuator.adopt(life.job_id, answer.plan if answer else None)
                except DeniedError:
                    raise
                except (SynergyError, OSError) as error:
                    log.warning("job %d could not be told where to report: %s", life.job_id, error)
                    continue
            self._told.add((life.job_id, life.incarnation))

    def _is_open(self, job_id: int) -> bool:
        """Return whether any user can read the plan of this job, as an earlier version wrote it, although Slurm hides jobs."""
        with contextlib.suppress(OSError):
            mode = plan_file.plan_path(self._state_dir, job_id).stat().st_mode
            return bool(mode & stat.S_IROTH) and "jobs" in self._actuator.slurm.private
        return False

    def withdraw(self) -> None:
        """Take back what a dry run has handed to jobs: it ends, and nobody takes their reports any more."""
        for job_id in {job_id for job_id, _ in self._told}:
            self.forget(job_id)

    def forget(self, job_id: int) -> None:
        if self._actuator.only_reports and any(entry[0] == job_id for entry in self._told):
            remove_plan(self._state_dir, job_id)
        self._told = {t for t in self._told if t[0] != job_id}

    def forget_all(self) -> None:
        self._told = set()


def read_start_answer(state_dir: Path, job_id: int) -> plan_file.PlanFile | None:
    """Return what a job was told at its start, or None if it was told nothing that can be read."""
    try:
        return plan_file.read(plan_file.plan_path(state_dir, job_id), job_id)
    except UsageError:
        return None


def remove_plan(state_dir: Path, job_id: int) -> None:
    """Remove the plan of a job that is gone."""
    path = plan_file.plan_path(state_dir, job_id)
    try:
        path.unlink(missing_ok=True)
        for end in (".sh", ".key"):
            path.with_suffix(end).unlink(missing_ok=True)
        plan_file.fresh_path(state_dir, job_id).unlink(missing_ok=True)
    except OSError as error:
        log.warning("plan of job %d can't be removed: %s", job_id, error.strerror)
