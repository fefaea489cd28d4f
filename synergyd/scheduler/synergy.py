"""The default policy: the exact program for small problems, prices for large ones.

By prices, a job's columns are its Cells on each pool of nodes open to it, a running job's staying in place among them. The
rows are the packability rows of milp.py, for every pool and size: whatever is allocated can be laid on the nodes if the
jobs that stay may be moved too. Those that are in the way then are moved, the cheapest first (facts/solver.md: 0 or 1 an
epoch).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from synergyd.scheduler.columns import Column, columns
from synergyd.scheduler.greedy import greedy
from synergyd.scheduler.instance import Instance, segment_max
from synergyd.scheduler.milp import MilpPolicy, pools_of
from synergyd.scheduler.place import place, requests_of
from synergyd.scheduler.policy import Allocation, Ask, Policy, Problem, Room
from synergyd.scheduler.prices import Effort, Solution, solve
from synergyd.scheduler.utility import allocation, change_value, stay_value, utility

_HOLDS = 6  # solves in which a running job's stay is made worth more because it would have been stopped
_MOVE_ROUNDS = 30
_GOOD = 1e-3  # a gap at which no quick answer is tried beside it


class SynergyPolicy(Policy):
    """At most `exact_columns` columns (about 60 jobs of 30 Cells) go to the exact program, more to the prices. `effort`
    bounds the latter: the relative gap is of the gain over stopping everything."""

    def __init__(self, exact_columns: int = 2_000, effort: Effort | None = None) -> None:
        self._exact = exact_columns
        self._effort = effort or Effort(time_limit_s=2.0)

    def allocate(self, problem: Problem) -> Allocation:
        if sum(len(ask.cells) for ask in problem.asks) <= self._exact:
            return MilpPolicy().allocate(problem)
        return by_prices(problem, self._effort)


@dataclass
class _Table:
    """Columns as they are written down. `take[c]` is what column c means: a Column, or None for staying in place."""

    use: dict[Hashable, int] = field(default_factory=dict)
    rows: list[dict[tuple[int, int], float]] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    job: list[int] = field(default_factory=list)
    take: list[Column | None] = field(default_factory=list)

    def add(self, key: Hashable, use: dict[tuple[int, int], float], gain: float, job: int, take: Column | None) -> None:
        """`use`: pieces by (pool, GPUs of each); of a limit, as pool -1 - its number, single GPUs."""
        if key not in self.use:
            self.use[key] = len(self.rows)
            self.rows.append(use)
        self.kind.append(self.use[key])
        self.gain.append(gain)
        self.job.append(job)
        self.take.append(take)


def by_prices(problem: Problem, effort: Effort) -> Allocation:
    """The allocation by prices, with its bound; `greedy` where that is better or no choice keeps every job running."""
    options = [columns(ask, problem.terms) for ask in problem.asks]
    rooms = _without_pinned(problem, options)
    table, split = _table(problem, options, rooms)
    base = sum(stay_value(ask, problem.terms) for ask in problem.asks)
    hold = np.array([_hold(ask, problem) for ask in problem.asks])
    full = _instance(problem, table, rooms, _pinned_by_limit(problem, options))
    movable = np.array([a.current is not None and bool(o) for a, o in zip(problem.asks, options, strict=True)])
    margin = 0.25 * (float(hold[movable].mean()) if movable.any() else 1.0)
    found: Solution | None = None
    for _ in range(_HOLDS):
        held = replace(full, utility=full.utility + hold[np.array(table.job, dtype=np.intp)])
        found = solve(held, found, effort)
        stopped = (found.choice < 0) & movable
        bound = math.inf if split else base + found.upper_bound - float(hold[movable].sum())
        if not stopped.any():
            choice, moved = _settle(problem, *_read(problem, table, found))
            best = allocation(problem, choice, moved, bound, found.optimal and not moved and not split)
            if best.gap <= _GOOD:
                return best
            quick = greedy(problem, bound)
            return quick if quick.objective > best.objective else best
        # At these prices every running job must be worth its cheapest way to run, by a margin that grows.
        alone = segment_max(full.utility - full.costs(found.prices)[full.kind], full.indptr, -math.inf)
        margin *= 4.0
        hold[movable] = np.maximum(hold[movable], margin - alone[movable])
        hold[stopped] += margin
    return greedy(problem)


def _hold(ask: Ask, problem: Problem) -> float:
    """What it is worth to run at all: against waiting, as for a job that waits."""
    if ask.current is None:
        return 0.0
    least = problem.terms.wait_share * min(ask.relative)
    return max(stay_value(ask, problem.terms) - ask.weight * utility(least, problem.terms.exponent), 1e-3)


def _without_pinned(problem: Problem, options: list[list[Column]]) -> list[int]:
    """Free GPUs of each room, those of running jobs that can't change taken off."""
    index = {room.name: i for i, room in enumerate(problem.rooms)}
    free = [room.free for room in problem.rooms]
    for ask, own in zip(problem.asks, options, strict=True):
        if ask.current is not None and not own:
            for name in ask.nodes:
                if name in index:
                    at = index[name]
                    free[at] = max(0, free[at] - ask.cells[ask.current].shape.gpus_per_node)
    return free


