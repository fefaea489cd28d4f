"""Sizes, nodes and links together: a job's goodput on a set of nodes depends on the other jobs that send over the same links.

A local search from the policy's allocation and its placement. One job at a time, the one that loses most to its neighbours first,
takes what gives the highest sum of all jobs' values with their slowdowns: other nodes (quieter links), another Cell of no more
GPUs (inside one node or leaf), or going on as it runs. The search takes the first round of slowdown.py's forecast as a job's
slowdown (`sharing.expected_slowdown`); the Decision has its fixed point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from synergy_core.records import Cell

from synergyd.links.model import Topology
from synergyd.links.sharing import busy_share, expected_slowdown, make_traffic
from synergyd.links.slowdown import Traffic
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.least_loaded_links import least_loaded_nodes
from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import Allocation, Problem
from synergyd.scheduler.problem.utility import allocation as allocation_of
from synergyd.scheduler.problem.utility import utility, value

TRIES = 400  # places tried for jobs in one epoch: bounds its time on any cluster
_PASSES = 3
_CELLS = 6  # Cells of a job that are tried, best goodput first
_HURT = 1.005  # smaller slowdowns are ignored
# The forecast's mean error on jobs that share links is 1.2 to 7 % of the step time (tests/benchmarks/slowdown_error.py): what a job
# gains by going elsewhere must be more than that.
_ERROR = 0.07


@dataclass(frozen=True)
class Assignment:
    """One job's Cell (`choice`), whether it goes on as it runs, its nodes and its traffic there."""

    choice: int
    stays: bool
    nodes: tuple[str, ...]
    traffic: Traffic | None


@dataclass(frozen=True)
class LinkAwareAnswer:
    """The changed allocation and placement.

    `total` is the objective with the slowdowns of shared links. `away`: by index of the job, the Cells that it did not get
    because of links.
    """

    allocation: Allocation
    placement: Placement
    total: float
    away: Mapping[int, frozenset[int]]


def place_link_aware(
    problem: Problem,
    allocation: Allocation,
    placement: Placement,
    topology: Topology,
    others: Iterable[Traffic] = (),
    sizes: bool = True,
    tries: int = TRIES,
) -> LinkAwareAnswer:
    """Return the allocation and placement, changed where links make something else better.

    `others`: jobs outside of the problem that send. Without `sizes` jobs keep the Cells that the policy chose and running ones
    their nodes: only the nodes of jobs that start or change are chosen. At most about `tries` places are tried; 0: only the
    total.
    """
    work = _LinkAwareSearch(problem, allocation, placement, topology, tuple(others), tries)
    work.improve(sizes)
    return work.outcome(allocation, placement)


