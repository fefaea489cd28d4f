"""All jobs' columns as arrays, for the allocation by prices: those that columns.py lists job by job, at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synergyd.scheduler.problem.cell_index import CellFront, CellIndex, RelativeGoodput
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, NodeFilter, Objective, Problem
from synergyd.scheduler.problem.utility import scale_discount, stay_value, utilities
from synergyd.scheduler.solver.columns import columns
from synergyd.scheduler.solver.instance import Bools, Floats, Instance, Ints, pointers
from synergyd.scheduler.solver.milp import find_pools

Piece = tuple[int, int]  # (pool, GPUs on each of its nodes); pool -1 - i: limit number i
_STAY = -1  # in place of a Cell's index: the job stays where it is


@dataclass(frozen=True, kw_only=True)
class ColumnTable:
    """An `instance` with the index of the Cell that each of its columns gives its job (-1: staying in place).

    `running` [N]; `movable` [N]: those of them that may change. `stay` [N] is each job's value if nothing changes,
    `base` their sum, which utilities are gains over. `split`: some job could be placed over several pools; no column
    stands for that, so the bound does not hold.
    """

    instance: Instance
    cell: Ints
    job: Ints
    running: Bools
    movable: Bools
    stay: Floats
    base: float
    split: bool


def column_table(problem: Problem) -> ColumnTable:
    """Return the columns of every job on each pool of nodes open to it."""
    requests, terms = problem.jobs, problem.terms
    stay = np.array([stay_value(request, terms) for request in requests])
    running = np.array([request.current is not None for request in requests], dtype=np.bool_)
    stuck = np.array([request.current is not None and request.discount <= 0 for request in requests], dtype=np.bool_)
    fronts = [
        _front(request, terms) if not s else _NOTHING for request, s in zip(requests, stuck.tolist(), strict=True)
    ]
    lens = np.array([len(f.index) for f in fronts], dtype=np.intp)
    movable = running & (lens > 0)
    job = np.repeat(np.arange(len(requests)), lens)
    cell, nodes, each = (_concatenate([getattr(f, name) for f in fronts]) for name in ("index", "nodes", "each"))
    gain = _values(requests, fronts, lens, terms) - stay[job]
    numbers: dict[str, int] = {}
    kinds = [
        np.array([numbers.setdefault(t, len(numbers)) for t in CellIndex.build(a.cells).types], dtype=np.intp)
        for a in requests
    ]
    kind = _concatenate([k[f.type] for k, f in zip(kinds, fronts, strict=True)])
    free = _count_movable_gpus(problem, movable)
    pools = _Pools(problem, free)
    worth_it = running[job] | (gain > 0)
    job, cell, nodes, each, kind, gain = (a[worth_it] for a in (job, cell, nodes, each, kind, gain))
    uses = _UseRows(problem, pools, list(numbers))
    at, row = uses.columns(job, kind, nodes, each)
    stays = [uses.stay(i) for i in np.flatnonzero(movable).tolist()]
    all_jobs = np.concatenate([np.flatnonzero(movable), job[at]])
    order = np.argsort(all_jobs, kind="stable")
    indptr = pointers(np.bincount(all_jobs, minlength=len(requests)).astype(np.intp))
    use, limit = uses.matrix(_stuck_by_limit(problem, movable))
    instance = Instance(
        indptr,
        np.concatenate([np.array(stays, dtype=np.intp), row])[order],
        np.concatenate([np.zeros(len(stays)), gain[at]])[order],
        use,
        limit,
    )
    cells = np.concatenate([np.full(len(stays), _STAY, dtype=np.intp), cell[at]])[order]
    return ColumnTable(
        instance=instance,
        cell=cells,
        job=all_jobs[order],
        running=running,
        movable=movable,
        stay=stay,
        base=float(stay.sum()),
        split=uses.split,
    )


_NONE = np.empty(0, dtype=np.intp)
_NOTHING = CellFront(_NONE, _NONE, _NONE, _NONE, np.empty(0))


def _concatenate(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else _NONE


def _front(job: JobRequest, terms: Objective) -> CellFront:
    """Return the Cells that the job may change to. Those that it may not have are left out before others are compared with them."""
    offers = CellIndex.build(job.cells)
    if not job.banned_cells and (job.current is None or terms.max_growth <= 0):
        return offers.front
    indices = [c.cell for c in columns(job, terms)]
    number = {t: i for i, t in enumerate(offers.types)}
    shapes = [offers[i].shape for i in indices]
    return CellFront(
        np.array(indices, dtype=np.intp),
        np.array([number[s.gpu_type] for s in shapes], dtype=np.intp),
        np.array([s.nodes for s in shapes], dtype=np.intp),
        np.array([s.gpus_per_node for s in shapes], dtype=np.intp),
        np.array([offers[i].goodput for i in indices], dtype=np.float64),
    )


def _values(jobs: Sequence[JobRequest], fronts: Sequence[CellFront], lens: Ints, terms: Objective) -> Floats:
    """Return utility.change_value of every column, job after job."""
    if not len(jobs):
        return np.empty(0)
    goodput = np.concatenate([f.goodput for f in fronts])

    def spread(values: Sequence[float]) -> Floats:
        return np.repeat(np.array(values, dtype=np.float64), lens)

    if all(isinstance(job.relative, RelativeGoodput) for job in jobs):
        relative = goodput / spread(
            [job.relative.base if isinstance(job.relative, RelativeGoodput) else 1.0 for job in jobs]
        )
    else:
        each = [[job.relative[i] for i in f.index.tolist()] for job, f in zip(jobs, fronts, strict=True)]
        relative = np.array([r for own in each for r in own], dtype=np.float64)
    discount = spread([1.0 if job.current is None else job.discount for job in jobs])
    drag = spread([0.0 if job.current is None else job.restart_drag for job in jobs])
    if any(job.live_cells for job in jobs):
        live = np.array(
            [i in job.live_cells for job, f in zip(jobs, fronts, strict=True) for i in f.index.tolist()], dtype=np.bool_
        )
        drag = np.where(live, spread([job.live_share for job in jobs]) * drag, drag)
        at_live_cost = [scale_discount(job.discount, job.live_share) if job.live_cells else 1.0 for job in jobs]
        discount = np.where(live, spread(at_live_cost), discount)
    factor = np.minimum(discount, 1.0 / (1.0 + drag * goodput))
    need = spread([job.needed_goodput if job.current is None else job.need_after_restart for job in jobs])
    first = np.where((need > 0) & (need <= goodput), terms.need_bonus, 0.0)
    return np.asarray(spread([job.weight for job in jobs]) * utilities(factor * relative, terms) + first)


def _count_movable_gpus(problem: Problem, movable: Bools) -> list[int]:
    """Free GPUs of each node, those of running jobs that can't change taken off."""
    index = {node.name: i for i, node in enumerate(problem.nodes)}
    free = [node.free for node in problem.nodes]
    for job, moves in zip(problem.jobs, movable.tolist(), strict=True):
        if job.current is not None and not moves:
            for name in job.nodes:
                if name in index:
                    at = index[name]
                    free[at] = max(0, free[at] - job.cells[job.current].shape.gpus_per_node)
    return free


