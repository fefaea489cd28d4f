"""Waiting jobs that others without a directive have passed: from then on Slurm holds room for them, in its own order. Pure.

A job that waits for a decision stands behind a start time, so Slurm gives what becomes free to jobs that were submitted later.
Released at the size asked for, without named nodes, it stands in Slurm's queue as the same job without a directive would.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from synergyd.records import Action, Decision
from synergyd.scheduler.problem.gpu_limits import Allowance, beyond_own
from synergyd.scheduler.problem.records import JobRequest, Problem
from synergyd.words import shape_words

MOST = 20  # an epoch: each is some calls of Slurm


def with_turns(
    decisions: Iterable[Decision], problem: Problem, allowance: Allowance, passed: Container[int]
) -> tuple[Decision, ...]:
    """The decisions; a job of `passed` that got no GPUs is left to Slurm's choice of moment and nodes, within the settings'
    limits: what it takes is taken from `allowance`. Limits of Slurm's own hold it in Slurm's queue, as they would without a
    directive."""
    requests = {request.job_id: request for request in problem.jobs if request.job_id in passed}
    if not requests:
        return tuple(decisions)
    found, turns = [], 0
    for decision in decisions:
        job = requests.get(decision.job_id)
        waits = job is not None and decision.action is Action.WAIT and job.current is None
        if job is not None and waits and job.asked is not None and turns < MOST and _allowed(job, allowance):
            turns += 1
            allowance.change(job, None, job.asked)
            cell = job.cells[job.asked]
            why = f"Starts on {shape_words(cell.shape)} when Slurm has them free: jobs without a directive that were submitted "
            why += f"later have started before it. {decision.why}"
            decision = replace(decision, action=Action.START, cell=cell, node_names=(), why=why)
        found.append(decision)
    return tuple(found)


def _allowed(job: JobRequest, allowance: Allowance) -> bool:
    """May it have the size asked for, by its own limits and those of the settings?"""
    if job.asked is None or beyond_own(job, job.asked):
        return False
    full = allowance.exceeded(job, None, job.asked)  # the settings' come first
    return full is None or bool(full[0].slurm)
