"""The range that a job's batch may move in."""

from __future__ import annotations

import pytest
from synergy_core.job_report import Report
from synergy_core.loss_trend import NO_LOSSES
from synergy_core.records import Directive, Job, JobState, Plan, Profile, Shape

from synergyd.jobmodel.batch_range import after_loss, batch_range, may_move, with_range
from synergyd.jobmodel.plan_limits import MAX_BATCH

SHAPE = Shape("a100", 1, 8)


@pytest.mark.parametrize(
    ("directive", "base", "cap", "factor", "expected"),
    [
        (Directive(), None, 0, 4.0, None),
        (Directive(), 64, 0, 4.0, (64, 64)),
        (Directive(), 64, 32, 4.0, (64, 64)),
        (Directive(global_batch=(64, 512)), 32, 0, 4.0, (64, 512)),
        (Directive(global_batch=(64, 512)), 32, 128, 4.0, (64, 128)),
        (Directive(global_batch=(64, 512)), 32, 32, 4.0, (64, 64)),  # never below what its user gave
        (Directive(adapt=True), None, 0, 4.0, None),
        (Directive(adapt=True), 64, 0, 4.0, (64, 256)),
        (Directive(adapt=True), 64, 0, 0.0, (64, 64)),
        (Directive(adapt=True), 64, 128, 4.0, (64, 128)),
        (Directive(adapt=True, global_batch=(96, 96)), 64, 0, 4.0, (96, 384)),
        (Directive(adapt=True), MAX_BATCH, 0, 4.0, (MAX_BATCH, MAX_BATCH)),
    ],
)
def test_ranges(
    directive: Directive, base: int | None, cap: int, factor: float, expected: tuple[int, int] | None
) -> None:
    assert batch_range(directive, base, cap, factor) == expected


def test_a_job_keeps_its_directive_and_one_without_either_is_left_as_it_is() -> None:
    job = Job(
        7, "j", "u", 1, "gpu", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape=SHAPE, asked=SHAPE,
        directive=Directive(global_batch=(64, 512)),
    )  # fmt: skip
    assert with_range(job, Profile(base_batch=32), 0) is job and job.batch_range == (64, 512)
    capped = with_range(job, None, 128)
    assert (capped.batch_range, capped.batch_cap, capped.directive) == ((64, 128), 128, job.directive)


def test_progress_of_a_larger_batch_is_what_its_examples_are_worth() -> None:
    """At a noise scale of 64 a step of 64 is worth half of its examples, one of 192 a quarter: 1.5 times as much."""
    trend = NO_LOSSES
    for step, batch in enumerate([64, 64, 192, 192]):
        trend = after_loss(trend, Report(7, 0, step, loss=1.0 + step, plan=Plan(global_batch=batch)), 64.0)
    at = [progress for progress, _ in trend.points_before]
    assert (at[3] - at[2]) / (at[1] - at[0]) == pytest.approx(1.5)


def test_losses_count_once_the_worth_of_a_step_is_known() -> None:
    """Without a noise scale a step is worth 1 whatever its batch: the same trend would have two units of progress."""
    report = Report(7, 0, 3, loss=1.0, plan=Plan(global_batch=64))
    assert after_loss(NO_LOSSES, report, None) == NO_LOSSES
    assert after_loss(NO_LOSSES, report, 64.0).points_before == ((0.0, 1.0),)


def test_whose_batch_may_move() -> None:
    assert [may_move(d) for d in (None, Directive(), Directive(global_batch=(8, 8)))] == [False] * 3
    assert may_move(Directive(adapt=True)) and may_move(Directive(global_batch=(8, 16)))
    assert may_move(Directive(adapt=True, global_batch=(8, 8)))
