"""The keys with which each incarnation of each of Synergy's jobs may sign its reports."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterable
from pathlib import Path

from synergy_core.wire import job_key
from synergy_core.wire.job_key import SecretFile
from synergy_core.wire.plan_file import plan_path

from synergyd.slurm.owner_file import write_for_user
from synergyd.slurm.parsed.rows import JobRow

log = logging.getLogger("synergyd")
WRITES_AN_EPOCH = 200  # refused ones too; 5 file operations each, and StateDir may be on a shared file system


def key_path(state_dir: Path, job_id: int) -> Path:
    """Return the path of the job's key, beside its plan."""
    return plan_path(state_dir, job_id).with_suffix(".key")


class JobKeys:
    """The key files of jobs. No job depends on them: most have munge."""

    def __init__(self, state_dir: Path, secret: SecretFile) -> None:
        self._state_dir, self._secret = state_dir, secret
        self._given: dict[int, tuple[int, int]] = {}  # job -> (restarts, uid)
        self._refused = set[int]()  # in the epoch before: their turn comes last
        self._no_acls = False
        self._problem = ""  # told once, not for every job at every epoch

    def keep(self, rows: Iterable[JobRow]) -> None:
        """Write key files for these jobs if they lack one, a limited number an epoch, and remove all others.

        `rows` are all jobs that run or are about to.
        """
        if self._no_acls:
            return
        here = {r.job_id: (r.restarts, r.uid) for r in rows}
        for job_id in self._given.keys() - here.keys():
            with contextlib.suppress(OSError):  # it signs for nothing any more
                key_path(self._state_dir, job_id).unlink(missing_ok=True)
        self._given = {i: life for i, life in self._given.items() if i in here}
        self._refused &= here.keys()
        due = [i for i, life in here.items() if self._given.get(i) != life]
        due.sort(key=lambda i: i in self._refused)
        self._tell(self._write({i: here[i] for i in due[:WRITES_AN_EPOCH]}))

    def _write(self, lives: dict[int, tuple[int, int]]) -> OSError | None:
        """Write the key files. Return what went wrong last, or None."""
        problem = None
        for job_id, life in lives.items():
            try:
                secret = self._secret.read_or_make()
            except OSError as error:
                return error
            try:
                write_for_user(
                    key_path(self._state_dir, job_id), job_key.derive_job_key(secret, job_id, *life).text(), life[1]
                )
                self._given[job_id] = life
                self._refused.discard(job_id)
            except OSError as error:
                problem = error
                self._refused.add(job_id)
                if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP):
                    self._no_acls = True
                    break
        return problem

    def _tell(self, problem: OSError | None) -> None:
        message = (
            (problem.strerror or str(problem)) if problem else ""
        )  # without the path: each epoch has other jobs' files
        if problem and message != self._problem:
            then = "; run synergyd as root or with StateDir where ACLs work, then restart it" if self._no_acls else ""
            log.warning("jobs without munge can't report: %s: %s%s", problem.filename, message, then)
        self._problem = message
