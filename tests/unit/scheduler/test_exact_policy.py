"""The exact policy against exhaustive search, and the greedy answer it falls back to."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_sim.policies.fifo import FifoPolicy

from synergyd.scheduler.epoch_answer import solve
from synergyd.scheduler.exact_policy import ExactPolicy
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.problem.gpu_limits import within_limits
from synergyd.scheduler.problem.records import (
    Allocation,
    JobRequest,
    NodeCapacity,
    NodeFilter,
    Objective,
    Problem,
    Rate,
    UsageLimit,
)
from synergyd.scheduler.problem.utility import objective
from synergyd.scheduler.solver.greedy import greedy
from tests.unit.scheduler.builders import ask, brute_force, can_lie, cell, cells, requests, within

SHAPES = [(1, 1), (1, 2), (1, 4), (2, 4)]


@st.composite
def problems(draw: st.DrawFn, partitions: tuple[str, ...] = ("",), full: bool = True) -> Problem:
    """Up to 3 nodes of 4 GPUs, some with fewer left, of 2 types; up to 4 jobs, some running where they fit."""
    rnd = random.Random(draw(st.integers(0, 2**32)))
    rooms = []
    for i in range(rnd.randint(1, 3)):
        free = 4 if full else rnd.choice([4, 4, 4, 3, 2, 1])
        at = tuple(p for p in partitions if p and rnd.random() < 0.7)
        rooms.append(
            NodeCapacity(
                f"n{i}", rnd.choice(["a100", "a100", "h100"]), free, at or partitions[:1] * bool(partitions[0])
            )
        )
    bins = FreeGpus(rooms)
    asks = []
    for j in range(rnd.randint(1, 4)):
        offers = [
            cell(round(rnd.uniform(1, 3) * (n * g) ** rnd.uniform(0.2, 1), 2), n, g, kind)
            for kind in ("a100", "h100")
            for n, g in SHAPES
            if rnd.random() < 0.5
        ] or [cell(1.0)]
        made = ask(
            j,
            tuple(offers),
            rnd.choice([1, 2, 4]),
            weight=rnd.choice([0.5, 1.0, 1.0, 3.0]),
            node_filter=NodeFilter(rnd.choice(partitions)),
        )
        current = rnd.randrange(len(offers))
        names = bins.pick(offers[current].shape, made.node_filter)
        if names and rnd.random() < 0.6:
            bins.take(names, offers[current].shape.gpus_per_node)
            made = ask(
                j,
                tuple(offers),
                weight=made.weight,
                node_filter=made.node_filter,
                current=current,
                nodes=names,
                discount=rnd.choice([0.0, 0.5, 0.95]),
            )
        asks.append(made)
    terms = Objective(exponent=rnd.choice([0.0, 0.0, -0.5, -1.0, 0.5, 1.0]), form=rnd.choice(["power", "power", "sia"]))
    if rnd.random() < 0.3:
        asks = [claiming(a, rnd) for a in asks]
    asks = [replace(a, stoppable=a.current is not None and a.discount > 0 and rnd.random() < 0.4) for a in asks]
    limits = []
    if rnd.random() < 0.4:
        asks = [replace(a, account=rnd.choice("xy")) for a in asks]
        rates = {
            a.job_id: Rate(
                rnd.choice([0.0, 1.0]),
                rnd.choice([0.0, 1.0, 2.5]),
                rnd.choice([0.0, 1.0]),
                whole_node_gpus=rnd.choice([0, 4]),
            )
            for a in asks
            if rnd.random() < 0.6
        }
        for limit in (
            UsageLimit("account", "x", rnd.randrange(5)),
            UsageLimit("partition", "p", rnd.randrange(9)),
            UsageLimit("account", "x", rnd.randrange(9), unit="CPUs", slurm="GrpTRES", rates=rates),
        ):
            held = sum(limit.use(a, a.current) for a in asks)
            limits.append(replace(limit, most=max(limit.most, held)))
    return Problem(tuple(asks), tuple(rooms), terms, limits=tuple(limits))


def claiming(a: JobRequest, rnd: random.Random) -> JobRequest:
    """With a goodput that it needs first, out of reach now and then."""
    need = rnd.choice([0.0, 0.5, 1.0, 1.5]) * max(c.goodput for c in a.cells)
    return replace(a, needed_goodput=need, need_after_restart=need * rnd.choice([1.0, 1.2]), need_why="test")


def check(problem: Problem, found: Allocation) -> None:
    """Every constraint holds, and the numbers say what they should."""
    for a, choice in zip(problem.jobs, found.choice, strict=True):
        assert choice is not None or a.current is None or a.stoppable, "a running job was stopped"
        assert choice is None or choice == a.current or choice not in a.banned_cells
        if a.current is not None and a.discount == 0:
            assert choice == a.current
    assert within(problem, found.choice)
    assert can_lie(problem.nodes, requests(problem, found.choice, found.moved_jobs))
    assert found.objective == pytest.approx(objective(problem, found.choice, found.moved_jobs))
    assert found.upper_bound >= found.objective


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(problems())
def test_as_good_as_exhaustive_search(problem: Problem) -> None:
    found = ExactPolicy().allocate(problem)
    check(problem, found)
    assert found.optimal
    assert found.objective == pytest.approx(brute_force(problem), abs=1e-5)
    assert found.upper_bound == pytest.approx(found.objective, abs=1e-4)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(problems(full=False))
def test_as_good_on_nodes_that_have_lost_gpus(problem: Problem) -> None:
    found = ExactPolicy().allocate(problem)
    check(problem, found)
    assert found.objective == pytest.approx(brute_force(problem), abs=1e-5)
    assert not place(problem.nodes, make_placement_requests(problem, found)).unplaced_reasons


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(problems(partitions=("p", "q")))
def test_as_good_with_partitions_that_share_nodes(problem: Problem) -> None:
    found = ExactPolicy().allocate(problem)
    check(problem, found)
    assert found.objective == pytest.approx(brute_force(problem), abs=1e-5)
    answer = solve(problem, ExactPolicy())
    assert not answer.placement.unplaced_reasons
    check(answer.problem, answer.allocation)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(problems(full=False))
def test_greedy_is_feasible_moves_nobody_and_fifo_gives_the_size_asked_for(problem: Problem) -> None:
    quick = greedy(problem)
    check(problem, quick)
    assert not quick.moved_jobs
    assert quick.objective <= ExactPolicy().allocate(problem).objective + 1e-5
    still = greedy(problem, grow=False)
    first = within_limits(problem, FifoPolicy().allocate(problem))
    check(problem, first)
    for a, kept, given_ in zip(problem.jobs, still.choice, first.choice, strict=True):
        if a.current is not None:
            assert kept == given_ == a.current
        elif given_ is not None and a.requested_cell is not None:
            assert given_ == a.requested_cell


@pytest.mark.parametrize("seed", range(8))
def test_every_allocated_count_can_be_placed_on_fresh_and_on_sick_nodes(seed: int) -> None:
    rnd = random.Random(seed)
    rooms = tuple(NodeCapacity(f"n{i:02d}", "a100", rnd.choice([8, 8, 8, 7, 5, 3, 0])) for i in range(12))
    shapes = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8)]
    offers = [tuple(cell((n * g) ** rnd.uniform(0.3, 1.0), n, g) for n, g in shapes) for _ in range(30)]
    problem = Problem(tuple(ask(j, o) for j, o in enumerate(offers)), rooms)
    found = ExactPolicy().allocate(problem)
    placed = place(rooms, make_placement_requests(problem, found))
    assert not placed.unplaced_reasons
    used = sum(c.shape.gpus for _, c, _ in found.assignments(problem))
    assert used == sum(r.free for r in rooms) == used + sum(placed.free_gpus.values())


def test_identical_jobs_are_solved_as_one_group() -> None:
    offers = cells(1.0, 1.9, 3.5, 6.0)
    rooms = tuple(NodeCapacity(f"n{i}", "a100", 8) for i in range(32))
    problem = Problem(tuple(ask(j, offers, 8) for j in range(300)), rooms)
    found = ExactPolicy(time_limit_s=20).allocate(problem)
    assert found.optimal
    # 256 GPUs for 300 jobs: log utility gives 256 of them one each; the first submitted come first.
    assert [c for c in found.choice if c is not None] == [0] * 256
    assert found.choice[:256] == (0,) * 256


def test_whoever_gains_more_gets_more() -> None:
    flat, steep = cells(1.0, 1.05, 1.1), cells(1.0, 2.0, 4.0)
    problem = Problem((ask(1, flat), ask(2, steep)), (NodeCapacity("n", "a100", 5),))
    found = ExactPolicy().allocate(problem)
    assert [problem.jobs[i].cells[c].shape.gpus for i, c in enumerate(found.choice) if c is not None] == [1, 4]


def test_weight_decides_between_equals() -> None:
    offers = cells(1.0)
    problem = Problem((ask(1, offers), ask(2, offers, weight=2.0)), (NodeCapacity("n", "a100", 1),))
    assert ExactPolicy().allocate(problem).choice == (None, 0)


def test_fragmented_jobs_are_moved_only_if_it_pays() -> None:
    # Two 1-GPU jobs on two nodes of 2; a job that runs on 2 GPUs of one node only.
    small, wide = cells(1.0), (cell(2.0, gpus=2),)
    rooms = (NodeCapacity("n0", "a100", 2), NodeCapacity("n1", "a100", 2))

    def solved(discount: float, weight: float) -> Allocation:
        sitting = tuple(ask(j, small, current=0, nodes=(f"n{j}",), discount=discount, weight=weight) for j in range(2))
        return ExactPolicy().allocate(Problem((*sitting, ask(9, wide, 2)), rooms))

    cheap = solved(0.9, 1.0)
    assert cheap.choice == (0, 0, 0) and len(cheap.moved_jobs) == 1
    dear = solved(0.05, 10.0)
    assert dear.choice == (0, 0, None) and not dear.moved_jobs


def test_growth_bound_and_banned_cells() -> None:
    offers = cells(1.0, 2.0, 4.0, 8.0)
    rooms = (NodeCapacity("n", "a100", 8),)
    runs: JobRequest = ask(1, offers, current=0, nodes=("n",), discount=0.99)
    assert ExactPolicy().allocate(Problem((runs,), rooms)).choice == (3,)
    assert ExactPolicy().allocate(Problem((runs,), rooms, Objective(max_growth=2.0))).choice == (1,)
    banned = ask(1, offers, current=0, nodes=("n",), discount=0.99, banned_cells=frozenset({3}))
    assert ExactPolicy().allocate(Problem((banned,), rooms)).choice == (2,)


def test_no_time_at_all_still_gives_a_sound_answer() -> None:
    rnd = random.Random(3)
    offers = [tuple(cell(g ** rnd.uniform(0.3, 1), gpus=g) for g in (1, 2, 4, 8)) for _ in range(40)]
    problem = Problem(
        tuple(ask(j, o) for j, o in enumerate(offers)), tuple(NodeCapacity(f"n{i}", "a100", 8) for i in range(4))
    )
    found = ExactPolicy(time_limit_s=0.0).allocate(problem)
    check_counts = sum(c.shape.gpus for _, c, _ in found.assignments(problem))
    assert 0 < check_counts <= 32
    assert not place(problem.nodes, make_placement_requests(problem, found)).unplaced_reasons
    if not found.optimal:
        assert found.upper_bound >= ExactPolicy().allocate(problem).objective - 1e-6


def test_same_problem_same_answer() -> None:
    rnd = random.Random(5)
    offers = [tuple(cell(g ** rnd.uniform(0.3, 1), gpus=g) for g in (1, 2, 4)) for _ in range(20)]
    problem = Problem(
        tuple(ask(j, o) for j, o in enumerate(offers)), tuple(NodeCapacity(f"n{i}", "a100", 4) for i in range(8))
    )
    first = ExactPolicy().allocate(problem)
    assert all(ExactPolicy().allocate(problem) == first for _ in range(3))


def test_sizes_that_do_not_divide_each_other_are_solved_again_until_they_lie() -> None:
    # 3 + 3 + 2 GPUs are 8, but two nodes of 4 take no 2 beside their 3: no row sees it, placement does.
    problem = Problem(
        (ask(1, (cell(3.0, gpus=3),)), ask(2, (cell(3.0, gpus=3),)), ask(3, (cell(2.0, gpus=2),))),
        (NodeCapacity("n0", "a100", 4), NodeCapacity("n1", "a100", 4)),
    )
    answer = solve(problem, ExactPolicy())
    assert not answer.placement.unplaced_reasons
    check(answer.problem, answer.allocation)
    assert sum(c is not None for c in answer.allocation.choice) == 2


def test_empty_problem() -> None:
    found = ExactPolicy().allocate(Problem((), ()))
    assert (found.choice, found.objective, found.optimal, found.gap) == ((), 0.0, True, 0.0)
