"""Limits on stopping running jobs: never, or not where others take few of the GPUs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from synergy_core.records import Snapshot

from synergyd.scheduler.problem.records import Allocation, JobRequest, Policy, Problem
from synergyd.scheduler.problem.utility import allocation

_EVIDENCE = 0.5  # from which on what like jobs took counts: those of its own user weigh as much as all others'
_ROUNDS = 3  # then every running job is kept as it is
LEAST_RUN = 5.0  # restart costs that a job runs for before it may be stopped, and must be expected to have left


def stoppable(jobs: Sequence[JobRequest], snapshot: Snapshot) -> tuple[JobRequest, ...]:
    """Return the jobs, with those marked that have run for long enough since their start to be stopped.

    A job that would be due at once is not marked, nor one that is expected to end soon: others wait for as long as it takes.
    """
    run_s = {j.job_id: snapshot.time_s - j.start_s for j in snapshot.jobs if j.start_s is not None}
    result = []
    for job in jobs:
        ran_s = run_s.get(job.job_id, -math.inf)
        least_s = LEAST_RUN * job.restart.cost.mean_s
        left_s = least_s - ran_s
        if job.current is not None and job.overdue_s < 0:
            job = replace(job, holds_s=min(job.holds_s, max(0.0, left_s)))
            if left_s <= 0 and _expected_rest_s(job) > least_s:
                ready = job.discount > 0 and job.current not in job.banned_cells
                job = replace(job, stoppable=ready, stops_when_due=True)
        result.append(job)
    return tuple(result)


def _expected_rest_s(job: JobRequest) -> float:
    """Return the seconds until a running job ends on its present Cell; infinity if too little is known of its length."""
    cell, progress = job.cells[job.current or 0], job.progress
    if progress.is_claim_refuted:
        return math.inf
    if progress.remaining is not None:
        return progress.remaining / cell.goodput if cell.goodput > 0 else math.inf
    if progress.likely_gpu_s is None or progress.likely_evidence < _EVIDENCE:
        return math.inf
    return progress.likely_gpu_s / cell.shape.gpus


def without_stopping(policy: Policy, problem: Problem) -> Allocation:
    """Return the policy's answer, where a job that it would stop keeps its Cell and its nodes, and the rest is shared out once more.

    So a policy that preempts also works where no job may be stopped. If it keeps stopping others, all running jobs stay as they
    are and it starts waiting ones beside them.
    """
    running = {i for i, job in enumerate(problem.jobs) if job.current is not None}
    kept_jobs: set[int] = set()
    for attempt in range(_ROUNDS + 1):
        rest = [i for i in range(len(problem.jobs)) if i not in kept_jobs]
        allocated = policy.allocate(_without_kept_jobs(problem, rest, kept_jobs))
        stopped = {i for i, choice in zip(rest, allocated.choice, strict=True) if choice is None} & running
        if not stopped:
            break
        kept_jobs = kept_jobs | stopped if attempt < _ROUNDS - 1 else running
    choice: list[int | None] = [job.current for job in problem.jobs]
    for i, picked in zip(rest, allocated.choice, strict=True):
        choice[i] = picked
    return allocation(problem, choice, frozenset(rest[i] for i in allocated.moved_jobs))


def without_wasteful_stops(policy: Policy, problem: Problem) -> Allocation:
    """Return the policy's answer without stops that leave more than half of the GPUs that they free unused.

    Several small jobs may have a higher value than a wide one and still leave the cluster idle.
    """
    allocated = first = policy.allocate(problem)
    for _ in range(_ROUNDS):
        wasteful = _wasteful(problem, allocated)
        if not wasteful:
            return allocated if _count_due_starts(problem, allocated) >= _count_due_starts(problem, first) else first
        restricted_jobs = (replace(a, stoppable=a.stoppable and i not in wasteful) for i, a in enumerate(problem.jobs))
        problem = replace(problem, jobs=tuple(restricted_jobs))
        allocated = policy.allocate(problem)
    if _wasteful(problem, allocated):
        allocated = policy.allocate(replace(problem, jobs=tuple(replace(a, stoppable=False) for a in problem.jobs)))
    return allocated if _count_due_starts(problem, allocated) >= _count_due_starts(problem, first) else first


def _count_due_starts(problem: Problem, allocated: Allocation) -> int:
    """Return the number of jobs that start because they are due: for these a stop may leave GPUs unused."""
    pairs = zip(problem.jobs, allocated.choice, strict=True)
    return sum(job.current is None and job.overdue_s >= 0 and choice is not None for job, choice in pairs)


def _wasteful(problem: Problem, allocated: Allocation) -> set[int]:
    """Return the indices of the jobs that are stopped on GPU types of which others take less than half of what those leave."""
    freed: Counter[str] = Counter()
    net_gpus: Counter[str] = Counter()
    stopped: dict[int, str] = {}
    for i, (job, choice) in enumerate(zip(problem.jobs, allocated.choice, strict=True)):
        now = None if job.current is None else job.cells[job.current].shape
        then = None if choice is None else job.cells[choice].shape
        if now is not None and then is None:
            stopped[i] = now.gpu_type
            freed[now.gpu_type] += now.gpus
        else:
            net_gpus[then.gpu_type if then is not None else ""] += then.gpus if then is not None else 0
            net_gpus[now.gpu_type if now is not None else ""] -= now.gpus if now is not None else 0
    return {i for i, gpu_type in stopped.items() if net_gpus[gpu_type] < freed[gpu_type] / 2}


def _without_kept_jobs(problem: Problem, rest: list[int], kept_jobs: set[int]) -> Problem:
    """Return the problem of the jobs of `rest` on the GPUs that those of `kept_jobs` leave."""
    gpus_by_node: Counter[str] = Counter()
    for i in kept_jobs:
        job = problem.jobs[i]
        for name in job.nodes:
            gpus_by_node[name] += job.cells[job.current or 0].shape.gpus_per_node
    nodes = tuple(replace(node, free=max(0, node.free - gpus_by_node[node.name])) for node in problem.nodes)
    return replace(problem, jobs=tuple(problem.jobs[i] for i in rest), nodes=nodes)
