"""The exact allocation: a mixed-integer program over Cells, solved by HiGHS.

Maximise the sum of weighted utilities. Variables: for each group of identical jobs and each of their columns, how many
take it; for each running job, whether it stays in place. Rows:

- each job at most one Cell; a running job exactly one, or none where the problem lets it be stopped;
- packability: sizes that divide each other can be placed on nodes with c_n free GPUs if and only if for every size s the
  sum of floor(g/s) over the allocated pieces of g >= s GPUs is at most the sum of floor(c_n/s). The row of the smallest
  size is the capacity of the GPU type;
- a job that stays occupies its own nodes, so a node's share of the row for s is floor((c_n - what stays there)/s):
  linear where s divides the staying pieces, else an integer variable of that node;
- where jobs of several partitions share nodes, integer flows count the pieces of each size on each pool of nodes;
- what the jobs under a limit use together (GPUs of an account, as a rule) is at most the limit.

So moving a job to make room is a choice of the program too, at the price of the job's restart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array, csr_array

from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, NodeFilter, Problem
from synergyd.scheduler.problem.utility import stay_value, stop_value
from synergyd.scheduler.solver.columns import Column, columns
from synergyd.scheduler.solver.highs import IntegerSolution, maximise
from synergyd.scheduler.solver.instance import Ints

Pools = tuple[int, ...]  # the pools open to a job: indices, ascending


@dataclass
class Program:
    """Columns and rows of the program as they are written down. Rows are lower <= A x <= upper."""

    gain: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    cols: list[int] = field(default_factory=list)
    data: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def variable(self, gain: float, most: float) -> int:
        """Add an integer variable 0 <= x <= most, and return its index."""
        self.gain.append(gain)
        self.most.append(most)
        return len(self.gain) - 1

    def row(self, terms: list[tuple[int, float]], lower: float, upper: float) -> None:
        for col, value in terms:
            self.rows.append(len(self.lower))
            self.cols.append(col)
            self.data.append(value)
        self.lower.append(lower)
        self.upper.append(upper)

    def solve(self, time_limit_s: float, relative_gap: float) -> IntegerSolution:
        """Return the solution of the highest gain."""
        matrix = coo_array((self.data, (self.rows, self.cols)), shape=(len(self.lower), len(self.gain)))
        limits = np.array(self.lower), np.array(self.upper)
        return maximise(
            np.array(self.gain), np.array(self.most), csr_array(matrix), *limits, time_limit_s, relative_gap
        )


@dataclass
class JobGroup:
    """Identical jobs: indices of the jobs (first submitted first), their columns, and the variables of both."""

    members: list[int]
    columns: list[Column]
    stay: int | None = None
    stop: int | None = None
    variables: list[int] = field(default_factory=list)


def formulate(problem: Problem) -> tuple[Program, list[JobGroup]]:
    """Return the program of a problem, and what its variables stand for (see `read`). It is empty where nothing can change."""
    program = Program()
    pools, open_to = find_pools(problem)
    groups = _groups(problem, open_to)
    node_index = {node.name: i for i, node in enumerate(problem.nodes)}
    stays: dict[int, list[tuple[int, int]]] = defaultdict(list)  # node -> (variable, GPUs)
    pieces: dict[tuple[Pools, int], list[tuple[int, float]]] = defaultdict(list)  # (pools, size) -> variable, nodes
    limited: list[list[tuple[int, float]]] = [[] for _ in problem.bounds]
    room: dict[tuple[Pools, str, int], tuple[Pools, int]] = {}  # pools of the type, and their nodes with so many GPUs
    for group in groups:
        job = problem.jobs[group.members[0]]
        count = len(group.members)
        open_pools = open_to[job.node_filter]
        if job.current is not None:
            group.stay = program.variable(0.0, count)
            if job.stoppable:
                group.stop = program.variable(stop_value(job, problem.terms) - stay_value(job, problem.terms), count)
            size = job.cells[job.current].shape.gpus_per_node
            for name in job.nodes:
                if name in node_index and problem.nodes[node_index[name]].free >= size:
                    stays[node_index[name]].append((group.stay, size))
        for column in list(group.columns):
            piece = open_pools, column.gpu_type, column.gpus_per_node
            if piece not in room:
                usable = tuple(q for q in open_pools if pools[q][0].gpu_type == column.gpu_type)
                room[piece] = usable, sum(n.free >= column.gpus_per_node for q in usable for n in pools[q])
            usable, fitting = room[piece]
            if fitting < column.nodes:
                group.columns.remove(column)
                continue
            variable = program.variable(column.gain, count)
            group.variables.append(variable)
            pieces[usable, column.gpus_per_node].append((variable, column.nodes))
        for limit, terms in zip(problem.bounds, limited, strict=True):
            if limit.binds(job):
                if group.stay is not None:
                    terms.append((group.stay, limit.use(job, job.current)))
                terms += [(v, limit.use(job, c.cell)) for v, c in zip(group.variables, group.columns, strict=True)]
        everyone = [*group.variables, *(v for v in (group.stay, group.stop) if v is not None)]
        program.row([(v, 1.0) for v in everyone], count if group.stay is not None else 0, count)
    for limit, terms in zip(problem.bounds, limited, strict=True):
        program.row(terms, -math.inf, limit.most)
    demand = _route(program, pieces)
    for q, pool in enumerate(pools):
        sizes = sorted({size for at, size in demand if at == q})
        for size in sizes:
            terms = [
                (v, many * (other // size))
                for (at, other), uses in demand.items()
                if at == q and other >= size
                for v, many in uses
            ]
            slots = 0
            for node in pool:
                own, fixed = _node_slots(program, node, stays.get(node_index[node.name], []), size)
                terms += own
                slots += fixed
            program.row(terms, -math.inf, slots)
    return program, groups


def _node_slots(
    program: Program, node: NodeCapacity, stays: list[tuple[int, int]], size: int
) -> tuple[list[tuple[int, float]], int]:
    """Return how many pieces of `size` GPUs fit on a node beside the jobs that stay there: (terms to subtract, constant)."""
    whole = node.free // size
    if whole == 0:
        return [], 0
    if all(gpus % size == 0 for _, gpus in stays):
        return [(v, gpus / size) for v, gpus in stays], whole
    free = program.variable(0.0, whole)
    program.row([(free, float(size)), *((v, float(gpus)) for v, gpus in stays)], -math.inf, node.free)
    for v, gpus in stays:
        # One job alone already takes this many pieces: makes the relaxation tight.
        if program.most[v] == 1:
            program.row([(free, 1.0), (v, float(whole - (node.free - gpus) // size))], -math.inf, whole)
    return [(free, -1.0)], 0


def _route(
    program: Program, pieces: dict[tuple[Pools, int], list[tuple[int, float]]]
) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """Return (pool, size) -> terms that count the pieces placed there; flows where a job may use several pools."""
    demand: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for (usable, size), terms in pieces.items():
        if len(usable) == 1:
            demand[usable[0], size] += terms
            continue
        flows = [program.variable(0.0, math.inf) for _ in usable]
        for q, flow in zip(usable, flows, strict=True):
            demand[q, size].append((flow, 1.0))
        program.row([*terms, *((flow, -1.0) for flow in flows)], 0, 0)
    return demand


def find_pools(problem: Problem) -> tuple[list[list[NodeCapacity]], dict[NodeFilter, Pools]]:
    """Return pools (nodes that differ for the jobs of this problem by their free GPUs alone), and those open to each node filter."""
    filters = sorted({job.node_filter for job in problem.jobs})
    pool_of: dict[Hashable, list[NodeCapacity]] = {}
    for node in problem.nodes:
        key = (node.gpu_type, tuple(node.admits(f) for f in filters))
        pool_of.setdefault(key, []).append(node)
    pools = list(pool_of.values())
    return pools, {f: tuple(q for q, pool in enumerate(pools) if pool[0].admits(f)) for f in filters}


def _groups(problem: Problem, open_to: dict[NodeFilter, Pools]) -> list[JobGroup]:
    """Group identical jobs (parameter sweeps): solved one by one their ties make branch and bound explode."""
    groups: dict[Hashable, JobGroup] = {}
    for i in sorted(range(len(problem.jobs)), key=lambda i: (problem.jobs[i].submit_s, problem.jobs[i].job_id)):
        job = problem.jobs[i]
        own = columns(job, problem.terms)
        offers = tuple((c.gpu_type, c.nodes, c.gpus_per_node, round(c.gain, 9)) for c in own)
        bound = tuple(limit.rate(job) for limit in problem.bounds)
        loss = round(stay_value(job, problem.terms) - stop_value(job, problem.terms), 9) if job.stoppable else None
        key = (open_to[job.node_filter], offers, _held_key(job), bound, loss)
        if key in groups:
            groups[key].members.append(i)
        else:
            groups[key] = JobGroup([i], own)
    return list(groups.values())


def _held_key(job: JobRequest) -> Hashable:
    return None if job.current is None else (job.nodes, job.cells[job.current].shape)


def read(problem: Problem, groups: list[JobGroup], counts: Ints) -> tuple[list[int | None], frozenset[int]]:
    """Return each job's choice, and the jobs that move.

    Among identical waiting jobs the first submitted get the best columns; among running ones the last submitted change.
    """
    choice: list[int | None] = [job.current for job in problem.jobs]
    moved = set()
    for group in groups:
        order = iter(group.members if group.stay is None else reversed(group.members))
        for number, variable in enumerate(group.variables):
            for _ in range(int(counts[variable])):
                i = next(order)
                # Members are equal in value but may list their Cells differently: look it up in the member's own.
                picked = columns(problem.jobs[i], problem.terms)
                group_column = group.columns[number]
                cell = next(
                    c.cell
                    for c in picked
                    if (c.gpu_type, c.nodes, c.gpus_per_node)
                    == (group_column.gpu_type, group_column.nodes, group_column.gpus_per_node)
                )
                choice[i] = cell
                if cell == problem.jobs[i].current:
                    moved.add(i)
        for _ in range(0 if group.stop is None else int(counts[group.stop])):
            choice[next(order)] = None
    return choice, frozenset(moved)
