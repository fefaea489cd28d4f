"""When a job is expected to start and to end, as the daemon stores it and users read it."""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A time that is not certain, seconds since 1970: in 8 of 10 cases it lies between `low_s` and `high_s`."""

    #: 1 of 10 cases is earlier
    low_s: float
    #: as many cases are earlier as later
    middle_s: float
    #: 1 of 10 cases is later
    high_s: float


@dataclass(frozen=True, kw_only=True)
class ExpectedJob:
    """A job of the cluster that waits or runs, with a `#SYNERGY` line or without."""

    #: Slurm's job id
    job_id: int
    #: what squeue calls it where that is not its id
    slurm_name: str = ""
    #: as its user named it
    name: str = ""
    #: its owner's login name
    user: str = ""
    #: its Slurm account
    account: str = ""
    #: Slurm's state: PENDING or RUNNING
    state: str = ""
    #: GPUs that it asks for, or holds
    gpus: int = 0
    #: its nodes, or the number that it asks for
    nodes: int = 0
    #: when it will start; null where it runs, or where nobody can tell
    start: Expected | None = None
    #: when it will end; null where nobody can tell
    end: Expected | None = None
    #: why it waits, in words; "" where Slurm has not looked at it yet, or Synergy decides about it
    why: str = ""
    #: the same as data
    reasons: tuple[Reason, ...] = ()
