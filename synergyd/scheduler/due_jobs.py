"""Waiting jobs that are due (problem/waiting_bound.py): each starts before others gain anything, or nodes are kept for it. Pure.

Jobs that were due first come first. They could have the free GPUs, those that running jobs give by shrinking, and those of jobs
that may be stopped. A job that fits into that needs a start, and the allocation finds the best way to it. For a job that does
not fit, nodes are kept: no job starts or grows there, so that they empty as those that run there end or may be stopped. GPUs
that are kept stand idle in part, so a node is kept only where it is empty soon: within the time that the job itself takes, or a
job runs at least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from synergy_core.formatting import format_shape
from synergy_core.reasons import Reason
from synergy_core.records import Action, Decision

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.preemption import LEAST_RUN
from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.gpu_limits import Allowance
from synergyd.scheduler.problem.priorities import with_need_bonus
from synergyd.scheduler.problem.records import Allocation, JobRequest, NodeCapacity, Objective, Problem
from synergyd.scheduler.problem.restart_bound import instead_of_a_stop

# due jobs within their limits that are looked at in an epoch, the earliest first: each is a look at all nodes
MOST = 64
_WHY = "since it has waited for as long as FairnessBound allows"


@dataclass(frozen=True)
class DueProblem:
    """The problem as it is solved, the indices of the jobs that need a start in it, and of those that nodes are kept for."""

    problem: Problem
    starting: tuple[int, ...] = ()
    kept_nodes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def annotate(self, decision: Decision, index: int) -> Decision:
        """Add the nodes that are kept for the job, or for others, to the reason of one that waits."""
        if decision.action is not Action.WAIT or not self.kept_nodes:
            return decision
        if index not in self.kept_nodes:
            count = len({name for names in self.kept_nodes.values() for name in names})
            reason = Reason("nodes-kept", {"count": count, "is_are": "s are" if count > 1 else " is"})
            return replace(decision, reasons=(*decision.reasons, reason))
        names = [name.partition(":")[0] for name in self.kept_nodes[index]]
        job = self.problem.jobs[index]
        least = format_shape(job.cells[_least(job)[0]].shape)
        return replace(decision, reasons=(Reason("kept-for-due", {"least": least, "nodes": names, "because": _WHY}),))


def due_problem(problem: Problem, terms: Objective, wait_for: Iterable[int] = ()) -> DueProblem:
    """Return `problem` with its due jobs first.

    `terms` are without a bonus for needs. `wait_for` holds the indices of jobs that found no place although there seemed to be
    one; nodes are kept for them.
    """
    jobs, no_place = list(problem.jobs), frozenset(wait_for)
    due = [i for i, job in enumerate(jobs) if _is_due(job)]
    due.sort(key=lambda i: (-jobs[i].overdue_s, jobs[i].job_id))
    if not due:
        return DueProblem(problem)
    (free, empty_s), now = _find_free_after_drain(problem), _free_now(problem) if no_place else None
    starting, kept_nodes, looked, emptied = [], {}, 0, set[str]()
    allowance, planned = Allowance(problem, [job.current for job in jobs]), set[str]()
    served = set[str]()
    least: dict[object, list[int]] = {}  # keyed by identity: like jobs have the same Cells
    for i in due:
        job, alike = jobs[i], (id(jobs[i].cells), jobs[i].banned_cells)
        if alike not in least:
            least[alike] = _least(job)
        cells = [index for index in least[alike] if allowance.allows(job, None, index)]
        if not cells:
            continue  # no GPUs that become free are for it
        if (looked := looked + 1) > MOST:
            break
        if now is not None and i in no_place and _pick(job, cells, now) is not None:
            continue  # it fits, and yet it was not started: nodes that are kept would not change that
        soft = None if i in no_place else _pick(job, cells, free[False])
        hard = None if soft or i in no_place else _pick(job, cells, free[True])
        names, gpus = soft or hard or ((), 0)
        if names:
            starting.append(i)
            served.update(names)
            emptied.update(() if soft else names)
        elif names := _to_keep(problem, job, cells, free[True], planned, empty_s):
            kept_nodes[i], gpus = names, max(node.free for node in problem.nodes)
        if names:
            allowance.change(job, None, cells[0])
        planned.update(names)
        for one in free.values():
            one.take(names, gpus, job.needs)
    starts = frozenset(starting)
    for i, job in enumerate(jobs):
        if i in starts:
            need = job.needed_goodput if job.deadline_s is not None else 0.0
            jobs[i] = replace(
                job, needed_goodput=need or job.cells[CellIndex.build(job.cells).least].goodput, need_why=_WHY
            )
        elif job.needed_goodput and job.deadline_s is None:
            jobs[i] = replace(
                job, needed_goodput=0.0, need_after_restart=0.0, need_why=""
            )  # a start comes before a larger share
        if job.stops_when_due and not emptied.isdisjoint(job.nodes):
            jobs[i] = replace(jobs[i], stoppable=True)
        if jobs[i].stoppable and not served.isdisjoint(job.nodes):
            jobs[i] = replace(jobs[i], banned_cells=job.banned_cells - _instead_of_a_stop(job))
    nodes = _close_nodes(problem, {name for names in kept_nodes.values() for name in names})
    changed = replace(problem, jobs=tuple(jobs), nodes=nodes, terms=with_need_bonus(terms, jobs))
    return DueProblem(changed, tuple(starting), kept_nodes)


def missing(due: DueProblem, allocated: Allocation) -> tuple[int, ...]:
    """Return the indices of the jobs that need a start and got none."""
    return tuple(i for i in due.starting if allocated.choice[i] is None)


def _is_due(job: JobRequest) -> bool:
    return job.current is None and job.overdue_s >= 0 and len(job.banned_cells) < len(job.cells)


def _least(job: JobRequest) -> list[int]:
    """Return the indices of those permitted Cells that have the fewest GPUs, the best first."""
    allowed = [i for i in range(len(job.cells)) if i not in job.banned_cells]
    fewest = min(job.gpus(i) for i in allowed)
    shapes = {
        job.cells[i].shape: i for i in sorted(allowed, key=lambda i: job.cells[i].goodput) if job.gpus(i) == fewest
    }
    return sorted(shapes.values(), key=lambda i: -job.cells[i].goodput)


def _pick(job: JobRequest, cells: Iterable[int], free: FreeGpus) -> tuple[tuple[str, ...], int] | None:
    """Return nodes for one of the job's Cells, and the GPUs on each."""
    for index in cells:
        shape = job.cells[index].shape
        if (names := free.pick(shape, job.node_filter, needs=job.needs, shun=job.shun)) is not None:
            return names, shape.gpus_per_node
    return None


