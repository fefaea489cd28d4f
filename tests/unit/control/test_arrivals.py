"""When an epoch comes early for jobs that were submitted."""

from __future__ import annotations

import pytest

from synergyd.control.arrivals import Arrivals


def after_an_epoch(took_s: float = 0.2, count: int | None = 7) -> Arrivals:
    """One of 60 s that began at 1000 s."""
    arrivals = Arrivals(60.0)
    arrivals.epoch_began(1000.0, count)
    arrivals.epoch_ended(1000.0 + took_s)
    return arrivals


@pytest.mark.parametrize(("took_s", "from_s"), [(0.2, 1010.0), (3.0, 1033.0), (30.0, 1330.0)])
def test_early_ones_are_apart_and_take_a_tenth_of_the_time_at_most(took_s: float, from_s: float) -> None:
    arrivals = after_an_epoch(took_s)
    assert not arrivals.may_look(from_s - 0.1) and arrivals.may_look(from_s)


def test_slurm_is_asked_twelve_times_in_an_epoch() -> None:
    arrivals = after_an_epoch()
    assert not arrivals.came(1012.0, 7)
    assert not arrivals.may_look(1016.9) and arrivals.may_look(1017.0)


@pytest.mark.parametrize(("count", "came"), [(7, False), (8, True), (0, False), (2, True)])
def test_a_job_that_was_submitted(count: int, came: bool) -> None:
    """The count begins anew at midnight, and when slurmctld starts."""
    assert after_an_epoch().came(1012.0, count) is came


def test_a_count_that_began_anew_is_no_job_and_the_next_one_is() -> None:
    arrivals = after_an_epoch()
    assert not arrivals.came(1012.0, 0) and not arrivals.came(1020.0, 0) and arrivals.came(1030.0, 7)


def test_a_slurm_that_does_not_tell_is_asked_once_an_epoch() -> None:
    arrivals = after_an_epoch()
    assert not arrivals.came(1012.0, None) and not arrivals.may_look(1e9)
    assert not after_an_epoch(count=None).may_look(1e9)


def test_none_comes_early_before_the_last_one_has_ended() -> None:
    arrivals = after_an_epoch()
    arrivals.epoch_began(1020.0, 8)  # and failed
    assert not arrivals.may_look(1e9)
