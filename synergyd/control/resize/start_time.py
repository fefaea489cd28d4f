"""The owner of a pending job's start time: written by Synergy, or set later by its user or an admin. Pure.

Synergy keeps jobs from starting by a start time that it writes itself. Slurm shows one start time, and not who set it;
so what was written is remembered. `scontrol` computes it from its own clock a little later than it was decided: it is
known to lie in a window, and to the second once it was seen. All times are Slurm's, seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SLACK_S = 120.0  # from the decision to the write: a database and a slurmctld that answer just before their time-outs
_SECOND = 1.5  # Slurm keeps whole seconds


@dataclass(frozen=True, kw_only=True)
class WrittenStart:
    """The start times that Synergy wrote for the pending incarnation `restarts`."""

    restarts: int
    #: the latest lies from `low_s` to `high_s`: the same once it was seen; 0: nothing was written so far
    low_s: float = 0.0
    high_s: float = 0.0
    #: the one before, which may still be in force; 0: not known, so nothing can be told before the latest was seen
    before_s: float = 0.0

    def is_ours(self, eligible_s: float) -> bool:
        """Return whether Synergy may have written this start time."""
        within = self.low_s - _SECOND <= eligible_s <= self.high_s + _SECOND
        return within or not self.before_s or abs(eligible_s - self.before_s) <= _SECOND


def after_writing(before: WrittenStart | None, restarts: int, start_s: float) -> WrittenStart:
    """Return what is remembered when the start time `start_s` is about to be written."""
    if before is None or before.restarts != restarts:
        return WrittenStart(restarts=restarts, low_s=start_s, high_s=start_s + SLACK_S)
    if not before.high_s:
        return replace(before, low_s=start_s, high_s=start_s + SLACK_S)
    if before.low_s < before.high_s:  # not seen yet: it may come to be either
        return replace(before, low_s=min(before.low_s, start_s), high_s=max(before.high_s, start_s + SLACK_S))
    return WrittenStart(restarts=restarts, low_s=start_s, high_s=start_s + SLACK_S, before_s=before.low_s)


def after_seeing(written: WrittenStart | None, restarts: int, eligible_s: float | None) -> WrittenStart | None:
    """Return what is remembered when Slurm shows the start time `eligible_s`."""
    if eligible_s is None:
        return written
    if written is None or written.restarts != restarts or not written.high_s:
        return WrittenStart(restarts=restarts, before_s=eligible_s)
    if not written.is_ours(eligible_s):
        return written
    if written.low_s - _SECOND <= eligible_s <= written.high_s + _SECOND:
        return replace(written, low_s=eligible_s, high_s=eligible_s, before_s=eligible_s)
    return written


def put_off_until_s(
    written: WrittenStart | None, restarts: int, eligible_s: float | None, own_s: float | None, now_s: float
) -> float | None:
    """Return the start time that the job's user or an admin has set, or None if there is none or it is over.

    `own_s`: the one from sbatch, which counts until Synergy has written one. Slurm itself puts off the start of a
    requeued job, so a start time is nobody's if Synergy has not written to the job since.
    """
    if eligible_s is None or eligible_s <= now_s + _SECOND:
        return None
    if written is None or written.restarts != restarts or not written.high_s:
        return own_s if own_s is not None and own_s > now_s else None
    return None if written.is_ours(eligible_s) else eligible_s
