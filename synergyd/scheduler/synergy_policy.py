"""The default policy: the exact program for small problems, prices for large ones.

In the solution by prices, a job's columns are its Cells on each pool of nodes open to it, a running job's staying in place
among them. The rows are the packability rows of milp.py, for every pool and size: every allocation can be placed if the jobs
that stay may be moved too. Jobs that are in the way are moved, the cheapest first (0 or 1 an epoch as a rule).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from synergyd.scheduler.exact_policy import ExactPolicy
from synergyd.scheduler.placement.make_placeable import move_others
from synergyd.scheduler.problem.records import Allocation, Policy, Problem
from synergyd.scheduler.problem.utility import allocation, change_value, stay_value, stop_value
from synergyd.scheduler.solver.column_table import ColumnTable, column_table
from synergyd.scheduler.solver.greedy import greedy
from synergyd.scheduler.solver.instance import segment_max
from synergyd.scheduler.solver.lagrangian import Effort, LagrangianSolution, solve

_HOLDS = 6  # solves, each with a higher value of running for the jobs that the last one stopped
_MOVE_ROUNDS = 30
_GOOD = 1e-3  # a gap at which no quick answer is tried beside it


class SynergyPolicy(Policy):
    """The default policy.

    At most `exact_columns` columns (about 60 jobs of 30 Cells) go to the exact program, more to the prices. `effort` bounds the
    latter: the relative gap is of the gain over stopping everything.
    """

    def __init__(self, exact_columns: int = 2_000, effort: Effort | None = None) -> None:
        self._exact = exact_columns
        self._effort = effort or Effort(time_limit_s=2.0)

    def allocate(self, problem: Problem) -> Allocation:
        if sum(len(job.cells) for job in problem.jobs) <= self._exact:
            return ExactPolicy().allocate(problem)
        return by_prices(problem, self._effort)


def by_prices(problem: Problem, effort: Effort) -> Allocation:
    """Return the allocation by prices, with its bound, or `greedy` where that is better or no choice keeps every job running."""
    columns = column_table(problem)
    instance, movable, split = columns.instance, columns.movable, columns.split
    if split or problem.room:
        # Placement may need several rounds (and the bound does not hold over several pools): a small gap costs seconds for nothing.
        effort = replace(effort, gap=max(effort.gap, _GOOD), time_limit_s=min(effort.time_limit_s, 0.5))
    waits = np.array([0.0 if a.current is None else stop_value(a, problem.terms) for a in problem.jobs])
    # the value of running at all over being stopped, which is no choice unless the job is stoppable
    rigid = movable & ~np.array([a.stoppable for a in problem.jobs], dtype=np.bool_)
    gain = columns.stay - waits  # below 0 where a stop is better than going on, as Sia's form may have it
    hold = np.where(columns.running, np.where(rigid, np.maximum(gain, 1e-3), gain), 0.0)
    margin = 0.25 * (float(np.abs(hold[movable]).mean()) if movable.any() else 1.0)
    solution: LagrangianSolution | None = None
    for _ in range(_HOLDS):
        instance_with_hold = replace(instance, utility=instance.utility + hold[columns.job])
        solution = solve(instance_with_hold, solution, effort)
        stopped = (solution.choice < 0) & rigid
        bound = math.inf if split else columns.base + solution.upper_bound - float(hold[movable].sum())
        if not stopped.any():
            choice, moves = _read(problem, columns, solution)
            moved, _ = move_others(problem, choice, moves, _MOVE_ROUNDS, partial(_move_cost, problem))
            best = allocation(problem, choice, frozenset(moved), bound, solution.optimal and not moved and not split)
            if best.gap <= _GOOD or problem.room:  # where CPUs are scarce both are tried at placement
                return best
            quick = greedy(problem, bound)
            return quick if quick.objective > best.objective else best
        # At these prices the value of running must exceed its cheapest column's price, by a margin that grows.
        alone = segment_max(
            instance.utility - instance.costs(solution.prices)[instance.kind], instance.indptr, -math.inf
        )
        margin *= 4.0
        hold[rigid] = np.maximum(hold[rigid], margin - alone[rigid])
        hold[stopped] += margin
    return greedy(problem)


def _read(problem: Problem, columns: ColumnTable, solution: LagrangianSolution) -> tuple[list[int | None], set[int]]:
    choice: list[int | None] = [job.current for job in problem.jobs]
    for j in np.flatnonzero((solution.choice < 0) & columns.movable).tolist():
        choice[j] = None
    moved = set()
    columns_in_use = solution.choice[solution.choice >= 0]
    for j, cell in zip(columns.job[columns_in_use].tolist(), columns.cell[columns_in_use].tolist(), strict=True):
        if cell >= 0:
            choice[j] = cell
            if cell == problem.jobs[j].current:
                moved.add(j)
    return choice, moved


def _move_cost(problem: Problem, index: int, gpus: int) -> tuple[float, float]:
    """Return (value lost a GPU, value lost) by moving jobs[index], which keeps its Cell."""
    job = problem.jobs[index]
    loss = stay_value(job, problem.terms) - change_value(job, job.current or 0, problem.terms)
    return loss / gpus, loss
