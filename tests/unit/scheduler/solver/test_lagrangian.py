"""The allocation by prices against the exact program over all columns, every constraint checked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError

from synergyd.scheduler.solver.bounds import best_margins, compute_upper_bound, feasible, near_columns, objective, usage
from synergyd.scheduler.solver.instance import Instance, instance
from synergyd.scheduler.solver.lagrangian import Effort, LagrangianSolution, solve
from synergyd.scheduler.solver.reduced_milp import solve_columns
from synergyd.scheduler.solver.smoothed_dual import reduced_core, smooth
from tests.benchmarks.allocate import FAMILIES, built, changed, generate

# the solver's own limit is of wall-clock time: a busy machine would fall short of the gap
AMPLE = Effort(time_limit_s=60.0)
KINDS = ("log", "linear", "whole", "clones", "rigid", "odd")


@st.composite
def instances(draw: st.DrawFn, jobs: int = 12) -> Instance:
    """Up to `jobs` jobs with 0 to 6 columns on 1 to 3 types, some of them scarce, absent or plenty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(KINDS))
    n, types = int(rng.integers(1, jobs + 1)), int(rng.integers(1, 4))
    count = np.ones(n, int) if kind == "rigid" else rng.integers(0, 7, n)
    if kind == "clones":
        count[:] = max(1, count[0])
    total = int(count.sum())
    gpus = rng.choice([1, 2, 3, 4, 8], total)
    gpu_type = rng.integers(0, types, total)
    utility = gpus ** rng.uniform(0.3, 1.0, total) * rng.uniform(0.2, 2.0, total)
    if kind == "log":
        utility = np.log(utility) + 2
    elif kind == "whole":
        utility = np.rint(2 * utility)
    elif kind == "clones":
        gpus, gpu_type, utility = (np.tile(a[: count[0]], n) for a in (gpus, gpu_type, utility))
    elif kind == "odd":
        utility[rng.random(total) < 0.2] = rng.choice([np.nan, np.inf, -np.inf, -3.0, 0.0])
        gpus[rng.random(total) < 0.1] = 0
    capacity = rng.choice([0, 3, 8, 16, 100], types, p=[0.1, 0.2, 0.3, 0.3, 0.1])
    return instance(np.concatenate([[0], np.cumsum(count)]), gpu_type, gpus, utility, capacity)


def reference(full: Instance) -> float:
    """The optimum by HiGHS over every column."""
    columns = np.flatnonzero(full.utility > 0)
    found = solve_columns(full, columns, np.searchsorted(full.indptr, columns, side="right") - 1, 1.0, 20.0)
    assert found.choice is not None and feasible(full, found.choice)
    return objective(full, found.choice)


