"""Which of a job's launchers train, and what all of them have made of a request."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.job_report import Report

from synergyd.control.state.launchers import MAX_LAUNCHERS, NO_LAUNCHERS, Launchers

FIRST = Report(7, 0, 5, launcher="0.0", listens=True)
SECOND = replace(FIRST, launcher="1.0")


def hear(*reports: Report) -> Launchers:
    known = NO_LAUNCHERS
    for report in reports:
        known = known.with_report(report)
    return known


def test_one_after_another_the_one_that_trains_counts() -> None:
    done = replace(FIRST, checkpoint_requests=3, requested=3, ended=True)
    assert hear(FIRST, done).have_ended and not hear(FIRST, done).take_requests
    both = hear(FIRST, done, SECOND)
    assert (
        not both.have_ended
        and both.take_requests
        and (both.checkpoints_taken, both.most_checkpoints_taken, both.latest_request) == (0, 0, 0)
    )


def test_at_once_all_must_have_taken_it() -> None:
    first, second = replace(FIRST, checkpoint_requests=2, requested=2), replace(SECOND, requested=1)
    assert (
        hear(first, second).checkpoints_taken,
        hear(first, second).most_checkpoints_taken,
        hear(first, second).latest_request,
    ) == (0, 2, 1)
    assert hear(first, replace(second, ended=True)).checkpoints_taken == 2


def test_of_a_step_on_several_nodes_the_one_that_says_most_counts() -> None:
    last_node = replace(FIRST, launcher="0.3", checkpoint_requests=1, requested=1)
    both = hear(FIRST, last_node)
    assert (both.checkpoints_taken, both.latest_request) == (1, 1)
    assert not hear(FIRST, replace(last_node, ended=True)).have_ended


def test_a_launcher_that_only_says_that_it_is_there_trains_nothing_yet() -> None:
    hello = replace(SECOND, silent=True)
    assert hear(hello).reports == {} and not hear(hello).have_ended
    assert hear(FIRST, hello) == hear(FIRST)
    # a question without news changes nothing, a goodbye does
    trained = replace(FIRST, checkpoint_requests=1)
    assert hear(trained, replace(FIRST, silent=True)).checkpoints_taken == 1
    assert hear(trained, replace(FIRST, silent=True, ended=True)).have_ended


def test_an_older_launcher_does_not_listen() -> None:
    older = Report(7, 0, 5, checkpoint_requests=1)
    assert not hear(older).take_requests and not hear(older).have_ended and hear(older).checkpoints_taken == 1
    assert not hear(FIRST, older).take_requests


def test_another_incarnation_begins_anew_and_there_is_a_bound() -> None:
    assert hear(FIRST, replace(SECOND, restarts=1)).reports == {"1.0": replace(SECOND, restarts=1)}
    many = hear(*(replace(FIRST, launcher=f"{i}.0") for i in range(MAX_LAUNCHERS + 5)))
    assert len(many.reports) == MAX_LAUNCHERS and "0.0" not in many.reports
