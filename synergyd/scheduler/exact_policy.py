"""The exact policy: the best allocation there is, by the mixed-integer program of solver/milp.py."""

from __future__ import annotations

from dataclasses import replace

from synergyd.scheduler.problem.records import Allocation, Policy, Problem
from synergyd.scheduler.problem.utility import allocation, objective, stay_value
from synergyd.scheduler.solver.columns import columns
from synergyd.scheduler.solver.greedy import greedy
from synergyd.scheduler.solver.milp import formulate, read

_PROVEN = 1e-4  # gap of what is called optimal: HiGHS's own is relative to gains that may be large


class ExactPolicy(Policy):
    """The policy whose allocation is the best there is.

    It is proven optimal within `relative_gap` of the gain over changing nothing, or the best found in `time_limit_s` seconds
    with its gap. It is never worse than `greedy`, whose answer is taken where the solver has found nothing.
    """

    def __init__(self, time_limit_s: float = 5.0, relative_gap: float = 1e-6) -> None:
        self._time_limit_s, self._relative_gap = time_limit_s, relative_gap

    def allocate(self, problem: Problem) -> Allocation:
        base = sum(stay_value(job, problem.terms) for job in problem.jobs)
        program, groups = formulate(problem)
        if not program.gain:
            return allocation(problem, [job.current for job in problem.jobs], upper_bound=base, optimal=True)
        solution = program.solve(self._time_limit_s, self._relative_gap)
        if solution.x is None:
            most = sum(max([c.gain for c in columns(job, problem.terms)] + [0.0]) for job in problem.jobs)
            return greedy(problem, base + most)
        choice, moved = read(problem, groups, solution.x)
        bound = base + solution.upper_bound
        if solution.is_optimal:
            best = allocation(problem, choice, moved, bound, optimal=True)
            return best if best.gap <= _PROVEN else replace(best, optimal=False)
        quick = greedy(problem, bound)
        best = allocation(problem, choice, moved, bound)
        return quick if quick.objective > objective(problem, choice, moved) else best
