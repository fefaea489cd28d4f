"""Dally: delay scheduling by network tier, and preemption by sensitivity to the network (Sharma et al., arXiv 2401.16492)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping

from synergy_sim.policies.nearest import nearest_tier
from synergy_sim.policies.requested_size import by_submission, requested_or_smallest, requested_size
from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.make_placeable import make_placeable
from synergyd.scheduler.placement.place import make_placement_requests, place
from synergyd.scheduler.problem.delays import Tier, find_tier, may_take
from synergyd.scheduler.problem.records import Allocation, JobRequest, Policy, Problem
from synergyd.scheduler.problem.utility import allocation

_ROUNDS = 4  # rounds of taking back starts that were laid further apart than their timers allow
_LEASES = 5.0  # restart costs for which a job keeps its GPUs at least; the authors lease them for about an hour


class DallyPolicy(Policy):
    """Jobs in order of how much the network has slowed them, most first, each on as many GPUs as it asks for.

    The GPUs are as near to one another as the job gets them; one that finds none near enough yet is passed over.

    - Order (DallyIntraJobScheduler.endIteration): by the time that the work done would have taken without any communication, over the
      time that the job has run; least first, so new jobs before all others. Then those that wait longest.
    - Offers (consolidatedGPUAllocation): GPUs of one node are taken at once; of one leaf, or of any nodes, once the job has waited for
      its timer (problem/delays.py), or where it could never have them nearer.
    - A running job whose lease is over may be stopped for those before it; so the jobs that the network slows most are stopped last.

    The memory of a policy here is in Problem.delays. The authors compute the slowdown by ASTRA-sim; here it is the share of the step in
    which a Cell sends. A job is not moved to nearer nodes unless it loses its own, and it has equal GPUs on all of its nodes.
    """

    preempts = True
    sizes_fixed = True
    observes_delays = True
    rule = "the job that the network has slowed most comes first, and each waits for near nodes for as long as its delay timer says"

    def allocate(self, problem: Problem) -> Allocation:
        late: set[int] = set()
        for _ in range(_ROUNDS):
            offered, nodes = _offers(problem, late)
            apart = _find_scattered_jobs(problem, offered, nodes)
            if not apart:
                break
            late |= apart
        return offered


def network_score(job: JobRequest) -> float:
    """Return the seconds that the job's work would have taken without communication over the seconds that it has run; 0 for a new job.

    A job that does not tell its progress, or says 0 though it has run, counts with the share of the step in which it computes: the
    authors' score is of iterations that have ended, and a job that never says so would come first for good.
    """
    cell = job.cells[requested_or_smallest(job)]
    ran_s = job.progress.attained_gpu_s / max(1, cell.shape.gpus)
    computes = 1.0 - min(1.0, cell.sync_s / cell.step_s) if cell.step_s > 0 else 1.0
    if ran_s <= 0:
        return 0.0
    if not job.progress.trained_sequences or cell.goodput <= 0:
        return computes
    return job.progress.trained_sequences * computes / cell.goodput / ran_s


def _offers(problem: Problem, late: Container[int]) -> tuple[Allocation, Mapping[int, tuple[str, ...]]]:
    """Return the jobs in order, each with the nearest GPUs that it may take, and by job id the nodes where `place` lays them.

    Those of `late` don't start.
    """
    free_gpus, leaf = FreeGpus(problem.nodes), {node.name: node.leaf for node in problem.nodes}
    handed_out = {node.name: node.free for node in problem.nodes}
    homes = Counter(name for job in problem.jobs for name in job.nodes)
    scores = [network_score(job) for job in problem.jobs]
    choice: list[int | None] = [None] * len(problem.jobs)
    moved: set[int] = set()
    order = sorted(
        by_submission(problem), key=lambda i: (not _has_lease(problem, i), scores[i], -_waited_s(problem, i))
    )
    for i in order:
        job = problem.jobs[i]
        homes.subtract(job.nodes)
        if job.current is not None:
            gpus = job.cells[job.current].shape.gpus_per_node
            # a node that hands out nothing is down, and its jobs may stay
            if all(not handed_out.get(name) or free_gpus.free[name] >= gpus for name in job.nodes):
                free_gpus.take(job.nodes, gpus, job.needs)
                choice[i] = job.current
                continue
        if i in late:
            continue
        furthest = _furthest_tier(problem, i)
        for cell in _cells(job):
            shape = job.cells[cell].shape
            names = free_gpus.pick(shape, job.node_filter, job.nodes, homes, job.needs, job.shun)
            if names is not None and find_tier(names, leaf) <= furthest:
                free_gpus.take(names, shape.gpus_per_node, job.needs)
                choice[i] = cell
                moved |= {i} if cell == job.current else set()
                break
    offered = allocation(problem, choice, frozenset(moved))
    placement = place(problem.nodes, make_placement_requests(problem, offered), problem.spanned_nodes)
    if placement.unplaced_reasons:
        offered = make_placeable(problem, choice, moved)
        placement = place(problem.nodes, make_placement_requests(problem, offered), problem.spanned_nodes)
    return offered, placement.nodes


def _find_scattered_jobs(problem: Problem, offered: Allocation, nodes: Mapping[int, tuple[str, ...]]) -> set[int]:
    """Return the jobs that `place` would start further apart than their timers allow: it lays the jobs in an order of its own."""
    leaf = {node.name: node.leaf for node in problem.nodes}
    return {
        i
        for i, _, stays in offered.assignments(problem)
        if not stays and find_tier(nodes.get(problem.jobs[i].job_id, ()), leaf) > _furthest_tier(problem, i)
    }


def _cells(job: JobRequest) -> list[int]:
    """Return the best Cell of each shape with as many GPUs of the same type as the job asks for, those on the fewest nodes first."""
    requested_cell = requested_size(job)
    if requested_cell is None:
        return []
    want = job.cells[requested_cell].shape
    best: dict[int, int] = {}  # by number of nodes
    for i in sorted(range(len(job.cells)), key=lambda i: -job.cells[i].goodput):
        shape = job.cells[i].shape
        if (shape.gpu_type, shape.gpus) == (want.gpu_type, want.gpus) and i not in job.banned_cells:
            best.setdefault(shape.nodes, i)
    return [best[nodes] for nodes in sorted(best)]


def _furthest_tier(problem: Problem, i: int) -> Tier:
    job = problem.jobs[i]
    shapes = [job.cells[cell].shape for cell in _cells(job)]
    if not shapes:
        return Tier.ACROSS
    best = min(nearest_tier(problem.nodes, shape, job.node_filter) for shape in shapes)
    return may_take(problem.delays, shapes[0].gpus, best, _waited_s(problem, i))


def _waited_s(problem: Problem, i: int) -> float:
    job = problem.jobs[i]
    if job.current is not None:
        return 0.0
    return problem.now_s - problem.delays.waiting.get(job.job_id, problem.now_s)


def _has_lease(problem: Problem, i: int) -> bool:
    """Return whether the job keeps its GPUs, whichever jobs come before it."""
    job = problem.jobs[i]
    since_s = problem.delays.running.get(job.job_id, -math.inf)
    return job.current is not None and problem.now_s - since_s < _LEASES * job.restart.cost.mean_s
