"""A what-if run as the service reports it."""

from __future__ import annotations

from dataclasses import dataclass

# the settings that a simulation follows, and that can be tried; see docs/admin/settings.md
KEYS = ("Fairness", "FairnessBound", "ShortFirst", "DeadlineShare", "RestartShare", "Preemption", "FirstStart", "Epoch")


@dataclass(frozen=True, kw_only=True)
class WhatIfFigures:
    """How the recorded queue fares under one policy with its settings, in simulated time."""

    #: what ran: the policy with the settings tried
    label: str
    #: jobs replayed
    jobs: int
    #: average job completion time, seconds
    avg_jct_s: float
    #: median of them
    median_jct_s: float
    #: 99th percentile of them
    p99_jct_s: float
    #: from the first submission to the last end, seconds
    makespan_s: float
    #: average time from sbatch to the first start, seconds
    avg_queueing_s: float
    #: restarts a job
    restarts_per_job: float
    #: GPU hours held
    gpu_hours: float
    #: the least GPU time that the work needs over the GPU time held
    efficiency: float
    #: finish-time fairness of the worst job (Themis): above 1 it fared worse than on an equal share
    worst_ftf: float | None


@dataclass(frozen=True, kw_only=True)
class WhatIfSetting:
    """A setting that can be tried."""

    #: as in slurm.conf
    key: str
    #: its present value
    value: str
    #: what it may be
    takes: str
    #: what it does
    text: str


@dataclass(frozen=True, kw_only=True)
class WhatIfJson:
    """A user's last what-if run."""

    #: none, waiting (for others to end), running, done, failed or stopped
    state: str
    #: the policy to try; "": the one that runs
    policy: str = ""
    #: the settings to try, as in slurm.conf
    settings: tuple[str, ...] = ()
    #: when it began, or while it waits when it was asked for, seconds since 1970
    started_s: float | None = None
    #: done so far, 0 to 1
    share: float = 0.0
    #: as it is now, then as asked
    figures: tuple[WhatIfFigures, ...] = ()
    #: recorded jobs that can't be replayed, in words
    left_out: str = ""
    #: why it failed
    problem: str = ""
    #: what can be tried, the policy first, in the answer to GET
    now: tuple[WhatIfSetting, ...] = ()
