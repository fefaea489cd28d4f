"""What a dry run would have changed for a job, counted while it was watched."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WouldHave:
    """One job in a dry run: what it did, and what it would have done with Synergy."""

    #: Slurm's job id
    job_id: int
    #: when it was submitted, seconds since 1970
    submit_s: float
    #: as its user named it
    name: str
    #: its owner's login name
    user: str
    #: its Slurm account
    account: str
    #: GPUs of its sbatch line
    asked_gpus: int
    #: its script has a #SYNERGY line; if not, a prior of speed-ups predicts it
    has_line: bool
    #: first epoch that saw it, seconds since 1970
    from_s: float
    #: last epoch that saw it
    to_s: float
    #: GPUs that the last epoch would have given it
    wanted_gpus: int = 0
    #: running time
    ran_s: float = 0.0
    #: time that its requested size would have taken for the training that Synergy would have reached, less restarts
    useful_s: float = 0.0
    #: one sigma of `useful_s`
    sigma_s: float = 0.0
    #: waiting time
    waited_s: float = 0.0
    #: part of `waited_s` in which Synergy would have run it, at any size
    sooner_s: float = 0.0
    #: restarts at another size that it would have had
    changes: int = 0

    @property
    def saved_s(self) -> float:
        return self.useful_s - self.ran_s


@dataclass(frozen=True, kw_only=True)
class WouldHaveTotals:
    """Sums over jobs; names in `_h` are job hours."""

    #: jobs
    jobs: int = 0
    #: running time
    ran_h: float = 0.0
    #: saved for the same training
    saved_h: float = 0.0
    #: one sigma of saved_h
    sigma_h: float = 0.0
    #: waiting time
    waited_h: float = 0.0
    #: part of `waited_h` in which Synergy would have run them
    sooner_h: float = 0.0
    #: restarts at another size
    changes: int = 0
    #: saved_h / ran_h, as the gain of `synergyctl usage`; null if none ran
    gain: float | None = None
    #: one sigma of gain
    gain_sigma: float = 0.0


def totals(jobs: Iterable[WouldHave], shared_variance: float) -> WouldHaveTotals:
    """Return the sums. `shared_variance`: the part of the variance that jobs without a line have in common."""
    jobs = list(jobs)
    ran_s = sum(job.ran_s for job in jobs)
    saved_s = sum(job.saved_s for job in jobs)
    together_s = sum(job.sigma_s for job in jobs if not job.has_line)
    variance = sum(job.sigma_s**2 * (1.0 if job.has_line else 1.0 - shared_variance) for job in jobs)
    sigma_s = math.sqrt(variance + shared_variance * together_s**2)
    return WouldHaveTotals(
        jobs=len(jobs),
        ran_h=ran_s / 3600,
        saved_h=saved_s / 3600,
        sigma_h=sigma_s / 3600,
        waited_h=sum(job.waited_s for job in jobs) / 3600,
        sooner_h=sum(job.sooner_s for job in jobs) / 3600,
        changes=sum(job.changes for job in jobs),
        gain=saved_s / ran_s if ran_s > 0 else None,
        gain_sigma=sigma_s / ran_s if ran_s > 0 else 0.0,
    )
