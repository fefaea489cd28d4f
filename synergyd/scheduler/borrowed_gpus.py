"""GPUs that running jobs hold beyond their requested sizes, and that waiting jobs ask for: they go back at once. Pure.

Under Slurm alone such GPUs would be free, and the waiting job would start on them. RestartShare would let it wait for one or more epochs
where a restart of the jobs that have grown costs them too much of their lives: a job of a minute then takes three times as long. So

- a waiting job whose requested size would be free if all running jobs had theirs starts before others gain anything, at whatever size the
  objective gives it;
- jobs that have grown may shrink for it down to their requested sizes, whatever their restarts have cost.

A job whose restart takes longer than the waiting job would wait otherwise, until it may be due (WAIT_EPOCHS), gives nothing back: it
would lose more than the other gains. Jobs are served in the order of their submission, as by Slurm. While a job needs something first
(a deadline, fairness) nothing changes.
"""

from __future__ import annotations

from dataclasses import replace

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.problem.gpu_limits import Allowance
from synergyd.scheduler.problem.priorities import WAIT_EPOCHS, with_need_bonus
from synergyd.scheduler.problem.records import JobRequest, Objective, Problem
from synergyd.scheduler.problem.restart_bound import ban_costly_restarts

_WHY = "since others have borrowed the GPUs that it asks for"


def with_returns(problem: Problem, terms: Objective, epoch_s: float) -> Problem:
    """Return the problem with the starts of jobs whose GPUs others have borrowed first. `terms` are without a bonus for needs."""
    wait_s = WAIT_EPOCHS * epoch_s
    if any(job.needed_goodput for job in problem.jobs):
        return problem
    first = _borrowed_from(problem, wait_s)
    if not first:
        return problem
    jobs = tuple(_first(job) if job.job_id in first else _giving(job, wait_s) for job in problem.jobs)
    return replace(problem, jobs=jobs, terms=with_need_bonus(terms, jobs))


def _borrowed_from(problem: Problem, wait_s: float) -> frozenset[int]:
    """Return the waiting jobs whose requested sizes are not free, and would be if no running job had more than its own."""
    free, lent = (FreeGpus(problem.nodes, problem.spanned_nodes) for _ in range(2))
    for job in problem.jobs:
        if job.current is not None:
            free.take(job.nodes, job.cells[job.current].shape.gpus_per_node, job.needs)
            shape = job.cells[_own(job, wait_s)].shape
            lent.take(job.nodes[: shape.nodes], shape.gpus_per_node, job.needs)
    allowance = Allowance(problem, [None if job.current is None else _own(job, wait_s) for job in problem.jobs])
    first = set()
    for job in sorted(problem.jobs, key=lambda job: (job.submit_s, job.job_id)):
        if job.current is not None or job.requested_cell is None or job.requested_cell in job.banned_cells:
            continue
        shape = job.cells[job.requested_cell].shape
        now = free.pick(shape, job.node_filter, needs=job.needs, shun=job.shun)
        names = lent.pick(shape, job.node_filter, now or (), needs=job.needs, shun=job.shun)
        if names is None or not allowance.allows(job, None, job.requested_cell):
            continue
        lent.take(names, shape.gpus_per_node, job.needs)
        allowance.change(job, None, job.requested_cell)
        if now is None:
            first.add(job.job_id)
        else:
            free.take(now, shape.gpus_per_node, job.needs)
    return frozenset(first)


def _own(job: JobRequest, wait_s: float) -> int:
    """Return the index of a running job's requested size inside what it holds, or of all that if it gives nothing back."""
    held = job.current or 0
    if job.requested_cell is None or job.discount <= 0 or job.restart.cost.mean_s > wait_s:
        return held
    if job.gpus(job.requested_cell) >= job.gpus(held):
        return held
    return (
        job.requested_cell
        if job.cells[job.requested_cell].shape.is_inside(job.cells[held].shape, len(job.nodes))
        else held
    )


def _first(job: JobRequest) -> JobRequest:
    """Return the waiting job with a need for any start."""
    least = min(cell.goodput for i, cell in enumerate(job.cells) if i not in job.banned_cells)
    return replace(job, needed_goodput=least, need_why=_WHY)


def _giving(job: JobRequest, wait_s: float) -> JobRequest:
    """Return a running job that has borrowed GPUs with the Cells allowed that give some back and only RestartShare forbids."""
    if job.current is None or job.requested_cell is None or _own(job, wait_s) == job.current:
        return job
    forbidden = ban_costly_restarts(replace(job, banned_cells=frozenset())).banned_cells
    smaller = frozenset(i for i in forbidden if job.gpus(job.requested_cell) <= job.gpus(i) < job.gpus(job.current))
    return replace(job, banned_cells=job.banned_cells - smaller) if smaller & job.banned_cells else job
