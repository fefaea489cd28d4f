"""The file that tells the job_submit plugin that a daemon is there to decide. If it is stale, new jobs run as plain Slurm jobs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("synergyd")
NAME = "heartbeat"
CLAIM = "leads-without-database"  # names the holder that wants to lead without the database
BEAT_S = 15.0  # between two


def compute_grace_s(epoch_s: float) -> float:
    """Return for how many seconds a daemon that completes no epoch is waited for."""
    return max(30.0, 3 * epoch_s)


def write(state_dir: Path, now_s: float, grace_s: float) -> None:
    """Write `<unix seconds> <grace seconds>`: the plugin lets a new job start by itself after the grace. Raises OSError."""
    fresh = state_dir / f".{NAME}.{os.getpid()}"
    fresh.write_text(f"{int(now_s)} {max(1, int(grace_s))}\n")
    fresh.chmod(0o644)
    fresh.replace(state_dir / NAME)


def read(state_dir: Path) -> str:
    """Return the file's text, which changes as long as a daemon beats, or "" if it can't be read."""
    try:
        return (state_dir / NAME).read_text(errors="replace")[:100]
    except OSError:
        return ""


def remove(state_dir: Path) -> None:
    """Remove the file: a daemon that ends, or must not act, says so at once."""
    (state_dir / NAME).unlink(missing_ok=True)


class Heartbeat:
    """The beats of this daemon, which last as long as epochs are completed.

    A daemon that decides nothing any more must not put off new jobs. `waited_s`: for how many seconds it has waited in
    all for its turn with Slurm, which does not count.
    """

    def __init__(self, state_dir: Path, grace_s: float, waited_s: Callable[[], float] = lambda: 0.0) -> None:
        self._state_dir, self._grace_s, self._waited_s = state_dir, grace_s, waited_s
        self._completed_s: float | None = None
        self._beat_s = 0.0

    def note_completed_epoch(self, now_s: float) -> None:
        """Note that an epoch has been completed, and beat."""
        self._completed_s = now_s - self._waited_s()
        self._write(now_s)

    def beat_if_due(self, now_s: float) -> None:
        """Beat if it is due, between two epochs."""
        alive = self._completed_s is not None and now_s - self._waited_s() <= self._completed_s + self._grace_s
        if alive and now_s >= self._beat_s + BEAT_S:
            self._write(now_s)

    def set_clock(self, by_s: float) -> None:
        """Move the times of this object: the time of day was set by `by_s` seconds."""
        self._beat_s += by_s
        if self._completed_s is not None:
            self._completed_s += by_s

    def _write(self, now_s: float) -> None:
        self._beat_s = now_s
        try:
            write(self._state_dir, now_s, self._grace_s)
        except OSError as error:  # it only makes the plugin look away
            log.warning("heartbeat can't be written in %s: %s", self._state_dir, error.strerror)


class StateDirWitness:
    """The signs that daemons see of one another without the database, as synergyd.store.leader.Witness.

    They are the heartbeat, and the daemon that leads without the database.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def read_sign(self) -> str:
        return f"{read(self._state_dir)} {self.read_claimant()}"

    def claim(self, holder: str) -> None:
        try:
            fresh = self._state_dir / f".{CLAIM}.{holder}"
            fresh.write_text(holder)
            fresh.replace(self._state_dir / CLAIM)
        except OSError:
            pass  # then `read_claimant` does not name it

    def read_claimant(self) -> str:
        try:
            return (self._state_dir / CLAIM).read_text(errors="replace")[:100]
        except OSError:
            return ""