def _pinned_by_limit(problem: Problem, options: list[list[Column]]) -> list[float]:
    """GPUs that running jobs which can't change take of each limit."""
    stuck = [a for a, own in zip(problem.asks, options, strict=True) if a.current is not None and not own]
    return [
        float(sum(a.cells[a.current].shape.gpus for a in stuck if a.current is not None and limit.binds(a)))
        for limit in problem.limits
    ]


def _table(problem: Problem, options: list[list[Column]], free: list[int]) -> tuple[_Table, bool]:
    """Every job's columns, and whether some job could be split over pools, which no column says: then the bound does not
    hold."""
    pools, open_to = pools_of(problem)
    index = {room.name: i for i, room in enumerate(problem.rooms)}
    pool_of = {room.name: q for q, pool in enumerate(pools) for room in pool}
    fit: dict[tuple[int, int], int] = {}
    for q, pool in enumerate(pools):
        sizes = {c.gpus_per_node for own in options for c in own if c.gpu_type == pool[0].gpu_type}
        for size in sizes:
            fit[q, size] = sum(free[index[room.name]] >= size for room in pool)
    usable: dict[tuple[str, str], tuple[int, ...]] = {}
    table, split = _Table(), False
    for j, (ask, own) in enumerate(zip(problem.asks, options, strict=True)):
        if ask.current is not None and own:
            size = ask.cells[ask.current].shape.gpus_per_node
            standing = [n for n in ask.nodes if n in index and free[index[n]] >= size]
            at = Counter(pool_of[name] for name in standing)
            own_use = _limited(problem, ask, ask.cells[ask.current].shape.gpus)
            key = ("stay", tuple(sorted(at.items())), size, tuple(own_use.items()))
            table.add(key, {**{(q, size): float(n) for q, n in at.items()}, **own_use}, 0.0, j, None)
        for column in own:
            where = (ask.partition, column.gpu_type)
            if where not in usable:
                usable[where] = tuple(q for q in open_to[where[0]] if pools[q][0].gpu_type == where[1])
            split |= column.nodes > 1 and len(usable[where]) > 1
            for q in usable[where]:
                if fit[q, column.gpus_per_node] >= column.nodes:
                    piece = (q, column.gpus_per_node)
                    limited = _limited(problem, ask, column.gpus) if problem.limits else {}
                    row = {piece: float(column.nodes), **limited}
                    table.add((piece, column.nodes, tuple(limited)), row, column.gain, j, column)
    return table, split


def _limited(problem: Problem, ask: Ask, gpus: int) -> dict[tuple[int, int], float]:
    """What a job with so many GPUs uses of each limit that binds it."""
    return {(-1 - i, 1): float(gpus) for i, limit in enumerate(problem.limits) if limit.binds(ask)}