def check(full: Instance, found: LagrangianSolution) -> None:
    assert feasible(full, found.choice)
    assert (usage(full, found.choice) <= full.limit + 1e-9).all()
    assert len(found.choice) == full.jobs
    assert (full.utility[found.choice[found.choice >= 0]] > 0).all()
    assert found.objective == pytest.approx(objective(full, found.choice))
    assert found.upper_bound >= found.objective


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(instances())
def test_few_jobs_are_solved_to_the_proven_optimum(full: Instance) -> None:
    found = solve(full, effort=AMPLE)
    check(full, found)
    best = reference(full)
    assert found.optimal and found.gap <= 1e-9
    assert found.objective == pytest.approx(best, rel=1e-6, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(instances(jobs=90), st.integers(0, 2**32))
def test_the_bound_holds_warm_and_cold(full: Instance, seed: int) -> None:
    best = reference(full)
    quick = solve(full, effort=Effort(gap=1.0))
    rng = np.random.default_rng(seed)
    start = LagrangianSolution(
        choice=quick.choice,
        objective=0.0,
        upper_bound=0.0,
        optimal=False,
        prices=quick.prices * rng.uniform(0.0, 9.0),
        temperature=max(quick.temperature, 1e-3),
    )
    for found in (
        quick,
        solve(full, effort=AMPLE),
        solve(full, warm=quick, effort=AMPLE),
        solve(full, warm=start, effort=AMPLE),
    ):
        check(full, found)
        assert found.objective <= best + 1e-6 * max(1.0, best)
        assert found.upper_bound >= best - 1e-6 * max(1.0, best)
    assert solve(full, effort=AMPLE).objective >= best * (1 - 1.1e-4) - 1e-6
    proven = solve(full, effort=Effort(exact=True, time_limit_s=20))
    assert proven.optimal and proven.objective == pytest.approx(best, rel=1e-6, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(instances(jobs=40), st.integers(0, 2**32))
def test_the_dual_bounds_at_any_prices_and_leaves_out_nothing_that_matters(full: Instance, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prices = rng.uniform(0, 1, len(full.limit)) * rng.choice([0.0, 0.3, 3.0], len(full.limit))
    best = reference(full)
    margins = best_margins(full, prices)
    bound = compute_upper_bound(full, prices, margins)
    assert bound >= best - 1e-6
    columns, jobs = near_columns(full, prices, margins, bound - best + 1e-6)
    kept = solve_columns(full, columns, jobs, 1.0, 20.0)
    assert kept.choice is not None and objective(full, kept.choice) == pytest.approx(best, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(instances(jobs=40), st.integers(0, 2**32))
def test_a_cut_keeps_every_best_choice_inside_its_box(full: Instance, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 1, len(full.limit))
    high = low + rng.uniform(0, 1, len(full.limit))
    core = reduced_core(full, low, high)
    for _ in range(5):
        prices = rng.uniform(low, high)
        inner = Instance(core.ptr, core.kind, core.utility, core.use, core.limit)
        assert compute_upper_bound(inner, prices) == pytest.approx(compute_upper_bound(full, prices))


def test_gradient_and_hessian_are_those_of_the_smoothed_dual() -> None:
    rng = np.random.default_rng(1)
    full = instance(
        [0, 3, 7, 9], [0, 1, 0, 1, 1, 0, 0, 1, 1], [1, 2, 4, 1, 2, 3, 1, 1, 8], rng.uniform(1, 9, 9), [5, 9]
    )
    core = reduced_core(full, np.zeros(2), np.full(2, 1e9))
    at, step = np.array([0.7, 0.4]), 1e-5
    here = smooth(core, at, 0.5)
    for r in range(2):
        move = step * np.eye(2)[r]
        up, down = smooth(core, at + move, 0.5), smooth(core, at - move, 0.5)
        assert here.gradient[r] == pytest.approx((up.value - down.value) / (2 * step), rel=1e-6)
        assert here.hessian[r] == pytest.approx((up.gradient - down.gradient) / (2 * step), rel=1e-6)
    # By hand: the value is above the dual's by at most the entropy's share.
    dual = compute_upper_bound(full, at)
    assert dual <= here.value <= dual + 0.5 * np.log(5) * 3


def test_hand_worked() -> None:
    # 4 GPUs: job 0 gains 3 with one, 4 with two; job 1 5 with three; job 2 2 with one. Best: 3 + 5 = 8.
    full = instance([0, 2, 3, 4], [0, 0, 0, 0], [1, 2, 3, 1], [3.0, 4.0, 5.0, 2.0], [4])
    found = solve(full, effort=AMPLE)
    assert (found.choice.tolist(), found.objective, found.optimal) == ([0, 2, -1], 8.0, True)


@pytest.mark.slow
def test_many_clones_and_many_jobs_reach_the_gap() -> None:
    rng = np.random.default_rng(7)
    gpus = np.array([1, 2, 4, 8, 1, 2, 4, 8, 16])
    worth = np.log(gpus ** rng.uniform(0.5, 1, 9)) + 2
    kind = [0, 0, 0, 0, 1, 1, 1, 1, 2]
    n = 500
    clones = instance(np.arange(n + 1) * 9, np.tile(kind, n), np.tile(gpus, n), np.tile(worth, n), [200, 170, 130])
    found = solve(clones, effort=AMPLE)
    check(clones, found)
    assert found.gap <= 5e-4
    utility = np.repeat(rng.uniform(0.5, 2, 3000), 9) * np.tile(worth, 3000) * rng.uniform(0.8, 1.2, 27000)
    many = instance(np.arange(3001) * 9, np.tile(kind, 3000), np.tile(gpus, 3000), utility, [1200, 1100, 900])
    cold = solve(many, effort=AMPLE)
    warm = solve(many, warm=cold, effort=AMPLE)
    for answer in (cold, warm):
        check(many, answer)
        assert answer.gap <= 1e-4
    assert np.array_equal(solve(many, effort=AMPLE).choice, cold.choice)


def test_an_earlier_choice_that_is_better_is_kept() -> None:
    full = instance([0, 1, 2], [0, 0], [1, 1], [2.0, 2.0], [1], previous=[-1, 1])
    assert solve(full, effort=Effort(gap=1.0)).objective == 2.0


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (([0, 1], [0], [1], [1.0], [-1]), "capacity: is negative"),
        (([0, 1], [1], [1], [1.0], [4]), "gpu_type: names a type that has no capacity"),
        (([0, 1], [0], [-1], [1.0], [4]), "gpus: is negative"),
        (([0, 2], [0], [1], [1.0], [4]), "indptr: does not divide"),
        (([0, 1], [0, 0], [1], [1.0], [4]), "differ in length"),
        (([0, 1], [0], [1.5], [1.0], [4]), "gpus: has entries that are not whole"),
        (([0, 1], [0], [1], ["a"], [4]), "utility: is not a list of numbers"),
        (([0, 1], [0], [1], [1.0], [4], [5]), "previous: is not one column"),
    ],
)
def test_arrays_that_do_not_fit_are_one_line(arrays: tuple[list[float], ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        instance(*arrays)


@pytest.mark.parametrize(
    "arrays",
    [([0], [], [], [], []), ([0], [], [], [], [4]), ([0, 0, 0], [], [], [], [4]), ([0, 1], [0], [9], [1.0], [4])],
)
def test_nothing_to_choose(arrays: tuple[list[float], ...]) -> None:
    found = solve(instance(*arrays), effort=AMPLE)
    assert (found.choice >= 0).sum() == 0 and found.objective == 0 and found.optimal


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_the_benchmark_reaches_its_gap(family: str) -> None:
    for jobs, gpus in ((5, 16), (100, 64), (1500, 1600)):
        arrays = generate(family, jobs, gpus, 3)
        full = built(arrays)
        cold = solve(full, effort=Effort(time_limit_s=1.0))
        warm = solve(built(changed(arrays, 0.02, 1)), warm=cold, effort=Effort(time_limit_s=1.0))
        check(full, cold)
        assert max(cold.gap, warm.gap) <= 3e-3


def test_scarce_rigid_jobs_find_their_prices() -> None:
    # Twenty times as many GPUs asked for as there are: the first Newton step overshoots to prices of zero.
    found = solve(built(generate("rigid", 10_000, 10_240, 3)), effort=AMPLE)
    assert found.gap <= 1e-4
