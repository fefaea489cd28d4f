"""Shields: short reservations that keep a restarting job's nodes free of other jobs. Only Synergy's own are ever deleted."""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Container, Sequence
from functools import cached_property

from synergyd.slurm.client import SlurmError, SlurmWriter
from synergyd.slurm.parsed.reservations import read_shields, shield_name

log = logging.getLogger("synergyd")


class Shields:
    """The shields of this daemon's user. A shield that stays behind passes by itself after some minutes."""

    def __init__(self, slurm: SlurmWriter) -> None:
        self._slurm = slurm
        self._problem = ""  # told once

    @cached_property
    def _user(self) -> str:
        try:
            return pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            return str(os.geteuid())

    def put_up(self, job_id: int, nodes: Sequence[str]) -> str:
        """Keep `nodes` for the job. Return why that is not possible, or "" if it is done."""
        name = shield_name(job_id)
        try:
            if job_id in self._find_own(self._slurm.reservations()):  # for other nodes, it may be
                self._slurm.unreserve(name)
            self._slurm.reserve(name, nodes, self._user)
        except SlurmError as error:
            if error.what != self._problem:
                log.warning("job %d: its nodes can't be kept while it restarts: %s", job_id, error)
            self._problem = error.what
            return error.what
        return ""

    def take_down(self, job_id: int) -> None:
        """End the job's shield, if it has one. Raises SlurmError."""
        if job_id in self._find_own(self._slurm.reservations()):
            self._slurm.unreserve(shield_name(job_id))

    def take_down_all(self, but: Container[int]) -> None:
        """End the shields that an earlier daemon left, except those of the jobs `but`."""
        try:
            for job_id in self._find_own(self._slurm.reservations()):
                if job_id not in but:
                    self._slurm.unreserve(shield_name(job_id))
                    log.info("job %d: the reservation %s was left behind: deleted", job_id, shield_name(job_id))
        except SlurmError as error:
            log.warning("reservations that were left behind: %s", error)

    def _find_own(self, text: str) -> list[int]:
        return [s.job_id for s in read_shields(text) if s.user == self._user]
