"""Waiting jobs that others without a directive have passed: from then on Slurm holds room for them, in its own order. Pure.

A job that waits for a decision has a start time in the future, so Slurm gives GPUs that become free to jobs that were submitted
later. Released at the size asked for, without named nodes, it stands in Slurm's queue as the same job without a directive
would.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from synergy_core.formatting import format_shape
from synergy_core.reasons import Reason
from synergy_core.records import Action, Decision

from synergyd.scheduler.problem.gpu_limits import Allowance, own_limit_obstacle
from synergyd.scheduler.problem.records import JobRequest, Problem

MOST = 20  # an epoch: each is some calls of Slurm


def release_overtaken_jobs(
    decisions: Iterable[Decision], problem: Problem, allowance: Allowance, overtaken: Container[int]
) -> tuple[Decision, ...]:
    """Leave the jobs of `overtaken` that got no GPUs to Slurm's choice of moment and nodes, within the settings' limits.

    The GPUs that they take are taken from `allowance`. Limits of Slurm's own hold them in Slurm's queue, as they would without
    a directive.
    """
    requests = {request.job_id: request for request in problem.jobs if request.job_id in overtaken}
    if not requests:
        return tuple(decisions)
    result, turns = [], 0
    for decision in decisions:
        job = requests.get(decision.job_id)
        waits = job is not None and decision.action is Action.WAIT and job.current is None
        if (
            job is not None
            and waits
            and job.requested_cell is not None
            and turns < MOST
            and _is_allowed(job, allowance)
        ):
            turns += 1
            allowance.change(job, None, job.requested_cell)
            cell = job.cells[job.requested_cell]
            why = (Reason("overtaken", {"size": format_shape(cell.shape)}), *decision.reasons)
            decision = replace(decision, action=Action.START, cell=cell, node_names=(), reasons=why)
        result.append(decision)
    return tuple(result)


def _is_allowed(job: JobRequest, allowance: Allowance) -> bool:
    """Return whether the job may have the size asked for, by its own limits and those of the settings."""
    if job.requested_cell is None or own_limit_obstacle(job, job.requested_cell):
        return False
    full = allowance.find_exceeded_limit(job, None, job.requested_cell)  # the settings' come first
    return full is None or bool(full[0].slurm)
