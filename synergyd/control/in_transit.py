"""Jobs in mid-resize or mid-start, shown to an epoch as if they had arrived: nobody else is given their GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from synergy_core.reasons import text_reason
from synergy_core.records import Action, Cell, Cluster, Decision, Job, JobState, Plan, Snapshot

from synergyd.control.resize.lifecycle import IN_TRANSIT, JobLifecycle


def decisions_under_way(lives: Mapping[int, JobLifecycle]) -> dict[int, Decision]:
    """Return by job id the decisions of earlier epochs that are being carried out: their GPUs are spoken for."""
    decisions = {}
    for job_id, life in lives.items():
        if life.stopping:
            decisions[job_id] = Decision(job_id, Action.WAIT, None, (), text_reason(life.cause))
        elif life.state in IN_TRANSIT and life.target is not None:
            shape = life.target.shape
            plan = life.target.plan or Plan(dp=shape.gpus, global_batch=shape.gpus)
            cell = Cell(shape, plan, 0.0, 1.0, 0.0, 0.0, 0)
            decisions[job_id] = Decision(job_id, Action.RESIZE, cell, life.target.nodes, text_reason(life.cause))
    return decisions


def with_changes_done(snapshot: Snapshot, deciding: Mapping[int, Decision]) -> Snapshot:
    """Return the snapshot that `decide` should see while decisions are being carried out.

    Each job of `deciding` (`decisions_under_way`) runs on its target nodes with its target shape, and is fixed there; one
    that is to wait waits already. GPUs that it still holds elsewhere count as free: `gpus_free`, asked with the
    true snapshot, keeps others from acting on those GPUs before they are.
    """
    before: Counter[str] = Counter()  # GPUs of Synergy's jobs, by node
    after: Counter[str] = Counter()
    jobs = []
    for job in snapshot.jobs:
        decision = deciding.get(job.job_id)
        before.update(_gpus_by_node(job))
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
        after.update(_gpus_by_node(job))
    # jobs are read before nodes: a job may have left a node that its row still names, and then the node does not count it
    nodes = tuple(
        replace(n, gpus_used=min(n.gpus, max(0, n.gpus_used - before[n.name]) + after[n.name]))
        for n in snapshot.cluster.nodes
    )
    return replace(snapshot, cluster=Cluster(nodes), jobs=tuple(jobs))


def _gpus_by_node(job: Job) -> dict[str, int]:
    """Return the GPUs that the job holds, by node."""
    holds = job.state not in (JobState.PENDING, JobState.DONE)
    return dict.fromkeys(job.node_names, job.shape.gpus_per_node) if holds else {}


def keeps_allocation(decision: Decision, job: Job) -> bool:
    """Return whether a job that is to make way is decided to have what it already has."""
    return decision.cell is not None and decision.cell.shape == job.shape and decision.node_names == job.node_names
