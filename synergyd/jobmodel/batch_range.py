"""The range that a job's batch may move in. Pure.

The range is as the job's user gave it, as Synergy chooses it (adapt=yes), and below a batch at which the loss did worse.
"""

from __future__ import annotations

from dataclasses import replace

from synergy_core.job_report import Report
from synergy_core.loss_trend import LossTrend, with_loss
from synergy_core.rates import equivalent_sequences
from synergy_core.records import Directive, Job, Profile

from synergyd.jobmodel.plan_limits import MAX_BATCH

#: The most that adapt=yes takes a batch to, in times the script's own: global_batch=LO:HI names any other range.
ADAPT_FACTOR = 4.0


def with_range(job: Job, profile: Profile | None, cap: int) -> Job:
    """Return `job` with its batch range. `cap`: JobLifecycle.batch_cap."""
    if job.directive is None or (job.directive.global_batch and not cap and not job.directive.adapt):
        return job
    base = profile.base_batch if profile is not None else None
    return replace(job, batches=batch_range(job.directive, base, cap), batch_cap=cap)


def batch_range(
    directive: Directive, base: int | None, cap: int, factor: float = ADAPT_FACTOR
) -> tuple[int, int] | None:
    """Return (low, high) sequences, or None where the batch stays as it is.

    Where the directive names no range it is the script's own batch, `base`, whatever was assumed before that was known. With
    adapt=yes it may grow from there to `factor` times as much.
    """
    limits = directive.global_batch or ((base, base) if base else None)
    if limits is None:
        return None
    if directive.adapt:
        limits = limits[0], min(MAX_BATCH, max(limits[0], int(limits[0] * factor)))
    return limits[0], max(limits[0], min(limits[1], cap or limits[1]))


def may_move(directive: Directive | None) -> bool:
    """Return whether Synergy can ever move the batch of a job with this directive.

    Another batch of any other job is its script's own doing.
    """
    if directive is None:
        return False
    low, high = directive.global_batch or (0, 0)
    return directive.adapt or low < high


def after_loss(trend: LossTrend, report: Report, noise_scale: float | None) -> LossTrend:
    """Return the trend of the job's loss after a report.

    Its progress is in examples at a batch of 1. These are not known without the noise scale, and the batch does not move without
    it.
    """
    if report.plan is None or noise_scale is None:
        return trend
    batch = report.plan.global_batch
    return with_loss(trend, report.step, report.loss, batch, equivalent_sequences(1.0, batch, noise_scale))
