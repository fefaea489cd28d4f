"""When an epoch comes early for jobs that were submitted, or that have ended."""

from __future__ import annotations

import pytest

from synergyd.control.arrivals import Arrivals, JobCounts

BEFORE = JobCounts(submitted=7, ended=5)


def after_an_epoch(
    took_s: float = 0.1, counts: JobCounts | None = BEFORE, *, waits: bool = False, limited: bool = False
) -> Arrivals:
    """Return those of an epoch of 60 s that began at 1000 s."""
    arrivals = Arrivals(60.0)
    arrivals.begin_epoch(1000.0, counts)
    arrivals.end_epoch(1000.0 + took_s, waits=waits, limited=limited)
    return arrivals


@pytest.mark.parametrize(("took_s", "from_s"), [(0.1, 1001.0), (3.0, 1018.0), (30.0, 1180.0)])
def test_early_ones_are_apart_and_take_a_fifth_of_the_time_at_most(took_s: float, from_s: float) -> None:
    arrivals = after_an_epoch(took_s)
    assert not arrivals.can_look(from_s - 0.1) and arrivals.can_look(from_s)


@pytest.mark.parametrize(("limited", "every_s"), [(False, 0.9), (True, 5.0)])
def test_slurm_is_asked_each_second_and_seldom_where_it_limits_requests(limited: bool, every_s: float) -> None:
    arrivals = after_an_epoch(limited=limited)
    assert not arrivals.is_epoch_due(1012.0, BEFORE)
    assert not arrivals.can_look(1011.9 + every_s) and arrivals.can_look(1012.1 + every_s)


@pytest.mark.parametrize(("submitted", "came"), [(7, False), (8, True), (0, False), (2, True)])
def test_a_job_that_was_submitted(submitted: int, came: bool) -> None:
    """The count begins anew at midnight, and when slurmctld starts."""
    assert after_an_epoch().is_epoch_due(1012.0, JobCounts(submitted, 5)) is came


@pytest.mark.parametrize(
    ("ended", "waits", "came"), [(6, True, True), (6, False, False), (0, True, False), (1, True, True)]
)
def test_a_job_that_has_ended_counts_where_another_waits(ended: int, waits: bool, came: bool) -> None:
    assert after_an_epoch(waits=waits).is_epoch_due(1012.0, JobCounts(7 if ended > 5 else 0, ended)) is came


def test_a_count_that_began_anew_is_no_job_and_the_next_one_is() -> None:
    arrivals, none = after_an_epoch(), JobCounts(0, 0)
    assert not arrivals.is_epoch_due(1012.0, none) and not arrivals.is_epoch_due(1020.0, none)
    assert arrivals.is_epoch_due(1030.0, JobCounts(7, 0))


def test_a_slurm_that_does_not_tell_is_asked_once_an_epoch() -> None:
    arrivals = after_an_epoch()
    assert not arrivals.is_epoch_due(1012.0, None) and not arrivals.can_look(1e9)
    assert not after_an_epoch(counts=None).can_look(1e9)


def test_none_comes_early_before_the_last_one_has_ended() -> None:
    arrivals = after_an_epoch()
    arrivals.begin_epoch(1020.0, JobCounts(8, 5))  # and failed
    assert not arrivals.can_look(1e9)
