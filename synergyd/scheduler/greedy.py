"""A quick feasible allocation that moves nobody: running jobs stay, waiting ones start, then whoever gains most grows.

The answer of last resort, when the exact solver has run out of time, and the start that it must not fall below.
"""

from __future__ import annotations

from synergyd.records import Shape
from synergyd.scheduler.allowance import Allowance
from synergyd.scheduler.bins import Bins
from synergyd.scheduler.columns import Column, columns
from synergyd.scheduler.policy import Allocation, Problem
from synergyd.scheduler.utility import allocation


def greedy(problem: Problem, upper_bound: float = float("inf"), grow: bool = True) -> Allocation:
    """Feasible by construction: each job is laid on real nodes as it is taken in. With `grow` False running jobs stay.

    Waiting jobs come in order of gain per GPU (ties: first submitted), then changes in order of gain per extra GPU.
    """
    bins = Bins(problem.rooms)
    choice: list[int | None] = [ask.current for ask in problem.asks]
    held: list[tuple[tuple[str, ...], Shape] | None] = [None] * len(choice)
    gains = [0.0] * len(choice)
    for i, ask in enumerate(problem.asks):
        if ask.current is not None:
            held[i] = (ask.nodes, ask.cells[ask.current].shape)
            bins.take(ask.nodes, ask.cells[ask.current].shape.gpus_per_node)
    options = [columns(ask, problem.terms) for ask in problem.asks]
    left = Allowance(problem, choice)

    def attempt(i: int, column: Column) -> None:
        before = held[i]
        if not left.allows(problem.asks[i], choice[i], column.cell):
            return
        if before:
            bins.give(before[0], before[1].gpus_per_node)
        ask = problem.asks[i]
        shape = ask.cells[column.cell].shape
        names = bins.pick(shape, ask.partition, before[0] if before else ())
        if names is not None:
            left.change(ask, choice[i], column.cell)
            held[i], choice[i], gains[i] = (names, shape), column.cell, column.gain
            bins.take(names, shape.gpus_per_node)
        elif before:
            bins.take(before[0], before[1].gpus_per_node)

    def rank(pair: tuple[int, Column]) -> tuple[float, float, int, int]:
        i, column = pair
        return (-column.gain / column.gpus, problem.asks[i].submit_s, problem.asks[i].job_id, column.cell)

    every = sorted(((i, c) for i, found in enumerate(options) for c in found), key=rank)
    for i, column in every:
        if choice[i] is None:
            attempt(i, column)
    for i, column in every:
        ask = problem.asks[i]
        # A move in place of a stay can't gain here: nobody else is moved for it.
        if column.gain > gains[i] and column.cell != ask.current and (grow or ask.current is None):
            attempt(i, column)
    return allocation(problem, choice, upper_bound=upper_bound)
