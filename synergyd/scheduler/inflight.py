"""Jobs in mid-resize or mid-start, shown to an epoch as if they had arrived: nobody else is given their GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from synergyd.records import Action, Cluster, Decision, JobState, Snapshot


def arrived(snapshot: Snapshot, under_way: Mapping[int, Decision]) -> Snapshot:
    """The snapshot that `decide` should see while decisions are being carried out.

    Each job of `under_way` (by job id) runs on its target nodes with its target shape, and is fixed there; one that is to
    wait waits already. What it still holds elsewhere counts as free: `ready`, asked with the true snapshot,
    keeps others from acting on those GPUs before they are.
    """
    change: Counter[str] = Counter()
    jobs = []
    for job in snapshot.jobs:
        decision = under_way.get(job.job_id)
        holds = job.state in (JobState.RUNNING, JobState.COMPLETING)
        if decision is not None and decision.action is Action.WAIT and holds:
            for name in job.node_names:
                change[name] -= job.shape.gpus_per_node
            jobs.append(replace(job, state=JobState.PENDING, node_names=(), start_s=None, fixed=""))
            continue
        if decision is None or decision.cell is None or job.state is JobState.DONE:
            jobs.append(job)
            continue
        shape = decision.cell.shape
        for name in job.node_names:
            change[name] -= job.shape.gpus_per_node
        for name in decision.node_names:
            change[name] += shape.gpus_per_node
        words = f"Synergy's decision to {decision.action.value} it is being carried out"
        jobs.append(
            replace(
                job,
                state=JobState.RUNNING,
                shape=shape,
                node_names=decision.node_names,
                held=False,
                reason="",
                fixed=words,
            )
        )
    nodes = tuple(replace(n, gpus_used=max(0, n.gpus_used + change[n.name])) for n in snapshot.cluster.nodes)
    return replace(snapshot, cluster=Cluster(nodes), jobs=tuple(jobs))
