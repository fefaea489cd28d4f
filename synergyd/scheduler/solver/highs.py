"""Integer programs for HiGHS: max gain x, lower <= A x <= upper, 0 <= x <= most, x whole.

They are solved through highspy and not scipy.optimize.milp: the HiGHS inside scipy writes lines of its own to standard output,
and they would get into the JSON that a command prints.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from scipy.sparse import csr_array

from synergyd.scheduler.solver.instance import Floats, Ints


@dataclass(frozen=True)
class IntegerSolution:
    """The solution of a program.

    `x` [n], None where nothing was found in time; `upper_bound`: no x has a higher value (infinite where unknown); `is_optimal`: the
    search went on to its end, the gap asked for.
    """

    x: Ints | None
    upper_bound: float
    is_optimal: bool


def maximise(
    gain: Floats,
    most: Floats,
    matrix: csr_array,
    lower: Floats,
    upper: Floats,
    time_limit_s: float,
    relative_gap: float,
) -> IntegerSolution:
    """Return the best solution of the program found in time.

    `gain`, `most` [n]; `matrix` [m, n]; `lower`, `upper` [m], infinite where a row has no such side. It runs on one thread, and
    gives the same answer for the same program wherever the time suffices.
    """
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.setOptionValue("mip_rel_gap", relative_gap)
    if not np.isfinite(gain).all():
        return IntegerSolution(None, np.inf, False)
    solver.passModel(_program(gain, most, matrix, lower, upper))
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    best = highspy.HighsModelStatus
    ended = status in (best.kOptimal, best.kModelEmpty)
    bound = -float(info.mip_dual_bound)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return IntegerSolution(None, bound if status == best.kTimeLimit else np.inf, False)
    x = np.rint(np.asarray(solver.getSolution().col_value)).astype(np.intp)
    return IntegerSolution(x, bound, ended)


def _program(gain: Floats, most: Floats, matrix: csr_array, lower: Floats, upper: Floats) -> highspy.HighsLp:
    count = len(gain)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = count, len(lower)
    program.col_cost_ = -np.asarray(gain, dtype=float)
    program.col_lower_, program.col_upper_ = np.zeros(count), np.asarray(most, dtype=float)
    program.row_lower_, program.row_upper_ = np.asarray(lower, dtype=float), np.asarray(upper, dtype=float)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = matrix.indptr.astype(np.int32)
    program.a_matrix_.index_ = matrix.indices.astype(np.int32)
    program.a_matrix_.value_ = matrix.data.astype(float)
    program.integrality_ = [highspy.HighsVarType.kInteger] * count
    return program
