"""Which words of a job about its own length its steps refute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from synergy_core.job_report import Report
from synergy_core.records import Plan

from synergyd.control.state.credibility import LengthClaim, follow_claim

STEP = Report(1, 0, 5, step_s=1.0, plan=Plan(dp=4, micro_batch=16, global_batch=64))  # 64 sequences a second


def told(
    words: Iterator[tuple[float | None, float | None]], every_s: float = 60.0, restart_at: int = 10**9
) -> LengthClaim | None:
    """The claim after reports with these (done, total)."""
    claim = None
    for i, (done, total) in enumerate(words):
        report = replace(STEP, done=done, total=total, restarts=int(i >= restart_at))
        claim = follow_claim(claim, report, 64, i * every_s)
    return claim


def refuted(claim: LengthClaim | None) -> bool:
    return claim is not None and claim.is_refuted


def at_pace(share: float, minutes: int, total: float) -> Iterator[tuple[float, float]]:
    """An ordinary job that trains for `share` of its time."""
    return ((min(total, 64 * 60 * share * i), total) for i in range(minutes))


@pytest.mark.parametrize("share", [1.0, 0.7, 0.4])
@pytest.mark.parametrize("minutes", [10, 600])
def test_who_trains_to_its_end_is_believed(share: float, minutes: int) -> None:
    assert not refuted(told(at_pace(share, minutes, 64.0 * 60 * share * minutes)))


def test_a_total_that_grows_is_refuted_once_it_is_beyond_all_tolerance() -> None:
    assert not refuted(told(iter([(0.0, 1e6), (3840.0, 1.3e6)])))
    assert refuted(told(iter([(0.0, 1e6), (3840.0, 2e6)])))


@pytest.mark.parametrize("left", [10.0, 1e5])
def test_an_end_that_never_comes_is_refuted(left: float) -> None:
    stays = [(64.0 * 60 * i, 64.0 * 60 * i + left) for i in range(600)]
    assert refuted(told(iter(stays)))
    assert not refuted(told(iter(stays[:5])))
    assert refuted(told((1e9 - left, 1e9) for _ in range(600)))  # done stands still
    assert refuted(told((1e9, 1e9) for _ in range(600)))


def test_to_fall_silent_does_not_help_nor_does_a_restart() -> None:
    words = [(0.0, 1e5), *[(None, None)] * 150]
    assert refuted(told(iter(words)))
    assert refuted(told(iter([*words, (0.0, 1e9)])))
    assert refuted(told(((64.0 * 60 * i, 64.0 * 60 * i + 1e5) for i in range(120)), restart_at=60))


def test_who_never_says_a_length_has_nothing_to_refute() -> None:
    assert told((None, None) for _ in range(100)) is None
    bare = follow_claim(None, Report(1, 0, 5, done=1.0, total=2.0), None, 0.0)
    assert bare is not None and not bare.is_refuted
    assert not refuted(follow_claim(bare, Report(1, 0, 6, done=1.0, total=9.0), None, 1e6))  # no step, so no measure


def test_a_larger_batch_counts_as_what_it_trains() -> None:
    """Of a batch of 640 at a noise scale of 64 a step is worth 64 x 20/11 of the smallest."""
    claim = None
    for i in range(600):
        report = Report(1, 0, 5, step_s=1.0, plan=Plan(dp=4, global_batch=640), noise_scale=64.0)
        claim = follow_claim(
            claim, replace(report, done=64 * 20 / 11 * 60 * i, total=64 * 20 / 11 * 60 * 600), 64, i * 60.0
        )
    assert claim is not None and not claim.is_refuted
