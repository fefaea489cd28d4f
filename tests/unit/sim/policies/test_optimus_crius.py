"""Optimus and Crius on examples worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Shape
from synergy_sim.policies.crius import CriusPolicy
from synergy_sim.policies.optimus import OptimusPolicy

from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Objective, Policy, Problem, Progress
from tests.unit.scheduler.builders import ask, cell, cells

GOOD = cells(1.0, 1.9, 3.6)  # 1, 2, 4 GPUs
FLAT = cells(1.0, 1.2, 1.3)


def gpus(policy: Policy, problem: Problem) -> list[int]:
    found = policy.allocate(problem)
    pairs = zip(problem.jobs, found.choice, strict=True)
    return [0 if c is None else a.cells[c].shape.gpus for a, c in pairs]


def of_length(job_id: int, remaining: float | None, **changes: object) -> JobRequest:
    return ask(job_id, GOOD, 1, progress=Progress(remaining=remaining), **changes)


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        # Seconds left on 1, 2, 4 GPUs: job 0 100, 52.6, 27.8; job 1 10, 5.3, 2.8. Steps, in seconds per GPU: job 0 47.4,
        # then 12.4; job 1 4.7, then 1.2.
        (1, [1, 0]),
        (2, [1, 1]),
        (3, [2, 1]),
        (4, [2, 2]),  # job 0 can't have the two GPUs of its next step: job 1 takes the one that is left
        (5, [4, 1]),
        (6, [4, 2]),
        (8, [4, 4]),
        (9, [4, 4]),
    ],
)
def test_optimus_gives_the_next_step_to_the_greatest_gain(free: int, expected: list[int]) -> None:
    problem = Problem((of_length(0, 100.0), of_length(1, 10.0)), (NodeCapacity("n0", "a100", free),))
    assert gpus(OptimusPolicy(), problem) == expected


def test_optimus_counts_jobs_of_unknown_length_as_the_mean_of_the_others() -> None:
    # Mean of 100 and 10 s: 55 s, so the steps are worth 26.1 and 6.8 s per GPU, between those of the other two.
    asks = (of_length(0, 100.0), of_length(1, 10.0), of_length(2, None))
    for free, expected in ((4, [2, 1, 1]), (5, [2, 1, 2]), (7, [4, 1, 2]), (9, [4, 1, 4])):
        assert gpus(OptimusPolicy(), Problem(asks, (NodeCapacity("n0", "a100", free),))) == expected


def test_optimus_shrinks_runners_and_stops_none() -> None:
    room = (NodeCapacity("n0", "a100", 4),)
    running = of_length(1, 10.0, current=2, nodes=("n0",))
    assert gpus(OptimusPolicy(), Problem((of_length(0, 100.0), running), room)) == [2, 2]
    # One GPU for two: the one that runs keeps it, first submitted or not.
    alone = of_length(1, 10.0, current=0, nodes=("n0",))
    assert gpus(OptimusPolicy(), Problem((of_length(0, 100.0), alone), (NodeCapacity("n0", "a100", 1),))) == [0, 1]


def test_optimus_steps_over_counts_that_bring_nothing() -> None:
    offers = (cell(1.0, gpus=1), cell(0.9, gpus=2), cell(3.0, gpus=4))
    problem = Problem((ask(0, offers, 1, progress=Progress(remaining=9.0)),), (NodeCapacity("n0", "a100", 4),))
    assert gpus(OptimusPolicy(), problem) == [4]
    assert gpus(OptimusPolicy(), replace(problem, nodes=(NodeCapacity("n0", "a100", 3),))) == [1]


def on(name: str, job_id: int, offers: tuple, index: int, asked: int = 4, **changes: object) -> JobRequest:  # type: ignore[type-arg]
    return ask(job_id, offers, asked, current=index, nodes=(name,), **changes)


def test_crius_places_an_arrival_at_the_size_asked_for() -> None:
    problem = Problem((ask(0, GOOD, 2), ask(1, GOOD, 1)), (NodeCapacity("n0", "a100", 3),))
    assert gpus(CriusPolicy(upgrades=0), problem) == [2, 1]


def test_crius_shrinks_whoever_loses_least() -> None:
    # Halving job 0 costs 1 - 1.9/3.6 = .47 of its throughput, job 1 only 1 - 1.2/1.3 = .08; either frees the 2 GPUs.
    asks = (on("n0", 0, GOOD, 2), on("n0", 1, FLAT, 2), ask(2, GOOD, 2))
    room = (NodeCapacity("n0", "a100", 8),)
    assert gpus(CriusPolicy(), Problem(asks, room)) == [4, 2, 2]
    # Where job 1 may not be changed (discount 0) job 0 must.
    fast = (asks[0], replace(asks[1], discount=0.0), asks[2])
    assert gpus(CriusPolicy(), Problem(fast, room)) == [2, 4, 2]
    # Its restart makes the cheap one the dear one: .5 x .92 = .46 left of 1, a loss of .54.
    assert gpus(CriusPolicy(), Problem((asks[0], replace(asks[1], discount=0.5), asks[2]), room)) == [2, 4, 2]


def test_crius_goes_two_steps_deep_and_no_further() -> None:
    # The arrival wants 4 GPUs and none are free: no single step frees 4. Two steps: both runners halved lose .47 + .08 =
    # .55; the arrival halved (1.9/3.9: .51) beside a halved job 1 .59; the arrival cut twice finds no GPU.
    arrival = ask(2, cells(1.0, 1.9, 3.9), 4)
    problem = Problem((on("n0", 0, GOOD, 2), on("n0", 1, FLAT, 2), arrival), (NodeCapacity("n0", "a100", 8),))
    assert gpus(CriusPolicy(), problem) == [2, 2, 4]
    assert gpus(CriusPolicy(depth=1), problem) == [4, 4, 0]
    # An arrival that loses less by its own step, 1 - 3/3.9 = .23, takes 2: .08 + .23.
    modest = replace(problem, jobs=(*problem.jobs[:2], ask(2, cells(1.0, 3.0, 3.9), 4)))
    assert gpus(CriusPolicy(upgrades=0), modest) == [4, 2, 2]


def test_crius_takes_another_type_where_that_loses_less() -> None:
    offers = (*GOOD, *cells(0.9, 1.7, 3.3, kind="h100"))
    rooms = (NodeCapacity("n0", "a100", 4), NodeCapacity("h0", "h100", 4))
    # Job 0 on 4 h100 GPUs loses 1 - 3.3/3.6 = .08, on 2 a100 GPUs .47; the arrival runs on a100 GPUs only.
    found = CriusPolicy(upgrades=0).allocate(Problem((on("n0", 0, offers, 2), ask(1, GOOD, 2)), rooms))
    assert found.choice == (5, 1)
    assert offers[5].shape == Shape("h100", 1, 4)


def test_crius_grows_jobs_by_powers_of_two_when_gpus_are_free() -> None:
    eight = (*cells(1.0, 1.9, 3.6, 7.0), cell(2.8, gpus=3))
    alone = on("n0", 0, eight, 0)
    room = (NodeCapacity("n0", "a100", 8),)
    assert gpus(CriusPolicy(), Problem((alone,), room)) == [8]
    assert gpus(CriusPolicy(upgrades=2), Problem((alone,), room)) == [4]
    assert gpus(CriusPolicy(), Problem((alone,), room, Objective(max_growth=2.0))) == [2]
    assert gpus(CriusPolicy(), Problem((replace(alone, discount=0.5),), room)) == [
        1
    ]  # .95 after the restart is no gain
    # 3 GPUs are free: 2 for one of the two that gains more (in shares of the size asked for), the third for nobody.
    two = (on("n0", 0, GOOD, 0, 1), on("n0", 1, FLAT, 0, 1))
    assert gpus(CriusPolicy(), Problem(two, (NodeCapacity("n0", "a100", 3),))) == [2, 1]


def test_crius_leaves_who_finds_no_room_waiting_and_serves_those_behind() -> None:
    stiff = (cell(3.6, gpus=4),)
    problem = Problem((on("n0", 0, stiff, 0), ask(1, stiff, 4), ask(2, GOOD, 1)), (NodeCapacity("n0", "a100", 5),))
    assert gpus(CriusPolicy(), problem) == [4, 0, 1]