def _stuck_by_limit(problem: Problem, movable: Bools) -> list[float]:
    """Return what running jobs that can't change use of each limit."""
    pairs = zip(problem.jobs, movable.tolist(), strict=True)
    stuck = [a for a, moves in pairs if a.current is not None and not moves]
    return [sum(limit.use(a, a.current) for a in stuck) for limit in problem.bounds]


class _Pools:
    """Pools: nodes that differ for the jobs of the problem by their free GPUs alone."""

    def __init__(self, problem: Problem, free: Sequence[int]) -> None:
        self.pools, self.open_to = find_pools(problem)
        self.index = {node.name: i for i, node in enumerate(problem.nodes)}
        self.of = {node.name: q for q, pool in enumerate(self.pools) for node in pool}
        self.free = free
        self.counts = [np.sort([free[self.index[node.name]] for node in pool]) for pool in self.pools]

    def fit(self, pool: int, size: int) -> int:
        """Return the number of nodes of the pool with at least `size` free GPUs."""
        counts = self.counts[pool]
        return len(counts) - int(np.searchsorted(counts, size))

    def slots(self, pool: int, size: int) -> int:
        return int((self.counts[pool] // size).sum())

    def usable(self, node_filter: NodeFilter, gpu_type: str) -> list[int]:
        return [q for q in self.open_to[node_filter] if self._first(q).gpu_type == gpu_type]

    def _first(self, pool: int) -> NodeCapacity:
        return self.pools[pool][0]


class _UseRows:
    """Distinct rows of `use`, numbered as they are met."""

    def __init__(self, problem: Problem, pools: _Pools, types: list[str]) -> None:
        self._problem, self._pools, self._types = problem, pools, types
        self._number: dict[tuple[tuple[Piece, float], ...], int] = {}
        self.split = False
        filters = {f: i for i, f in enumerate(dict.fromkeys(job.node_filter for job in problem.jobs))}
        bound = [
            tuple((i, rate) for i, limit in enumerate(problem.bounds) if (rate := limit.rate(a)) is not None)
            for a in problem.jobs
        ]
        bounds = {b: i for i, b in enumerate(dict.fromkeys(bound))}
        self._filters, self._bounds, self._bound = list(filters), list(bounds), bound
        numbers = [
            filters[job.node_filter] * len(bounds) + bounds[b] for job, b in zip(problem.jobs, bound, strict=True)
        ]
        self._class = np.array(numbers, dtype=np.intp)

    def columns(self, job: Ints, kind: Ints, nodes: Ints, each: Ints) -> tuple[Ints, Ints]:
        """Return (which column, its row of `use`) for each pool that each column's shape fits. A shape on two pools comes twice."""
        wide, high = int(nodes.max(initial=0)) + 1, int(each.max(initial=0)) + 1
        code = ((self._class[job] * max(1, len(self._types)) + kind) * wide + nodes) * high + each
        distinct_codes, which = np.unique(code, return_inverse=True)
        rows: list[list[int]] = []
        for value in distinct_codes.tolist():
            rest, size = divmod(value, high)
            rest, count = divmod(rest, wide)
            group, number = divmod(rest, max(1, len(self._types)))
            number_of_filter, bound = divmod(group, len(self._bounds))
            usable = self._pools.usable(self._filters[number_of_filter], self._types[number])
            self.split |= count > 1 and len(usable) > 1
            limits = {(-1 - i, 1): rate.count_use(self._types[number], count, size) for i, rate in self._bounds[bound]}
            fits = [q for q in usable if self._pools.fit(q, size) >= count]
            rows.append([self._row({(q, size): float(count), **limits}) for q in fits])
        many = np.array([len(own) for own in rows], dtype=np.intp)
        start = pointers(many)
        flat = np.array([r for own in rows for r in own], dtype=np.intp)
        which = which.reshape(-1)
        copies = many[which]
        at = np.repeat(np.arange(len(which)), copies)
        nth = np.arange(len(at)) - np.repeat(pointers(copies)[:-1], copies)
        return at, flat[start[which][at] + nth] if len(at) else _NONE

    def stay(self, job: int) -> int:
        """Return the row of a running job that stays in place."""
        request = self._problem.jobs[job]
        shape = request.cells[request.current or 0].shape
        size, index, free = shape.gpus_per_node, self._pools.index, self._pools.free
        standing = [n for n in request.nodes if n in index and free[index[n]] >= size]
        use: dict[Piece, float] = {(q, size): float(n) for q, n in Counter(self._pools.of[n] for n in standing).items()}
        use |= {
            (-1 - i, 1): rate.count_use(shape.gpu_type, shape.nodes, shape.gpus_per_node)
            for i, rate in self._bound[job]
        }
        return self._row(use)

    def matrix(self, stuck: Sequence[float]) -> tuple[Floats, Floats]:
        """Return (use [K, R], limit [R]): the packability rows of every pool and size, and the limits."""
        sizes: dict[int, set[int]] = defaultdict(set)
        for pieces in self._number:
            for (q, size), _ in pieces:
                sizes[q].add(size)
        rows: list[Piece] = []
        limit: list[float] = []
        for q, of_pool in sorted(sizes.items()):
            if q < 0:
                rows.append((q, 1))
                limit.append(self._problem.bounds[-1 - q].most - stuck[-1 - q])
                continue
            weaker: list[tuple[int, int]] = []
            for size in sorted(of_pool):
                slots = self._pools.slots(q, size)
                # A row is implied by that of a divisor which has no more room than this one.
                if any(size % s == 0 and n * s <= slots * size for s, n in weaker):
                    continue
                weaker.append((size, slots))
                rows.append((q, size))
                limit.append(float(slots))
        use = np.zeros((len(self._number), len(rows)))
        for pieces, k in self._number.items():
            for (p, g), n in pieces:
                for r, (q, s) in enumerate(rows):
                    if p == q:
                        use[k, r] += n * (g // s)
        return use, np.array(limit)

    def _row(self, use: dict[Piece, float]) -> int:
        return self._number.setdefault(tuple(sorted(use.items())), len(self._number))