class _LinkAwareSearch:
    def __init__(
        self,
        problem: Problem,
        allocation: Allocation,
        placement: Placement,
        topology: Topology,
        others: Sequence[Traffic],
        tries: int,
    ) -> None:
        self.problem, self.topology = problem, topology
        self.partitions = {node.name: node.partitions for node in problem.nodes}
        self.leaf = {node.name: node.leaf for node in problem.nodes}
        self.free_gpus = FreeGpus(problem.nodes, problem.spanned_nodes)
        self.choice = list(allocation.choice)
        self.assignments: dict[int, Assignment] = {}
        self.senders: dict[int, Traffic] = {}  # keyed by the job's index, below 0 outside of the problem
        self.users: dict[str, set[int]] = {}
        self.load: dict[str, float] = {}
        self.tries = tries  # left
        for n, traffic in enumerate(others):
            self._send(-1 - n, traffic)
        for i, cell, stays in allocation.assignments(problem):
            nodes = placement.nodes[problem.jobs[i].job_id]
            choice = allocation.choice[i]
            assert choice is not None
            self._put(i, Assignment(choice, stays, nodes, make_traffic(i, cell, nodes, topology)))

    # -- the state -------------------------------------------------------------------------------------------------

    def _send(self, i: int, traffic: Traffic, sign: int = 1) -> None:
        share = sign * busy_share(traffic, self.topology)
        for link in self.topology.links_crossed(traffic.nodes):
            self.load[link] = self.load.get(link, 0.0) + share
            users = self.users.setdefault(link, set())
            if sign > 0:
                users.add(i)
            else:
                users.discard(i)
        if sign > 0:
            self.senders[i] = traffic
        else:
            del self.senders[i]

    def _put(self, i: int, assignment: Assignment) -> None:
        self.assignments[i], self.choice[i] = assignment, assignment.choice
        self.free_gpus.take(assignment.nodes, self._cell(i, assignment).shape.gpus_per_node, self.problem.jobs[i].needs)
        if assignment.traffic is not None:
            self._send(i, assignment.traffic)

    def _lift(self, i: int) -> Assignment:
        assignment = self.assignments.pop(i)
        self.free_gpus.give(assignment.nodes, self._cell(i, assignment).shape.gpus_per_node, self.problem.jobs[i].needs)
        if assignment.traffic is not None:
            self._send(i, assignment.traffic, -1)
        return assignment

    def _cell(self, i: int, assignment: Assignment) -> Cell:
        return self.problem.jobs[i].cells[assignment.choice]

    def _slowdown(self, i: int) -> float:
        traffic = self.senders.get(i)
        if traffic is None:
            return 1.0
        links = self.topology.links_crossed(traffic.nodes)
        if all(len(self.users[x]) < 2 for x in links):
            return 1.0
        own = busy_share(traffic, self.topology)
        return expected_slowdown(
            traffic, {x: self.load[x] - own for x in links if len(self.users[x]) > 1}, self.topology
        )

    def _value(self, i: int, error: float = 1.0) -> float:
        slowdown = self._slowdown(i) * error
        if i < 0:
            return utility(1.0 / slowdown, self.problem.terms)
        assignment = self.assignments[i]
        return value(self.problem.jobs[i], assignment.choice, assignment.stays, self.problem.terms, slowdown)

    def _neighbours(self, *traffic: Traffic | None) -> set[int]:
        return {
            i for flow in traffic if flow for x in self.topology.links_crossed(flow.nodes) for i in self.users.get(x, ())
        }  # fmt: skip

    # -- the search ------------------------------------------------------------------------------------------------

    def improve(self, sizes: bool) -> None:
        for _ in range(_PASSES):
            hurt = []
            for i in self.assignments:
                if (slowdown := self._slowdown(i)) > _HURT and self._may_change(i, sizes):
                    assignment, job = self.assignments[i], self.problem.jobs[i]
                    alone = value(job, assignment.choice, assignment.stays, self.problem.terms)
                    loss = alone - value(job, assignment.choice, assignment.stays, self.problem.terms, slowdown)
                    hurt.append((-loss, i))
            if not any([self._better(i, sizes) for _, i in sorted(hurt)]):
                return

    def _may_change(self, i: int, sizes: bool) -> bool:
        return sizes or not self.assignments[i].stays

    def _better(self, i: int, sizes: bool) -> bool:
        """Take the best place for one job, all others as they are, and return whether it is another than it had."""
        if self.tries <= 0 or self._slowdown(i) <= _HURT:
            return False
        old = self.assignments[i]
        near = self._neighbours(old.traffic) - {i}
        before = {k: self._value(k) for k in near}
        present_value, wrong = self._value(i), self._value(i, 1.0 + _ERROR)
        self._lift(i)
        best, most = old, present_value - wrong
        for assignment in list(self._places(i, old, sizes)):
            self.tries -= 1
            # the neighbours at the old place gain wherever it goes
            was = {k: before[k] if k in before else self._value(k) for k in near | self._neighbours(assignment.traffic)}
            self.assignments[i] = assignment
            if assignment.traffic is not None:
                self._send(i, assignment.traffic)
            gain = self._value(i) - present_value + sum(self._value(k) - was[k] for k in was)
            if assignment.traffic is not None:
                self._send(i, assignment.traffic, -1)
            if gain > most:
                best, most = assignment, gain
        self._put(i, best)
        return best is not old

    def _places(self, i: int, old: Assignment, sizes: bool) -> Iterator[Assignment]:
        """Return other places for a job that has been lifted: no more GPUs than it had."""
        job = self.problem.jobs[i]
        own = frozenset(job.nodes)
        if job.current is not None and not old.stays:
            cell = job.cells[job.current]
            narrower = sizes and cell.shape.gpus <= job.cells[old.choice].shape.gpus
            if narrower and own <= set(self.free_gpus.fitting(cell.shape, job.node_filter, job.needs)):
                yield Assignment(job.current, True, job.nodes, make_traffic(i, cell, job.nodes, self.topology))
        if job.current is not None and job.discount <= 0:
            return
        cells = CellIndex.build(job.cells)
        most = cells[old.choice].shape.gpus
        fewer = (
            [c for c in cells.best_of_each_shape if c != old.choice and cells[c].shape.gpus <= most] if sizes else []
        )
        for choice in [old.choice, *fewer[:_CELLS]]:
            if choice in job.banned_cells and choice != old.choice:
                continue
            cell = cells[choice]
            if cell.shape.nodes == 1:
                names = self.free_gpus.pick(cell.shape, job.node_filter, own, needs=job.needs, shun=job.shun)
                node_sets = [] if names is None else [names]
            else:
                fits = self.free_gpus.fitting(cell.shape, job.node_filter, job.needs)
                fits = self.free_gpus.better(fits, cell.shape.nodes, job.shun)
                node_sets = least_loaded_nodes(fits, cell.shape.nodes, own, self.load, self.leaf, self.free_gpus.free)
                node_sets = [names for names in node_sets if job.node_filter.allows(names, self.partitions)]
            for names in node_sets:
                stays = choice == job.current and set(names) == own
                assignment = Assignment(choice, stays, job.nodes if stays else names, None)
                if (choice, set(assignment.nodes)) != (old.choice, set(old.nodes)):
                    yield Assignment(
                        choice, stays, assignment.nodes, make_traffic(i, cell, assignment.nodes, self.topology)
                    )

    # -- the answer ------------------------------------------------------------------------------------------------

    def outcome(self, before: Allocation, placement: Placement) -> LinkAwareAnswer:
        problem = self.problem
        moved = frozenset(
            i
            for i, assignment in self.assignments.items()
            if assignment.choice == problem.jobs[i].current and not assignment.stays
        )
        away = {i: frozenset({c}) for i, c in enumerate(before.choice) if c is not None and c != self.choice[i]}
        if self.choice == list(before.choice) and moved == before.moved_jobs:
            improved = before
        else:
            improved = allocation_of(problem, self.choice, moved, before.upper_bound)
        nodes = {problem.jobs[i].job_id: assignment.nodes for i, assignment in self.assignments.items()}
        waits = [value(a, c, False, problem.terms) for a, c in zip(problem.jobs, self.choice, strict=True) if c is None]
        total = sum(waits) + sum(self._value(i) for i in [*self.assignments, *(i for i in self.senders if i < 0)])
        return LinkAwareAnswer(
            improved, Placement(nodes, dict(placement.unplaced_reasons), dict(self.free_gpus.free)), total, away
        )
