"""Trials of uncertain sizes on idle GPUs."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from synergy_core.records import Action, Cell, Decision, Job, Node, Plan, Shape, Snapshot

from synergyd.scheduler.amend import DecisionBuilder
from synergyd.scheduler.epoch import EpochInputs, begin
from synergyd.scheduler.epoch_answer import EpochAnswer
from synergyd.scheduler.exploration import expected_trial_goodput, start_at_requested_size
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.policies import load_policy
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import Allocation, NodeCapacity, Problem, UsageLimit
from synergyd.scheduler.problem.rules import make_decision_rules
from synergyd.scheduler.problem.utility import allocation
from synergyd.settings import Settings
from tests.unit.scheduler.builders import NOW, ask, job, snapshot
from tests.unit.scheduler.epochs import decide

NODES = tuple(Node(f"n{i}", "a100", 4) for i in range(4))


def cells(*of_sizes: tuple[int, float, float]) -> tuple[Cell, ...]:
    """(GPUs, goodput, sigma), on as few nodes as can be."""
    made = []
    for gpus, goodput, sigma in of_sizes:
        shape = Shape("a100", max(1, gpus // 4), min(gpus, 4))
        made.append(Cell(shape, Plan(dp=gpus, global_batch=gpus), goodput, 1.0, goodput, gpus / goodput, 0, sigma))
    return tuple(made)


def decided(jobs: list[Job], table: dict[int, tuple[Cell, ...]], age_s: float = 10_000.0) -> dict[int, Decision]:
    looked: Snapshot = snapshot(NODES, jobs)
    plans = {1: Plan(dp=4, global_batch=4)}
    return {d.job_id: d for d in decide(looked, Settings(), table, {}, plans, {j.job_id: age_s for j in jobs})}


RUNS = job(1, 4, ("n0",), 4)
UNCERTAIN = cells((4, 10.0, 0.03), (8, 9.5, 1.0))


def test_what_is_uncertain_is_tried_on_idle_gpus_and_nowhere_else() -> None:
    found = decided([RUNS], {1: UNCERTAIN})[1]
    assert found.action is Action.RESIZE and found.cell == UNCERTAIN[1]
    assert "Tries" in found.why and "uncertain by 100%" in found.why
    # what is known is not tried, nor what can't be much better, nor what a restart costs too much for
    assert decided([RUNS], {1: cells((4, 10.0, 0.03), (8, 9.5, 0.03))})[1].action is Action.KEEP
    assert decided([RUNS], {1: cells((4, 10.0, 0.03), (8, 1.0, 0.5))})[1].action is Action.KEEP
    assert decided([RUNS], {1: UNCERTAIN}, age_s=60.0)[1].action is Action.KEEP
    # more than twice as many at once are a leap
    assert decided([RUNS], {1: cells((4, 10.0, 0.03), (16, 9.5, 1.0))})[1].action is Action.KEEP


def test_gpus_that_others_want_are_not_for_trials() -> None:
    others = [job(i, 4, (f"n{i - 1}",), 4) for i in (2, 3, 4)]
    known = cells((4, 10.0, 0.03))
    assert decided([RUNS, *others], {1: UNCERTAIN} | dict.fromkeys((2, 3, 4), known))[1].action is Action.KEEP
    # one that waits and can't be placed wants them too
    waits = replace(job(5, 16), submit_s=NOW - 5)
    table = {1: UNCERTAIN, 2: known, 5: cells((16, 30.0, 0.03))}
    found = decided([RUNS, others[0], waits], table, age_s=100.0)
    assert found[5].action is Action.WAIT and found[1].action is Action.KEEP


def test_idle_gpus_let_a_job_start_as_it_asked_unless_it_was_measured_there() -> None:
    waits = replace(job(1, 8), asked=Shape("a100", 2, 4), shape=Shape("a100", 2, 4))
    slow = cells((4, 10.0, 0.2), (8, 6.0, 0.3))
    found = decided([waits], {1: slow})[1]
    assert found.action is Action.START and found.cell == slow[1]
    assert "4 a100 GPUs on one node would give +67 %: it starts on the 8 GPUs asked for" in found.why, found.why
    known = cells((4, 10.0, 0.2), (8, 6.0, 0.04))
    assert decided([waits], {1: known})[1].cell == known[0]
    # the GPUs are not idle: others run on them, and one more starts
    others = [job(i, 4, (f"n{i - 2}",), 4) for i in (2, 3, 4)]
    busy = decided([waits, *others], {1: slow} | dict.fromkeys((2, 3, 4), cells((4, 10.0, 0.03))))
    assert busy[1].cell == slow[0]


def test_a_job_does_not_start_as_it_asked_where_it_is_surely_slower_there() -> None:
    """It would shrink after its first reports, by a restart."""
    waits = replace(job(1, 8), asked=Shape("a100", 2, 4), shape=Shape("a100", 2, 4))
    # ln(10 / 4.5) = 0.80: 2.2 sigmas of sqrt(0.2^2 + 0.3^2), 1.8 where the smaller size is less sure
    for sigma, expected in ((0.2, 0), (0.33, 1)):
        table = cells((4, 10.0, sigma), (8, 4.5, 0.3))
        assert decided([waits], {1: table})[1].cell == table[expected]
    four, eight = cells((4, 10.0, 0.2), (8, 10.0, 0.3))
    assert decided([waits], {1: (four, replace(eight, goodput=0.0))})[1].cell == four


@pytest.mark.parametrize(("goodput", "sigma", "fallback"), [(10.0, 1.0, 9.0), (5.0, 0.4, 9.0), (20.0, 2.0, 9.0)])
def test_worth_of_a_trial_against_draws(goodput: float, sigma: float, fallback: float) -> None:
    draw = random.Random(1)
    drawn = [max(fallback, goodput * math.exp(draw.gauss(-(sigma**2) / 2, sigma))) for _ in range(200_000)]
    assert expected_trial_goodput(goodput, sigma, fallback) == pytest.approx(sum(drawn) / len(drawn), rel=0.03)
    assert expected_trial_goodput(goodput, 0.0, fallback) == max(goodput, fallback)


def test_a_measured_size_is_not_tried_again_however_old_the_job_is() -> None:
    measured = cells((4, 10.0, 0.03), (8, 9.9, 0.09))
    assert decided([RUNS], {1: measured}, age_s=1e7)[1].action is Action.KEEP
    unsure = cells((4, 10.0, 0.03), (8, 9.9, 0.2))
    assert decided([RUNS], {1: unsure}, age_s=1e7)[1].action is Action.RESIZE


def test_a_trial_must_be_worth_one_percent() -> None:
    for goodput, expected in ((7.5, Action.KEEP), (8.5, Action.RESIZE)):
        table = cells((4, 10.0, 0.0), (8, goodput, 0.2))
        worth = expected_trial_goodput(goodput, 0.2, 10.0)
        assert worth > 10.0 and (worth > 10.1) is (expected is Action.RESIZE)
        assert decided([RUNS], {1: table}, age_s=1e7)[1].action is expected


def test_no_trial_and_no_larger_start_on_a_bad_node() -> None:
    nodes, waits = NODES[:2], replace(job(1, 8), asked=Shape("a100", 2, 4), shape=Shape("a100", 2, 4))
    plans, start = {1: Plan(dp=4, global_batch=4)}, cells((4, 10.0, 0.2), (8, 8.0, 0.2))
    for runs, table, of_good in ((RUNS, UNCERTAIN, Action.RESIZE), (waits, start, Action.START)):
        for penalties, gpus in (({}, 8), ({"n1": 1.0}, 4)):
            looked = replace(snapshot(nodes, [runs]), penalties=penalties)
            (found,) = decide(looked, Settings(), {1: table}, {}, plans, {1: 10_000.0})
            assert found.cell is not None and found.cell.shape.gpus == gpus
            assert found.action is (Action.KEEP if penalties and runs is RUNS else of_good)


def starting(jobs: int, gpus: int, limits: tuple[UsageLimit, ...] = ()) -> tuple[Problem, Allocation, Placement]:
    """Each is given 1 GPU of its own node of `gpus`, and asked for 4."""
    offers = CellIndex(cells((1, 10.0, 0.2), (4, 9.0, 0.2)))
    nodes = tuple(NodeCapacity(f"n{i}", "a100", gpus) for i in range(jobs))
    problem = Problem(tuple(ask(i, offers, 4) for i in range(jobs)), nodes, limits=limits)
    return problem, allocation(problem, [0] * jobs), Placement({i: (f"n{i}",) for i in range(jobs)}, {}, {})


def looks(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """The shapes that nodes are looked for from now on."""
    seen: list[Shape] = []
    pick = FreeGpus.pick

    def counted(self: FreeGpus, shape: Shape, *more: Any) -> tuple[str, ...] | None:
        seen.append(shape)
        return pick(self, shape, *more)

    monkeypatch.setattr(FreeGpus, "pick", counted)
    return seen


def test_many_jobs_that_start_cost_few_looks_at_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looks(monkeypatch)
    assert start_at_requested_size(*starting(1000, 3)) is None
    assert len(seen) <= 4
    found = start_at_requested_size(*starting(200, 4))
    assert found is not None and len(seen) < 50
    larger = [i for i, choice in enumerate(found[0].choice) if choice == 1]
    assert len(larger) > 20 and found[1].nodes == {i: (f"n{i}",) for i in range(200)}
    assert [found[1].free_gpus[f"n{i}"] for i in range(200)] == [0 if i in larger else 3 for i in range(200)]


def test_jobs_start_as_they_asked_within_limits_and_on_the_nodes_left() -> None:
    limits = (UsageLimit("account", "", 9, 9),)
    found = start_at_requested_size(*starting(4, 4, limits))
    assert found is not None and found[0].choice == (1, 0, 0, 0)
    # 1 GPU on a node of 2, and a free node of 4: it goes there
    problem, allocated, placed = starting(1, 2)
    wider = replace(problem, nodes=(*problem.nodes, NodeCapacity("free", "a100", 4)))
    moved = start_at_requested_size(wider, allocated, placed)
    assert moved is not None and moved[1].nodes == {0: ("free",)} and moved[1].free_gpus == {"n0": 2, "free": 0}


def test_a_job_that_links_gave_another_cell_is_not_said_to_try() -> None:
    offers = CellIndex(cells((4, 10.0, 0.03), (8, 9.5, 1.0), (16, 9.0, 1.0)))
    problem = Problem(
        (ask(1, offers, 4, current=0, nodes=("n0",)),), tuple(NodeCapacity(n.name, "a100", 4) for n in NODES)
    )
    names = tuple(n.name for n in NODES)
    for choice, says in ((1, True), (2, False)):
        answer = EpochAnswer(problem, allocation(problem, [choice]), Placement({1: names[: 2 * choice]}, {}, {}))
        empty = begin(EpochInputs(snapshot=snapshot([], [])), make_decision_rules(Settings()), load_policy("synergy"))
        told = DecisionBuilder(replace(empty, answer=answer, problem=problem, trial=(0, 1))).decision(1)
        assert told.action is Action.RESIZE and told.why.startswith("Tries") is says