def _instance(problem: Problem, table: _Table, free: list[int], pinned: list[float]) -> Instance:
    pools, _ = pools_of(problem)
    index = {room.name: i for i, room in enumerate(problem.rooms)}
    sizes: dict[int, set[int]] = defaultdict(set)
    for use in table.rows:
        for q, size in use:
            sizes[q].add(size)
    rows: list[tuple[int, int]] = []
    limit: list[float] = []
    for q, found in sorted(sizes.items()):
        if q < 0:
            rows.append((q, 1))
            limit.append(problem.limits[-1 - q].gpus - pinned[-1 - q])
            continue
        counts = [free[index[room.name]] for room in pools[q]]
        weaker: list[tuple[int, int]] = []
        for size in sorted(found):
            slots = sum(c // size for c in counts)
            # A row is implied by that of a divisor which has no more room than this one.
            if any(size % s == 0 and n * s <= slots * size for s, n in weaker):
                continue
            weaker.append((size, slots))
            rows.append((q, size))
            limit.append(float(slots))
    use_of = np.array(
        [[sum(n * (g // s) for (p, g), n in use.items() if p == q) for q, s in rows] for use in table.rows]
    ).reshape(len(table.rows), len(rows))
    count = np.bincount(np.array(table.job, dtype=np.intp), minlength=len(problem.asks))
    return Instance(
        np.concatenate([[0], np.cumsum(count)]).astype(np.intp),
        np.array(table.kind, dtype=np.intp),
        np.array(table.gain, dtype=float),
        use_of.astype(float),
        np.array(limit),
    )


def _read(problem: Problem, table: _Table, found: Solution) -> tuple[list[int | None], set[int]]:
    choice: list[int | None] = [ask.current for ask in problem.asks]
    moved = set()
    for j, column in enumerate(found.choice):
        take = table.take[column] if column >= 0 else None
        if take is not None:
            choice[j] = take.cell
            if take.cell == problem.asks[j].current:
                moved.add(j)
    return choice, moved


def _settle(problem: Problem, choice: list[int | None], asked: set[int]) -> tuple[list[int | None], frozenset[int]]:
    """Moves jobs that stay where others can't be laid beside them: on the node where that costs least."""
    moved = set(asked)
    for _ in range(_MOVE_ROUNDS):
        taken = allocation(problem, choice, frozenset(moved))
        placed = place(problem.rooms, requests_of(problem, taken))
        if not placed.failed:
            break
        staying: dict[str, list[tuple[float, int, int]]] = defaultdict(list)  # node -> (cost, job, GPUs)
        for j, cell, stays in taken.taken(problem):
            ask = problem.asks[j]
            if stays and cell.shape.nodes == 1 and ask.discount > 0 and ask.current not in ask.banned:
                cost = stay_value(ask, problem.terms) - change_value(ask, ask.current or 0, problem.terms)
                for name in ask.nodes:
                    staying[name].append((cost, j, cell.shape.gpus_per_node))
        before = len(moved)
        busy: set[str] = set()
        for j, ask in enumerate(problem.asks):
            if ask.job_id in placed.failed and choice[j] is not None:
                shape = ask.cells[choice[j] or 0].shape
                moved |= _in_the_way(
                    problem.rooms, placed.left, staying, busy, ask, shape.gpu_type, shape.gpus_per_node
                )
        if len(moved) == before:
            break
    return choice, frozenset(moved)


def _in_the_way(
    rooms: tuple[Room, ...],
    left: dict[str, int],
    staying: dict[str, list[tuple[float, int, int]]],
    busy: set[str],
    ask: Ask,
    gpu_type: str,
    gpus: int,
) -> set[int]:
    """The jobs to be moved off one node so that a piece of `gpus` GPUs fits there; only smaller ones."""
    best: tuple[float, str, set[int]] | None = None
    for room in rooms:
        if room.gpu_type != gpu_type or room.name in busy or room.free < gpus or not room.admits(ask.partition):
            continue
        free, cost, gone = left[room.name], 0.0, set()
        for price, j, held in sorted(staying.get(room.name, []), key=lambda s: (s[0] / s[2], s[1])):
            if free >= gpus:
                break
            if held < gpus:
                free, cost = free + held, cost + price
                gone.add(j)
        if free >= gpus and gone and (best is None or cost < best[0]):
            best = (cost, room.name, gone)
    if best is None:
        return set()
    busy.add(best[1])
    return best[2]
