"""Sia and Pollux on examples worked by hand."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from synergy_sim.policies.pollux import PolluxPolicy, _table
from synergy_sim.policies.sia import SiaPolicy

from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Objective, Problem
from tests.unit.scheduler.builders import ask, cell, cells, random_problem

LINEAR = cells(3.0, 6.0, 12.0)  # 1, 2, 4 GPUs
GOOD = cells(1.0, 1.9, 3.6)


def room(free: int, name: str = "n0") -> NodeCapacity:
    return NodeCapacity(name, "a100", free)


def runs(job_id: int, offers: tuple, index: int, *names: str, **changes: object) -> JobRequest:  # type: ignore[type-arg]
    return ask(job_id, offers, 1, current=index, nodes=names or ("n0",), **changes)


def test_sia_weighs_rows_by_their_least_and_its_gpus() -> None:
    # Rows over their minimum times its GPUs: 1, 2, 4, so gains of 1.1 - 1, 1.1 - .707 and (not open to it: more than twice
    # its GPUs) 1.1 - .5.
    problem = Problem((runs(0, LINEAR, 0),), (room(4),))
    assert SiaPolicy().gains(problem, 0) == pytest.approx({0: 0.1, 1: 1.1 - 0.5**0.5})
    # A job that needs 2 GPUs at least counts from 2: 1.1 - 2^-.5 there; a waiting one starts on its least only.
    big = Problem((ask(0, LINEAR[1:], 2),), (room(4),))
    assert SiaPolicy().gains(big, 0) == pytest.approx({0: 1.1 - 0.5**0.5})
    # A change counts with its discount: (.64 x 2)^-.5 = .884; at .4 it is worth less than to wait, and falls out.
    assert SiaPolicy().gains(Problem((runs(0, LINEAR, 0, discount=0.64),), (room(4),)), 0)[1] == pytest.approx(
        0.2161, abs=1e-4
    )
    assert set(SiaPolicy().gains(Problem((runs(0, LINEAR, 0, discount=0.4),), (room(4),)), 0)) == {0}


def test_sia_does_not_hold_back_a_job_younger_than_a_restart() -> None:
    # In its first 60 s the factor would be 0 or so; then it counts, and .3 x 2 is less than the 1 that it has.
    for age, expected in ((59.0, 1), (60.0, 0)):
        problem = Problem((runs(0, LINEAR, 0, discount=0.3, age_s=age),), (room(4),), restart_cost_s=60.0)
        assert SiaPolicy().allocate(problem).choice == (expected,)


def test_sia_rows_count_from_the_slowest_type() -> None:
    # Least goodput: 2 on 2 l4 GPUs, which counts as 2; so 6 on one a100 GPU counts as 6, 12 as 12 (not twice its GPUs).
    offers = (cell(6.0, gpus=1), cell(2.0, gpus=2, kind="l4"), cell(12.0, gpus=4))
    problem = Problem((ask(0, offers, 1),), (room(4), NodeCapacity("l", "l4", 4)))
    assert SiaPolicy().gains(problem, 0) == pytest.approx({0: 1.1 - 6**-0.5, 1: 1.1 - 2**-0.5})


def test_sia_has_only_powers_of_two_and_whole_nodes() -> None:
    offers = (
        cell(1.0, gpus=1),
        cell(2.9, gpus=3),
        cell(3.0, 2, 2),
        cell(5.0, gpus=6),
        cell(9.0, 2, 6),
        cell(1.5, 2, 1),
    )
    problem = Problem((runs(0, offers, 3, discount=1.0),), (room(6), room(6, "n1")))
    assert set(SiaPolicy().gains(problem, 0)) == {0, 3, 4}
    # A fixed job has but its own size.
    assert set(SiaPolicy().gains(Problem((ask(0, offers[1:2], 3),), (room(6),)), 0)) == {0}


def test_sia_allocates_the_best_sum() -> None:
    waiting, running = ask(1, LINEAR, 1), runs(0, LINEAR, 0)
    # 4 GPUs: job 0 doubles (.393) and job 1 starts (.1).
    assert SiaPolicy().allocate(Problem((running, waiting), (room(4),))).choice == (1, 0)
    # 2 GPUs: .393 for job 0 alone is more than .1 + .1 for both, the paper's own choice of objective.
    assert SiaPolicy().allocate(Problem((running, waiting), (room(2),))).choice == (1, None)
    # A job stopped: one that needs 2 GPUs counts .393, the runner on one of them .1.
    stiff = ask(1, LINEAR[1:2], 2)
    assert SiaPolicy().allocate(Problem((running, stiff), (room(2),))).choice == (None, 0)
    # The settings' own bound on growth holds as well.
    assert SiaPolicy().allocate(Problem((running,), (room(4),), Objective(max_growth=1.5))).choice == (0,)


def test_sia_needs_room_on_one_node_not_just_gpus() -> None:
    # 2 + 2 GPUs are free on two nodes where others hold the rest: a job of 4 on one node can't be laid.
    stiff = ask(1, LINEAR[2:], 4)
    assert SiaPolicy().allocate(Problem((stiff,), (room(2), room(2, "n1")))).choice == (None,)
    # Both 1-GPU runners stand in the way of it, one on each node: one of them moves.
    problem = Problem((stiff, runs(2, cells(3.0), 0, "n0"), runs(3, cells(3.0), 0, "n1")), (room(4), room(4, "n1")))
    found = SiaPolicy().allocate(problem)
    assert found.choice == (0, 0, 0) and len(found.moved_jobs) == 1
    assert not place(problem.nodes, make_placement_requests(problem, found)).unplaced_reasons


def test_sia_is_optimal_on_small_problems() -> None:
    """Against every combination of its own gains, on one node, where GPUs alone decide."""
    for seed in range(15):
        rnd = random.Random(seed)
        asks = tuple(
            runs(
                i,
                tuple(cell(rnd.uniform(1, 9) * g**0.8, gpus=g) for g in (1, 2, 4)),
                rnd.choice([0, 0, 1]),
                discount=0.9,
            )
            for i in range(4)
        )
        problem = Problem(asks, (room(8),))
        rows = [{None: 0.0, **SiaPolicy().gains(problem, i)} for i in range(4)]
        best = max(
            sum(row[c] for row, c in zip(rows, combo, strict=True))
            for combo in itertools.product(*rows)
            if sum(0 if c is None else 2**c for c in combo) <= 8  # Cell c has 2^c GPUs
        )
        found = SiaPolicy(relative_gap=1e-9).allocate(problem).choice
        assert sum(row[c] for row, c in zip(rows, found, strict=True)) == pytest.approx(best)


def test_pollux_fitness_is_the_harmonic_mean_of_speedups_over_a_fair_share() -> None:
    # 4 GPUs for 2 jobs: 2 each, goodput 1.9. Job 0 at 2 GPUs: speedup 1; job 1 at 1: 1/1.9; 2/(1 + 1.9) in all. Job 0 at
    # 4 GPUs with its restart (.8 x 3.6/1.9 = 1.516) leaves nothing to job 1, which counts .001: 2/(.66 + 1000).
    problem = Problem((runs(0, GOOD, 1, discount=0.8), ask(1, GOOD, 1)), (room(4),))
    table = _table(problem, 2.0)
    assert table.cells == [[None, 0, 1, 2], [None, 0]]
    fitness = PolluxPolicy().fitness(np.array([[2, 1], [3, 0]]), table)
    assert fitness == pytest.approx([2 / 2.9, 2 / (1.9 / 3.6 / 0.8 + 1000)])
    assert PolluxPolicy().allocate(problem).choice == (1, 0)


@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        # 8 GPUs: a fair share is 4, goodput 3.6. Job 0 stays on 2 at 1.9/3.6 = .53 or doubles to 4 at its discount.
        (1.0, (2, 0)),
        (0.54, (2, 0)),
        (0.52, (1, 0)),
        (0.0, (1, 0)),
    ],
)
def test_pollux_changes_a_job_only_for_more_than_its_restart(discount: float, expected: tuple[int, int]) -> None:
    problem = Problem((runs(0, GOOD, 1, discount=discount), ask(1, GOOD, 1)), (room(8),))
    assert PolluxPolicy(population=20, generations=20).allocate(problem).choice == expected


def test_pollux_has_one_distributed_job_a_node() -> None:
    # Both would gain by 2 nodes x 2 GPUs, and both would fit; two nodes carry one such job.
    offers = (cell(1.9, gpus=2), cell(3.4, 2, 2))
    problem = Problem((runs(0, offers, 0, "n0"), runs(1, offers, 0, "n1")), (room(4), room(4, "n1")))
    assert sorted(PolluxPolicy().allocate(problem).choice, key=str) == [0, 1]


def test_pollux_finds_the_best_of_small_problems() -> None:
    """Against every combination, in the fitness that it goes by; and more search is never worse."""
    for seed in range(6):
        rnd = random.Random(seed)
        asks = tuple(
            runs(
                i,
                tuple(cell(rnd.uniform(1, 9) * g**0.8, gpus=g) for g in (1, 2, 4)),
                rnd.choice([0, 0, 1]),
                discount=0.9,
            )
            for i in range(4)
        )
        problem = Problem(asks, (room(8),))
        table = _table(problem, 2.0)
        policy = PolluxPolicy(population=40, generations=40)
        every = np.array(list(itertools.product(*(range(int(n)) for n in table.count))))
        fits = (table.use[np.arange(4), every].sum(axis=1) <= table.limit).all(axis=1)
        best = policy.fitness(every[fits], table).max()
        found = policy.allocate(problem).choice
        genome = [own.index(c) for own, c in zip(table.cells, found, strict=True)]
        assert policy.fitness(np.array([genome]), table)[0] == pytest.approx(best)


def test_pollux_seed_is_all_the_chance_there_is() -> None:
    problem = random_problem(random.Random(3), 30, 20)
    short = [PolluxPolicy(population=8, generations=2, seed=seed).allocate(problem).choice for seed in (0, 0, 1)]
    assert short[0] == short[1] != short[2]
