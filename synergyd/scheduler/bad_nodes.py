"""Nodes where jobs have fared badly: whether it pays to use them for now. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from synergy_core.reasons import Reason, Reasons
from synergy_core.records import Decision, Job

from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.problem.records import Allocation, Problem
from synergyd.scheduler.problem.utility import value

# Goodput that a job is expected to lose on a node with a penalty of 1: slow nodes delay large jobs by 1.34 times on average
# (Greyhound, USENIX ATC 2025).
LOSS = 1 - 1 / 1.34


def newly_on_bad(problem: Problem, allocation: Allocation, placement: Placement) -> bool:
    """Return whether some job starts on, or changes to, a node with a penalty."""
    penalties = _penalties(problem)
    jobs = problem.jobs
    return bool(penalties) and any(
        name in penalties and name not in jobs[i].nodes
        for i, _, stays in allocation.assignments(problem)
        if not stays
        for name in placement.nodes[jobs[i].job_id]
    )


def without_bad_nodes(problem: Problem) -> Problem:
    """Return the problem without the GPUs of nodes with a penalty, except those that its own jobs already hold."""
    own_gpus: Counter[str] = Counter()
    for job in problem.jobs:
        if job.current is not None:
            own_gpus.update({name: job.cells[job.current].shape.gpus_per_node for name in job.nodes})
    nodes = (replace(n, free=min(n.free, own_gpus[n.name])) if n.penalty > 0 else n for n in problem.nodes)
    return replace(problem, nodes=tuple(nodes))


def value_with_penalties(problem: Problem, allocation: Allocation, placement: Placement) -> float:
    """Return the sum of the jobs' values, where a job that comes to a node with a penalty is expected to lose goodput there."""
    penalties, total = _penalties(problem), 0.0
    stays_by_job = {i: stays for i, _, stays in allocation.assignments(problem)}
    for i, (job, choice) in enumerate(zip(problem.jobs, allocation.choice, strict=True)):
        stays = stays_by_job.get(i, False)
        names = () if stays or i not in stays_by_job else placement.nodes[job.job_id]
        worst = max((penalties.get(name, 0.0) for name in names), default=0.0)
        total += value(job, choice, stays, problem.terms, 1.0 / (1.0 - LOSS * worst))
    return total


def bad_node_reasons(decision: Decision, job: Job, penalties: Iterable[str]) -> Reasons:
    """Return the bad nodes that the job leaves or has to take."""
    old_bad_nodes = [
        n for n in job.shun if n in job.node_names and decision.node_names and n not in decision.node_names
    ]
    if old_bad_nodes and job.slowed > 1.0:
        return (Reason("leaves-bad-nodes", {"nodes": old_bad_nodes, "slowdown": job.slowed}),)
    new_bad_nodes = [n for n in decision.node_names if n in set(penalties) and n not in job.node_names]
    return (Reason("takes-bad-nodes", {"nodes": new_bad_nodes}),) if new_bad_nodes else ()


def _penalties(problem: Problem) -> dict[str, float]:
    return {node.name: node.penalty for node in problem.nodes if node.penalty > 0}
