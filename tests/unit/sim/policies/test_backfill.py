"""First fit and EASY backfill, on examples worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_sim.policies.backfill import BackfillPolicy
from synergy_sim.policies.fifo import FifoPolicy
from synergy_sim.policies.first_fit import FirstFitPolicy

from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Problem
from tests.unit.scheduler.builders import ask, cell, sized

TWO = (NodeCapacity("n0", "a100", 4), NodeCapacity("n1", "a100", 4))
WIDE = ask(1, (cell(8.0, 2, 4),), 8)  # needs both nodes


def started(problem: Problem, policy: object = None) -> set[int]:
    """Jobs that wait now and get a Cell."""
    found = (policy or BackfillPolicy()).allocate(problem)  # type: ignore[attr-defined]
    return {a.job_id for a, c in zip(problem.jobs, found.choice, strict=True) if a.current is None and c is not None}


def behind(first: JobRequest) -> Problem:
    """Job 0 runs on n0; job 1 is the head; 2, 3 and 4 come behind it, for 150, 90 and 100 s."""
    return Problem((first, WIDE, sized(2, 4, 150.0), sized(3, 2, 90.0), sized(4, 2, 100.0)), TWO)


def test_only_those_pass_that_end_before_the_head_can_start() -> None:
    # Job 0 frees n0 after 100 s: then job 1 can start on both nodes. Job 2 would hold n1 until 150 s; job 3 is gone at
    # 90 s, job 4 at 100 s to the second.
    problem = behind(sized(0, 4, 100.0, ("n0",)))
    assert started(problem) == {3, 4}
    assert started(problem, FifoPolicy()) == set()
    # First fit takes job 2 as the first that fits; nothing is left for 3 and 4.
    assert started(problem, FirstFitPolicy()) == {2}
    assert started(problem, BackfillPolicy(depth=2)) == {3}  # only jobs 2 and 3 are tried


def test_a_long_job_may_use_what_the_head_will_not_need() -> None:
    # Job 0 holds n0 for 100 s, job 5 three GPUs of n1 for ever. Job 1 needs 4 GPUs on one node: n0 at 100 s. Job 2 may
    # have n1's last GPU for ever; job 3 too late: no GPU is left.
    asks = (
        sized(0, 4, 100.0, ("n0",)),
        sized(5, 3, None, ("n1",)),
        sized(1, 4, 50.0),
        sized(2, 1, None),
        sized(3, 1, 9.0),
    )
    assert started(Problem(asks, TWO)) == {2}


def test_with_ends_unknown_nobody_passes_but_where_the_head_can_not_run() -> None:
    rooms = (*TWO, NodeCapacity("h", "h100", 2))
    elsewhere = ask(9, (cell(1.0, 1, 1, "h100"),), 1)
    problem = behind(sized(0, 4, None, ("n0",)))
    assert started(replace(problem, jobs=(*problem.jobs, elsewhere), nodes=rooms)) == {9}


def test_two_jobs_end_before_the_head_starts() -> None:
    # n0 is free at 50 s, n1 at 80 s, where 2 GPUs are free already: the head's time is 80 s, not 50 s.
    asks = (sized(0, 4, 50.0, ("n0",)), sized(5, 2, 80.0, ("n1",)), WIDE, sized(2, 2, 80.0), sized(3, 2, 81.0))
    assert started(Problem(asks, TWO)) == {2}
    assert started(Problem((*asks[:3], asks[4]), TWO)) == set()


@pytest.mark.parametrize("policy", [BackfillPolicy(), FirstFitPolicy()])
def test_too_big_for_the_machine_holds_nobody_up_and_runners_stay(policy: object) -> None:
    # The first job needs 3 nodes, and there are 2. The runner on n0 could be stopped for the one behind it, and is not.
    asks = (ask(1, (cell(9.0, 3, 4),), 12), sized(2, 4, 5.0), sized(0, 4, 900.0, ("n0",)), sized(3, 4, 5.0))
    assert started(Problem(asks, TWO), policy) == {2}
