"""The allocation by prices: certified, and near linear in the number of columns.

1. Prices: Newton on the smoothed dual (smoothed_dual.py), first on a sample of the jobs, then on ever more of them; before each
   step all columns that can't be chosen within a box around the prices are left out, so that few per cent remain.
2. Choice: rounding with error feedback, then a knapsack a row (primal_rounding.py).
3. Certificate: the dual at the prices, over all columns (bounds.py). Any choice and bound that are returned have
   been worked out from the instance alone.
4. Where the gap is larger than asked for, and always for few jobs: the exact program over the columns whose regret is at
   most the gap (reduced_milp.py): any other column would cost more than the best choice can be better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from synergyd.scheduler.solver.bounds import best_margins, compute_upper_bound, feasible, near_columns, objective
from synergyd.scheduler.solver.instance import Floats, Instance, Ints
from synergyd.scheduler.solver.primal_rounding import PrimalRounding
from synergyd.scheduler.solver.reduced_milp import group_columns, solve_groups
from synergyd.scheduler.solver.smoothed_dual import ReducedCore, SmoothedDual, inside_box, newton, reduced_core

_SAMPLE = 256
_GROWTH = 8
_BOX = 0.35  # half width of the price box after the first sample, as a share of the prices; falls as 1/sqrt(sample)
_COOLING = 0.25
_ROUGH = 3e-3  # smoothing's share of the value when the first prices are good enough for a box of this half width
_ROUGH_BOX = 0.3
_FEW_JOBS = 50
_MILP_COLUMNS = 20_000
_PROVEN = 1e-9
_SWEEPS = 2
_NO_PRICE_BOUND = 1e200  # finite: 0 GPUs at this price cost 0


@dataclass(frozen=True)
class Effort:
    """The effort of a solve.

    `gap`: relative gap that is good enough; `exact`: go on until it is proven optimal; `time_limit_s` seconds for the exact
    program, all its runs together; `candidates`: jobs a row that the knapsack chooses anew.
    """

    gap: float = 1e-4
    exact: bool = False
    time_limit_s: float = 5.0
    candidates: int = 40


@dataclass(frozen=True, kw_only=True)
class LagrangianSolution:
    """The best choice found.

    `choice` [N]: column or -1. `upper_bound` holds for every feasible choice. `prices` [R] and `temperature` start the next
    epoch's solve.
    """

    choice: Ints
    objective: float
    upper_bound: float
    optimal: bool
    prices: Floats
    temperature: float

    @property
    def gap(self) -> float:
        """Return (upper bound - objective) / upper bound, or 0 where nothing can be gained."""
        return max(0.0, self.upper_bound - self.objective) / self.upper_bound if self.upper_bound > 0 else 0.0


def solve(full: Instance, warm: LagrangianSolution | None = None, effort: Effort | None = None) -> LagrangianSolution:
    """Return the best choice found, with its bound. `warm` is the last epoch's answer, of any jobs but the same rows."""
    effort = effort or Effort()
    nothing = np.full(full.jobs, -1, dtype=np.intp)
    if not len(full.utility) or not len(full.limit):
        free = best_margins(full, np.zeros(len(full.limit)))
        return LagrangianSolution(
            choice=nothing,
            objective=0.0,
            upper_bound=float(free.sum()),
            optimal=True,
            prices=np.zeros(len(full.limit)),
            temperature=0.0,
        )
    is_warm = warm is not None and len(warm.prices) == len(full.limit) and warm.temperature > 0
    target = effort.gap / 10
    core, guess = _warm(full, warm, target) if warm is not None and is_warm else _cold(full, target)
    margins = best_margins(full, guess.prices)
    bound = compute_upper_bound(full, guess.prices, margins)
    choice = _repair(full, core, guess, effort)
    for other in [full.previous] if full.previous is not None else []:
        if feasible(full, other) and objective(full, other) > objective(full, choice):
            choice = other
    value = objective(full, choice)
    solution = LagrangianSolution(
        choice=choice,
        objective=value,
        upper_bound=max(bound, value),
        optimal=False,
        prices=guess.prices,
        temperature=guess.temperature,
    )
    if effort.exact or solution.gap > effort.gap or (full.jobs < _FEW_JOBS and solution.gap > _PROVEN):
        solution = _solve_exactly(full, solution, margins, effort)
    return replace(solution, optimal=solution.gap <= _PROVEN)


def _cold(full: Instance, target: float) -> tuple[ReducedCore, SmoothedDual]:
    """Compute prices from nothing: for samples of 256, 2,048, ... jobs, then for all."""
    guess: SmoothedDual | None = None
    count = _SAMPLE
    rng = np.random.default_rng(0)
    while count * 2 < full.jobs:
        sample = full.rows(np.sort(rng.choice(full.jobs, count, replace=False)))
        _, guess = _compute_prices(sample, guess, _BOX * np.sqrt(_SAMPLE / count), max(target, 3e-4))
        count *= _GROWTH
    return _compute_prices(full, guess, _BOX * np.sqrt(_SAMPLE * _GROWTH / count) if guess else 0.0, target)


