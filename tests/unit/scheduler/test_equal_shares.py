"""An equal share is one of users first, then of a user's jobs: what one user submits in number changes little for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synergyd.scheduler.problem.finish_time_fairness import equal_share, job_parts
from synergyd.scheduler.problem.priorities import with_claims
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Objective, Progress
from synergyd.scheduler.problem.rules import make_decision_rules
from synergyd.settings import Settings
from tests.unit.scheduler.builders import ask, cell, cells

ANN, BOB, EVE = 1000, 1001, 1002
ROOMS = (NodeCapacity("n0", "a100", 8), NodeCapacity("n1", "a100", 8))
BOUND = Settings(fairness_bound=2.0, restart_cost_s=30.0)
WIDE = (cell(1.0, 1, 1), cell(8.0, 1, 8))
HOUR = 3600.0


def wide(job_id: int, uid: int, **changes: object) -> JobRequest:
    """An hour on 8 GPUs."""
    return ask(
        job_id,
        WIDE,
        8,
        uid=uid,
        progress=Progress(remaining=8 * HOUR, trained_sequences=0.0),
        age_s=2.5 * HOUR,
        **changes,
    )


def tiny(count: int, uid: int, first_id: int = 100) -> list[JobRequest]:
    """A minute on one GPU each."""
    offers, left = cells(1.0), Progress(remaining=60.0, trained_sequences=0.0)
    return [ask(first_id + i, offers, 1, uid=uid, progress=left, age_s=600.0) for i in range(count)]


def overdue(jobs: list[JobRequest], settings: Settings = BOUND) -> dict[int, float]:
    return {
        one.job_id: one.overdue_s
        for one in with_claims(jobs, ROOMS, Objective(), make_decision_rules(settings).claims, 0.0)[0]
    }


def test_many_small_jobs_of_one_user_keep_nobody_else_from_being_due() -> None:
    alone, beside = overdue([wide(1, ANN)]), overdue([wide(1, ANN), *tiny(1000, EVE)])
    assert alone[1] > 0
    assert beside[1] == overdue([wide(1, ANN), *tiny(2, EVE)])[1] > 0
    # nor are her own due before they have waited for what they take on her half of the GPUs: 1000 minutes on 8
    assert all(late < 0 for job_id, late in beside.items() if job_id != 1)


def test_a_users_own_jobs_share_his_part() -> None:
    two = job_parts([wide(1, ANN), *(wide(i, BOB) for i in range(2, 6))], {"a100": 16})
    assert two == pytest.approx({ANN: 2.0, BOB: 8.0})
    # one user alone: all GPUs over all jobs
    assert job_parts([wide(i, ANN) for i in range(1, 4)], {"a100": 16}) == {ANN: 3.0}
    assert job_parts([], {"a100": 16}) == job_parts([wide(1, ANN)], {}) == {}


def test_what_a_user_can_not_use_is_shared_by_the_others() -> None:
    found = job_parts([*tiny(1, EVE), wide(1, ANN), wide(2, ANN), wide(3, BOB), wide(4, BOB)], {"a100": 16})
    # Eve's job takes one GPU at most: 15 are left for Ann and Bob
    assert found[ANN] == found[BOB] == pytest.approx(2 * 16 / 7.5)
    assert equal_share(WIDE, {"a100": 16}, found[ANN]) == pytest.approx(1 + 7 * (3.75 - 1) / 7)


def test_a_deadlines_share_does_not_shrink_with_other_users_jobs() -> None:
    def needed(others: list[JobRequest]) -> float:
        late = replace(wide(1, ANN), deadline_s=1.2 * HOUR)
        return with_claims([late, *others], ROOMS, Objective(), make_decision_rules(BOUND).claims, 0.0)[0][
            0
        ].needed_goodput

    assert needed(tiny(1000, EVE)) == needed(tiny(8, EVE)) > 0
    nowhere = with_claims(
        [replace(wide(1, ANN), deadline_s=HOUR)], (), Objective(), make_decision_rules(BOUND).claims, 0.0
    )[0][0]
    assert nowhere.needed_goodput == 0.0


def test_the_length_that_short_jobs_go_first_by_has_no_user() -> None:
    """Who submits more jobs does not make each of them longer."""
    jobs = [wide(1, ANN), *(wide(i, BOB) for i in (2, 3))]
    found = with_claims(jobs, ROOMS, Objective(), make_decision_rules(replace(BOUND, short_first=1.0)).claims, 0.0)[0]
    assert [one.length_factor for one in found] == [1.0, 1.0, 1.0]