def _find_free_after_drain(problem: Problem) -> tuple[dict[bool, FreeGpus], dict[str, float]]:
    """Return what is free beside the GPUs that running jobs must keep, and when each node is empty.

    The first item is keyed by whether also those jobs are stopped that may be stopped only for due ones. The second is by node:
    the seconds until the last job there that is not stopped even so has ended or may be stopped.
    """
    free = {hard: FreeGpus(problem.nodes, problem.spanned_nodes) for hard in (False, True)}
    empty_s: dict[str, float] = {}
    for job in problem.jobs:
        if job.current is not None and not job.stoppable:
            names, gpus = _must_keep(job)
            free[False].take(names, gpus, job.needs)
            if not job.stops_when_due:
                free[True].take(names, gpus, job.needs)
                empty_s.update({name: max(empty_s.get(name, 0.0), job.holds_s) for name in names})
    return free, empty_s


def _free_now(problem: Problem) -> FreeGpus:
    free = FreeGpus(problem.nodes, problem.spanned_nodes)
    for job in problem.jobs:
        if job.current is not None:
            free.take(job.nodes, job.cells[job.current].shape.gpus_per_node, job.needs)
    return free


def _instead_of_a_stop(job: JobRequest) -> frozenset[int]:
    """Return the Cells on a part of what the job holds that only RestartShare forbids and that cost it less than a stop would."""
    if job.discount <= 0 or job.own_limits or job.current is None:
        return frozenset()
    present_shape = job.cells[job.current].shape
    smaller = frozenset(
        i
        for i, shape in enumerate(cell.shape for cell in job.cells)
        if shape.gpus < present_shape.gpus
        and shape.is_inside(present_shape, len(job.nodes))
        and (shape.nodes == 1 or shape.gpus_per_node == present_shape.gpus_per_node)
    )
    return smaller & instead_of_a_stop(job)


def _must_keep(job: JobRequest) -> tuple[tuple[str, ...], int]:
    """Return the nodes, and the GPUs on each, of the least that a running job can shrink to on its own nodes."""
    present_shape = job.cells[job.current or 0].shape
    best, nodes = present_shape, job.nodes
    for i, cell in enumerate(job.cells if job.discount > 0 else ()):
        shape = cell.shape
        if shape.gpus < best.gpus and shape.is_inside(present_shape, len(job.nodes)) and i not in job.banned_cells:
            best, nodes = shape, job.nodes[: shape.nodes]
    return nodes, best.gpus_per_node


def _to_keep(
    problem: Problem,
    job: JobRequest,
    cells: Iterable[int],
    free: FreeGpus,
    planned: Container[str],
    empty_s: Mapping[str, float],
) -> tuple[str, ...]:
    """Return the names of nodes for the job's first Cell that the cluster could hold soon.

    These are the nodes on which least has to end first; () if too few are left besides those `planned` for jobs that were due
    before it. `empty_s`: see _drained.
    """
    soon_s = max(job.holds_s, LEAST_RUN * job.restart.cost.mean_s)
    order = {node.name: i for i, node in enumerate(problem.nodes)}
    for index in cells:
        shape = job.cells[index].shape
        able = [
            node
            for node in problem.nodes
            if node.name not in planned
            and node.gpu_type == shape.gpu_type
            and node.free >= shape.gpus_per_node
            and node.admits(job.node_filter)
            and (free.free[node.name] >= shape.gpus_per_node or empty_s.get(node.name, 0.0) <= soon_s)
        ]
        able.sort(key=lambda n: (not _is_required(job, n), shape.gpus_per_node - free.free[n.name], order[n.name]))
        names = tuple(node.name for node in able[: shape.nodes])
        partitions = {node.name: node.partitions for node in able}
        if len(names) == shape.nodes and job.node_filter.allows(names, partitions):
            return names
    return ()


def _is_required(job: JobRequest, node: NodeCapacity) -> bool:
    return (node.host or node.name) in job.node_filter.required_nodes


def _close_nodes(problem: Problem, names: set[str]) -> tuple[NodeCapacity, ...]:
    """Return the nodes, where those of `names` hand out what jobs hold there and nothing else."""
    own_gpus: Counter[str] = Counter()
    for job in problem.jobs if names else ():
        for name in job.nodes if job.current is not None else ():
            own_gpus[name] += job.cells[job.current or 0].shape.gpus_per_node
    return tuple(
        replace(node, free=min(node.free, own_gpus[node.name])) if node.name in names else node
        for node in problem.nodes
    )
