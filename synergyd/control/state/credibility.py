"""Whether a job's own steps bear out what it said was left to do.

The work that is left decides who comes first (ShortFirst) and what a deadline needs, so a job gains by saying too
little. The steps that it reports refute that: a job that has trained for 1.5 times what was left by its most favourable
word, and has not ended, is not believed any more. Its deadline then needs nothing, and it counts as the longest: as
typical, it would keep what it gained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from synergy_core.job_report import Report
from synergy_core.rates import equivalent_sequences

_TOLERANCE = 1.5  # a learning rate schedule that is prolonged, an estimate that was rough
_SLACK_S = 900.0  # seconds of training: the last evaluation and checkpoint are steps of no length
#: the least share of its time that it trains: evaluations, checkpoints and others on its links take the rest
_BUSY = 0.5
_GAP_S = 600.0  # longest gap between two reports: a longer one may have been a pause


@dataclass(frozen=True, kw_only=True)
class LengthClaim:
    """The most favourable word so far, and what the job has trained since then by its own step times."""

    #: sequences left, as it said
    claimed_sequences: float
    #: sequences since then, at the least
    trained_sequences: float = 0.0
    #: sequences/s of its latest report
    rate: float = 0.0
    heard_s: float = 0.0
    restarts: int = 0
    #: its steps have refuted it: for good
    is_refuted: bool = False


def follow_claim(
    claim: LengthClaim | None, report: Report, batch_low: int | None, heard_s: float
) -> LengthClaim | None:
    """Return the claim after a report that came at `heard_s`, or None as long as the job says nothing of its length.

    `batch_low`: the smallest batch (sequences) of its range; a larger one trains less for each sequence.
    """
    if claim is not None and claim.is_refuted:
        return claim
    rate = _rate(report, batch_low)
    trained = 0.0
    if claim is not None:
        passed_s = heard_s - claim.heard_s if claim.restarts == report.restarts else 0.0
        trained = claim.trained_sequences + _BUSY * min(claim.rate, rate) * min(max(0.0, passed_s), _GAP_S)
    remaining = None if report.done is None or report.total is None else max(0.0, report.total - report.done)
    if claim is None:
        return (
            None
            if remaining is None
            else LengthClaim(claimed_sequences=remaining, rate=rate, heard_s=heard_s, restarts=report.restarts)
        )
    if remaining is not None and trained + remaining < claim.claimed_sequences:
        return LengthClaim(claimed_sequences=remaining, rate=rate, heard_s=heard_s, restarts=report.restarts)
    refuted = trained + (remaining or 0.0) > _TOLERANCE * claim.claimed_sequences + _SLACK_S * rate
    return replace(
        claim,
        trained_sequences=trained,
        rate=rate,
        heard_s=heard_s,
        restarts=report.restarts,
        is_refuted=refuted and rate > 0,
    )


def _rate(report: Report, batch_low: int | None) -> float:
    """Return the progress in sequences a second."""
    if report.plan is None or not report.step_s or report.step_s <= 0:
        return 0.0
    batch = report.plan.global_batch
    return (equivalent_sequences(batch_low, batch, report.noise_scale) if batch_low else float(batch)) / report.step_s
