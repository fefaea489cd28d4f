"""When a job is expected to start and to end, as the daemon stores it and users read it."""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class Expected:
    """An uncertain time, seconds since 1970: an 80 % interval and its median."""

    #: 10th percentile
    low_s: float
    #: median
    middle_s: float
    #: 90th percentile
    high_s: float


@dataclass(frozen=True, kw_only=True)
class ExpectedJob:
    """A waiting or running job, with a `#SYNERGY` line or without."""

    #: Slurm's job id
    job_id: int
    #: its name in squeue, if not its id
    slurm_name: str = ""
    #: as its user named it
    name: str = ""
    #: its owner's login name
    user: str = ""
    #: its Slurm account
    account: str = ""
    #: Slurm's state: PENDING or RUNNING
    state: str = ""
    #: GPUs that it requests or holds
    gpus: int = 0
    #: number of its nodes, or of those that it requests
    nodes: int = 0
    #: expected start; null while it runs
    start: Expected | None = None
    #: expected end
    end: Expected | None = None
    #: why it waits, in words; "" if Slurm has not considered it yet, or Synergy decides about it
    why: str = ""
    #: `why` as data
    reasons: tuple[Reason, ...] = ()
