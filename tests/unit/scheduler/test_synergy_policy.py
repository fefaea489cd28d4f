"""The default policy by prices, on the problems of the exact one's tests and on larger ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings

from synergyd.scheduler.epoch_answer import solve
from synergyd.scheduler.exact_policy import ExactPolicy
from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.problem.records import NodeCapacity, Problem
from synergyd.scheduler.solver.greedy import greedy
from synergyd.scheduler.solver.lagrangian import Effort
from synergyd.scheduler.synergy_policy import SynergyPolicy
from tests.unit.scheduler.builders import ask, brute_force, cell, cells
from tests.unit.scheduler.test_exact_policy import check, problems

PRICES = SynergyPolicy(exact_columns=0)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(problems(full=False))
def test_sound_and_bounded_on_sick_nodes(problem: Problem) -> None:
    answer = solve(problem, PRICES)
    assert not answer.placement.unplaced_reasons
    check(answer.problem, answer.allocation)
    best = brute_force(problem)
    first = PRICES.allocate(problem)
    if not place(problem.nodes, make_placement_requests(problem, first)).unplaced_reasons:
        assert first.objective <= best + 1e-5
    assert first.upper_bound >= best - 1e-5


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(problems(partitions=("p", "q")))
def test_sound_and_bounded_with_partitions_that_share_nodes(problem: Problem) -> None:
    answer = solve(problem, PRICES)
    assert not answer.placement.unplaced_reasons
    check(answer.problem, answer.allocation)
    assert PRICES.allocate(problem).upper_bound >= brute_force(problem) - 1e-5


def mixed(seed: int, jobs: int = 60, nodes: int = 12) -> Problem:
    """Nodes of 8, some sick; powers of two and whole nodes; half of the jobs run where they were laid."""
    rnd = random.Random(seed)
    rooms = tuple(NodeCapacity(f"n{i:02d}", "a100", rnd.choice([8, 8, 8, 7, 6, 3])) for i in range(nodes))
    free = {r.name: r.free for r in rooms}
    shapes = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8)]
    asks = []
    for j in range(jobs):
        offers = tuple(cell(round((n * g) ** rnd.uniform(0.3, 1.0), 3), n, g) for n, g in shapes)
        current = rnd.choice([0, 1, 2])
        fits = [name for name, left in free.items() if left >= 2**current]
        if fits and rnd.random() < 0.5:
            name = rnd.choice(fits)
            free[name] -= 2**current
            asks.append(ask(j, offers, current=current, nodes=(name,), discount=rnd.choice([0.0, 0.5, 0.97])))
        else:
            asks.append(ask(j, offers))
    return Problem(tuple(asks), rooms)


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_near_the_exact_answer_and_every_count_has_its_nodes(seed: int, stops: bool) -> None:
    problem = mixed(seed)
    runs = (replace(a, stoppable=stops and a.current is not None and a.discount > 0) for a in problem.jobs)
    problem = replace(problem, jobs=tuple(runs))
    found = PRICES.allocate(problem)
    placed = place(problem.nodes, make_placement_requests(problem, found))
    assert not placed.unplaced_reasons
    exact = ExactPolicy(time_limit_s=10).allocate(problem)
    assert found.upper_bound >= exact.objective - 1e-6
    assert found.objective <= exact.upper_bound + 1e-6
    assert exact.objective - found.objective <= 0.02 * abs(exact.objective) + 0.5
    assert PRICES.allocate(problem) == found


def test_a_small_job_makes_way_for_a_whole_node() -> None:
    small, wide = cells(1.0), (cell(2.0, gpus=2),)
    rooms = (NodeCapacity("n0", "a100", 2), NodeCapacity("n1", "a100", 2))
    sitting = tuple(ask(j, small, current=0, nodes=(f"n{j}",), discount=0.9) for j in range(2))
    found = PRICES.allocate(Problem((*sitting, ask(9, wide, 2)), rooms))
    assert found.choice == (0, 0, 0) and len(found.moved_jobs) == 1


def test_running_jobs_run_on_under_heavy_weights() -> None:
    runs = tuple(ask(j, cells(1.0, 1.5), current=0, nodes=("n",), discount=0.9, weight=0.01) for j in range(4))
    heavy = tuple(ask(10 + j, cells(1.0), weight=1000.0) for j in range(4))
    problem = Problem((*runs, *heavy), (NodeCapacity("n", "a100", 4),))
    assert PRICES.allocate(problem).choice == (0, 0, 0, 0, None, None, None, None)
    freely = replace(problem, jobs=(*(replace(a, stoppable=True) for a in runs), *heavy))
    assert PRICES.allocate(freely).choice == (None, None, None, None, 0, 0, 0, 0)


def test_effort_is_a_gap() -> None:
    loose = SynergyPolicy(exact_columns=0, effort=Effort(gap=0.5)).allocate(mixed(1))
    assert loose.upper_bound >= loose.objective


@pytest.mark.parametrize("seed", [1, 6, 9])
def test_no_job_is_stopped_for_good_where_waiting_is_worth_more_than_running(seed: int) -> None:
    """In Sia's form with a small wait_cost: prices are still tried until every job that may not stop runs."""
    problem, draw = mixed(seed), random.Random(seed)
    jobs = []
    for one in problem.jobs:
        stoppable = one.current is not None and draw.random() < 0.5
        jobs.append(replace(one, stoppable=stoppable, weight=draw.choice([1.0, 1.0, 5.0])))
    terms = replace(problem.terms, form="sia", exponent=-0.5, wait_cost=0.02)
    problem = replace(problem, jobs=tuple(jobs), terms=terms)
    assert PRICES.allocate(problem).objective > greedy(problem).objective
