"""The mixed-integer program over the columns that the prices could not rule out, solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array, vstack

from synergyd.scheduler.solver.highs import maximise
from synergyd.scheduler.solver.instance import Bools, Instance, Ints


@dataclass(frozen=True)
class MilpAnswer:
    """The answer of the program.

    `choice` [N] (columns or -1), None where nothing was found in time; `upper_bound`: no choice of these columns has a higher value
    (infinite where unknown).
    """

    choice: Ints | None
    upper_bound: float


@dataclass(frozen=True)
class ColumnGroups:
    """Identical jobs together: `members` of each group, `group_of` each column, `first`: whether it is of its group's first job."""

    members: list[list[int]]
    group_of: Ints
    first: Bools

    @property
    def size(self) -> int:
        """Return the number of columns that the program has."""
        return int(self.first.sum())


def solve_columns(
    full: Instance, columns: Ints, jobs: Ints, unit: float, time_limit_s: float, relative_gap: float = 0.0
) -> MilpAnswer:
    """Return the best choice of `columns` [n] (of `jobs` [n], ascending). `unit` is the utility that counts as one."""
    return solve_groups(full, columns, jobs, group_columns(full, columns, jobs), unit, time_limit_s, relative_gap)


def solve_groups(
    full: Instance,
    columns: Ints,
    jobs: Ints,
    groups: ColumnGroups,
    unit: float,
    time_limit_s: float,
    relative_gap: float = 0.0,
) -> MilpAnswer:
    """Run `milp_over` with the groups known.

    Identical jobs are one integer variable a column: taken one by one, their ties make branch and bound explode.
    """
    if not len(columns):
        return MilpAnswer(np.full(full.jobs, -1, dtype=np.intp), 0.0)
    members = groups.members
    first_columns = np.flatnonzero(groups.first)
    own = columns[first_columns]
    group = groups.group_of[first_columns]
    count = np.array([len(m) for m in members], dtype=float)
    n = len(own)
    at_most_one = csr_array((np.ones(n), (group, np.arange(n))), shape=(len(members), n))
    rows = csr_array(full.use[full.kind[own]].T)
    upper = np.concatenate([count, full.limit])
    matrix = csr_array(vstack([at_most_one, rows]))
    gain, most, lower = full.utility[own] / unit, count[group], np.full(len(upper), -np.inf)
    result = maximise(gain, most, matrix, lower, upper, time_limit_s, relative_gap)
    if result.x is None:
        return MilpAnswer(None, result.upper_bound * unit)
    choice = np.full(full.jobs, -1, dtype=np.intp)
    _assign_columns(full, columns, jobs, members, own, group, result.x, choice)
    return MilpAnswer(choice, result.upper_bound * unit)


def group_columns(full: Instance, columns: Ints, jobs: Ints) -> ColumnGroups:
    """Group the jobs whose columns are equal in kind and utility."""
    edges = np.flatnonzero(np.diff(jobs, prepend=-1, append=full.jobs + 1))
    group_numbers: dict[bytes, int] = {}
    members: list[list[int]] = []
    group_of = np.zeros(len(columns), dtype=np.intp)
    first = np.zeros(len(columns), dtype=bool)
    for start, stop in pairwise(edges):
        own = columns[start:stop]
        key = full.kind[own].tobytes() + full.utility[own].tobytes()
        if key not in group_numbers:
            group_numbers[key] = len(members)
            members.append([])
            first[start:stop] = True
        members[group_numbers[key]].append(int(jobs[start]))
        group_of[start:stop] = group_numbers[key]
    return ColumnGroups(members, group_of, first)


def _assign_columns(
    full: Instance,
    columns: Ints,
    jobs: Ints,
    members: list[list[int]],
    own: Ints,
    group: Ints,
    counts: Ints,
    choice: Ints,
) -> None:
    """Write the jobs' columns into `choice`.

    Among identical jobs those that had a column before keep it, the others come in order.
    """
    starts = np.searchsorted(jobs, np.array([m[0] for m in members]))
    columns_by_group: dict[int, list[tuple[int, int]]] = {}
    for column, g, many in zip(own, group, counts, strict=True):
        if many > 0:
            columns_by_group.setdefault(int(g), []).append((int(column), int(many)))
    for g, offers in columns_by_group.items():
        rest = list(members[g])
        open_columns: list[int] = []
        for column, many in offers:
            place = int(np.searchsorted(columns[starts[g] :], column)) + int(starts[g])
            number = place - int(starts[g])
            had = [j for j in rest if full.previous is not None and full.previous[j] == _same(columns, jobs, j, number)]
            for j in had[:many]:
                choice[j] = _same(columns, jobs, j, number)
                rest.remove(j)
            open_columns += [number] * (many - len(had[:many]))
        for number, j in zip(open_columns, rest, strict=False):
            choice[j] = _same(columns, jobs, j, number)


def _same(columns: Ints, jobs: Ints, job: int, number: int) -> int:
    """Return the `number`-th kept column of a job."""
    return int(columns[np.searchsorted(jobs, job) + number])
