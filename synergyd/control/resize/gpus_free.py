"""Whether a decision can be carried out now, or others still hold its GPUs, CPUs or memory. Pure."""

from __future__ import annotations

from synergy_core.records import Action, Decision, Job, Node, Snapshot


def gpus_free(decision: Decision, snapshot: Snapshot) -> bool:
    """Return whether the target nodes are up and have enough GPUs free now, the job's own GPUs there counted as free.

    A job that gets fewer GPUs of the nodes that it runs on is always ready: it only gives. Decisions that change nothing are ready.
    """
    if decision.action in (Action.KEEP, Action.WAIT) or decision.cell is None:
        return True
    job = next((j for j in snapshot.jobs if j.job_id == decision.job_id), None)
    if job is None:
        return False
    shape = decision.cell.shape
    own_names = set(job.node_names)
    if decision.action is Action.RESIZE and shape.gpus < job.shape.gpus and own_names.issuperset(decision.node_names):
        return True
    for name in decision.node_names:
        node = snapshot.cluster.node(name, shape.gpu_type)
        if node is None or not node.up:
            return False
        own = job.shape.gpus_per_node if name in own_names else 0
        if node.gpus - node.gpus_used + own < shape.gpus_per_node:
            return False
        if not own and node.room is not None and not has_cpus(node, job, shape.gpus_per_node):
            return False
    return True


def has_cpus(node: Node, job: Job, gpus: int) -> bool:
    """Return whether the CPUs and memory are free that go with so many GPUs of this node."""
    if node.room is None:
        return True
    if job.needs.whole_nodes:
        return node.used.cpus == 0 and node.gpus_used == 0
    need = job.needs.room_for(gpus, node.threads_per_core, node.room.memory_mib)
    return node.room.plus(node.used, -1).has_room_for(need)