def _warm(full: Instance, warm: LagrangianSolution, target: float) -> tuple[ReducedCore, SmoothedDual]:
    start = SmoothedDual(
        prices=warm.prices,
        temperature=warm.temperature,
        value=0.0,
        gradient=warm.prices,
        hessian=np.zeros((0, 0)),
        entropy_gap=0.0,
        share=np.zeros(0),
        none=np.zeros(0),
    )
    return _compute_prices(full, start, 0.03, target)


def _compute_prices(
    full: Instance, start: SmoothedDual | None, width: float, target: float
) -> tuple[ReducedCore, SmoothedDual]:
    """Compute prices at which the expected use is the limit, near `start`'s, and the core they hold for.

    The box is `width` of the prices to either side, and grows until the prices are inside; below 0 there is none.
    """
    if start is None:
        core = reduced_core(full, np.zeros(len(full.limit)), np.full(len(full.limit), _NO_PRICE_BOUND))
        best = np.maximum.reduceat(core.utility, core.ptr[:-1]) if len(core.jobs) else np.zeros(1)
        total = np.maximum(full.limit, 1e-9) * len(full.limit)
        goal = target if width < 0 else max(target, _ROUGH)
        core, rough = _lower_temperature(core, best.sum() / total, 0.25 * float(best.mean()) + 1e-300, goal)
        if goal <= target:
            return core, rough
        return _compute_prices(full, rough, _ROUGH_BOX, target)
    prices = start.prices
    while True:
        margin = width * (prices + 0.1 * prices.max(initial=0.0))
        core = reduced_core(full, np.maximum(prices - margin, 0.0), prices + margin)
        core, guess = _lower_temperature(core, prices, start.temperature, target)
        if inside_box(core, guess):
            return core, guess
        if width > 3:
            return _compute_prices(full, None, -1.0, target)
        prices, width = guess.prices, width * 4


def _lower_temperature(
    core: ReducedCore, prices: Floats, temperature: float, target: float
) -> tuple[ReducedCore, SmoothedDual]:
    """Lower the temperature until smoothing costs at most `target` of the value."""
    while True:
        now = newton(core, prices, temperature, 8, 1e-3)
        if now.entropy_gap <= target * abs(now.value) or now.value <= 0:
            break
        prices = now.prices
        temperature *= _COOLING
    return core, newton(core, now.prices, temperature, 25, target / 10)


def _repair(full: Instance, core: ReducedCore, guess: SmoothedDual, effort: Effort) -> Ints:
    choice = np.full(full.jobs, -1, dtype=np.intp)
    if not len(core.jobs):
        return choice
    work = PrimalRounding(core, guess.prices)
    work.round(guess)
    work.fit()
    work.fill(3)
    work.knapsacks(effort.candidates)
    work.fill()
    for _ in range(_SWEEPS):
        if work.gap_to_bound() <= effort.gap * abs(guess.value):
            break
        work.knapsacks(5 * effort.candidates)
        work.fill()
    has_column = work.pick >= 0
    choice[core.jobs[has_column]] = core.column_rows[work.pick[has_column]]
    return choice


def _solve_exactly(full: Instance, solution: LagrangianSolution, margins: Floats, effort: Effort) -> LagrangianSolution:
    """Solve the exact program over what the certificate leaves open."""
    slack = solution.upper_bound - solution.objective
    columns, jobs = near_columns(full, solution.prices, margins, slack * (1 + 1e-9) + 1e-12)
    groups = group_columns(full, columns, jobs)
    whole = groups.size <= _MILP_COLUMNS or effort.exact
    if not whole:
        cost = full.costs(solution.prices)
        regret = margins[jobs] - full.utility[columns] + cost[full.kind[columns]]
        near = np.sort(np.argpartition(regret, _MILP_COLUMNS)[:_MILP_COLUMNS])
        columns, jobs = columns[near], jobs[near]
        groups = group_columns(full, columns, jobs)
    unit = max(solution.objective / max(full.jobs, 1), 1e-300)
    goal = 0.0 if effort.exact or full.jobs < _FEW_JOBS else effort.gap / 2
    best = solve_groups(full, columns, jobs, groups, unit, effort.time_limit_s, goal)
    bound = min(solution.upper_bound, max(best.upper_bound, solution.objective)) if whole else solution.upper_bound
    if best.choice is not None and feasible(full, best.choice):
        value = objective(full, best.choice)
        if value > solution.objective:
            solution = replace(solution, choice=best.choice, objective=value)
    bound = max(bound, solution.objective)
    # HiGHS proves to 1e-6 of its own unit: a choice within that of the bound is the optimum.
    closed = whole and bound - solution.objective <= 2e-6 * unit + _PROVEN * abs(bound)
    return replace(solution, upper_bound=solution.objective if closed else bound)
