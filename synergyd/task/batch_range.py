"""The range that a job's batch may move in: as its user gave it, as Synergy chooses it (adapt=yes), and below a batch at which its loss
did worse. Pure."""

from __future__ import annotations

from dataclasses import replace

from synergyd.job_report import Report
from synergyd.loss_trend import LossTrend, follow
from synergyd.rates import worth
from synergyd.records import Directive, Job, Profile
from synergyd.task.plan_limits import MAX_BATCH


def with_range(job: Job, profile: Profile | None, cap: int, factor: float) -> Job:
    """`job` with its range. `cap`: JobLifecycle.batch_cap; `factor`: the setting AdaptBatch."""
    if job.directive is None or (job.directive.global_batch and not cap and not job.directive.adapt):
        return job
    base = profile.base_batch if profile is not None else None
    return replace(job, batches=batch_range(job.directive, base, cap, factor), batch_cap=cap)


def batch_range(directive: Directive, base: int | None, cap: int, factor: float) -> tuple[int, int] | None:
    """(low, high) sequences; None: the batch stays as it is.

    Where the directive names none it is the script's own, `base`, whatever was assumed before that was known. With adapt=yes it may
    grow from there to `factor` times as much.
    """
    given = directive.global_batch or ((base, base) if base else None)
    if given is None:
        return None
    if directive.adapt:
        given = given[0], min(MAX_BATCH, max(given[0], int(given[0] * factor)))
    return given[0], max(given[0], min(given[1], cap or given[1]))


def may_move(directive: Directive | None) -> bool:
    """Can Synergy ever move the batch of a job with this directive? Another batch of any other job is its script's own doing."""
    if directive is None:
        return False
    low, high = directive.global_batch or (0, 0)
    return directive.adapt or low < high


def after_loss(trend: LossTrend, report: Report, noise_scale: float | None) -> LossTrend:
    """The trend of the job's loss after a report. Its progress is in examples at a batch of 1, which are not known without the noise
    scale; the batch does not move without it."""
    if report.plan is None or noise_scale is None:
        return trend
    batch = report.plan.global_batch
    return follow(trend, report.step, report.loss, batch, worth(1.0, batch, noise_scale))
