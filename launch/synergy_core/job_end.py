"""How a job ended, by Slurm's own account."""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.formatting import format_duration


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """The end of a job that has left the queue, as Slurm remembers it."""

    #: Slurm's state: COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, ...
    state: str
    #: of its batch script
    exit_code: int
    #: that ended its batch script, 0 for none
    signal: int
    #: begin of its last run, seconds since 1970
    start_s: float | None
    #: end of its last run, seconds since 1970
    end_s: float | None


def format_end(end: JobEnd) -> str:
    """Return a text such as `FAILED, exit code 3, after 13 min`."""
    how = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
    if end.start_s is None or end.end_s is None:
        return f"{end.state}, {how}"
    return f"{end.state}, {how}, after {format_duration(end.end_s - end.start_s)} in its last run"
