"""Jobs in mid-resize or mid-start, shown to an epoch as if they had arrived: nobody else is given their GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from synergyd.control.resize.lifecycle import IN_TRANSIT, JobLifecycle
from synergyd.records import Action, Cell, Cluster, Decision, Job, JobState, Plan, Snapshot


def under_way(lives: Mapping[int, JobLifecycle]) -> dict[int, Decision]:
    """Decisions of earlier epochs that are being carried out, by job id: their GPUs are spoken for."""
    found = {}
    for job_id, life in lives.items():
        if life.stopping:
            found[job_id] = Decision(job_id, Action.WAIT, None, (), life.cause)
        elif life.state in IN_TRANSIT and life.target is not None:
            shape = life.target.shape
            plan = life.target.plan or Plan(dp=shape.gpus, global_batch=shape.gpus)
            cell = Cell(shape, plan, 0.0, 1.0, 0.0, 0.0, 0)
            found[job_id] = Decision(job_id, Action.RESIZE, cell, life.target.nodes, life.cause)
    return found


def arrived(snapshot: Snapshot, deciding: Mapping[int, Decision]) -> Snapshot:
    """The snapshot that `decide` should see while decisions are being carried out.

    Each job of `deciding` (`under_way`) runs on its target nodes with its target shape, and is fixed there; one that is to
    wait waits already. What it still holds elsewhere counts as free: `gpus_free`, asked with the true snapshot,
    keeps others from acting on those GPUs before they are.
    """
    before: Counter[str] = Counter()  # GPUs of Synergy's jobs, by node
    after: Counter[str] = Counter()
    jobs = []
    for job in snapshot.jobs:
        decision = deciding.get(job.job_id)
        before.update(_held(job))
        holds = job.state in (JobState.RUNNING, JobState.COMPLETING)
        if decision is not None and decision.action is Action.WAIT and holds:
            jobs.append(replace(job, state=JobState.PENDING, node_names=(), start_s=None, fixed=""))
            continue
        if decision is None or decision.cell is None or job.state is JobState.DONE:
            jobs.append(job)
            continue
        words = f"Synergy's decision to {decision.action.value} it is being carried out"
        jobs.append(
            replace(
                job,
                state=JobState.RUNNING,
                shape=decision.cell.shape,
                node_names=decision.node_names,
                held=False,
                reason="",
                fixed=words,
            )
        )
    for job in jobs:
        after.update(_held(job))
    # jobs are read before nodes: a job may have left a node that its row still names, and then the node does not count it
    nodes = tuple(
        replace(n, gpus_used=min(n.gpus, max(0, n.gpus_used - before[n.name]) + after[n.name]))
        for n in snapshot.cluster.nodes
    )
    return replace(snapshot, cluster=Cluster(nodes), jobs=tuple(jobs))


def _held(job: Job) -> dict[str, int]:
    """GPUs that it holds, by node."""
    holds = job.state not in (JobState.PENDING, JobState.DONE)
    return dict.fromkeys(job.node_names, job.shape.gpus_per_node) if holds else {}


def stays(decision: Decision, job: Job) -> bool:
    """Is a job that is to make way decided to have what it has?"""
    return decision.cell is not None and decision.cell.shape == job.shape and decision.node_names == job.node_names
