"""Whether a run's loss goes on as before once its replicas exchange less. Pure."""

from __future__ import annotations

from synergyd.job_report import Report
from synergyd.loss_trend import NO_LOSSES, LossTrend, follow
from synergyd.rates import worth

# What loss_trend calls a batch, the smaller of which is known to be good.
_EXACT, _LESS = 1, 2


def after_exchange(trend: LossTrend, report: Report, noise_scale: float | None) -> LossTrend:
    """The trend of the job's loss after a report. Losses with less communication are on trial against those before, with all of it;
    once they have passed, or where there were none before, nothing is compared until every gradient is exchanged again."""
    if report.plan is None:
        return trend
    level = _EXACT if report.plan.exchange == "exact" else _LESS
    if level == _EXACT and trend.good == _LESS:
        trend = NO_LOSSES
    batch = report.plan.global_batch
    step_worth = float(batch) if noise_scale is None else worth(1.0, batch, noise_scale)
    return follow(trend, report.step, report.loss, level, step_worth)
