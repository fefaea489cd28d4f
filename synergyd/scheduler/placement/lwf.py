"""LWF-kappa: least workload first (arXiv 2002.10105, algorithm 1). Small jobs go to the least loaded GPUs wherever they are, jobs of
more than kappa workers fill whole nodes, least loaded first, so that few links are crossed and crossed links are quiet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synergyd.scheduler.placement.place import Placement, PlacementRequest, why_not
from synergyd.scheduler.problem.records import NodeCapacity


def choose_gpus(
    work: Sequence[float], free: Sequence[bool], nodes: Sequence[Sequence[int]], need: int, kappa: int
) -> tuple[int, ...] | None:
    """`need` GPUs of those that are `free` (have the memory), None if there are too few.

    `work[g]` is GPU g's remaining work (any unit), `nodes` the GPUs of each node. Up to `kappa` workers: the GPUs with least work.
    More: nodes in order of their GPUs' mean work, GPUs within by work.
    """
    if need <= kappa:
        order = sorted((g for gpus in nodes for g in gpus if free[g]), key=lambda g: work[g])
    else:
        by_mean = sorted(nodes, key=lambda gpus: sum(work[g] for g in gpus) / max(1, len(gpus)))
        order = [g for gpus in by_mean for g in sorted((g for g in gpus if free[g]), key=lambda g: work[g])]
    return tuple(order[:need]) if len(order) >= need else None


def place_lwf(
    capacities: Sequence[NodeCapacity],
    requests: Sequence[PlacementRequest],
    kappa: int,
    work: Mapping[str, Sequence[float]],
) -> Placement:
    """Names the nodes of every request, as `place` does, by least workload first.

    `work[node]` is the remaining work (seconds) of each GPU of the node that will go on working, idle ones may be left out; what this
    call places counts as work too, so that jobs placed together spread out. Requests that stay keep their nodes. Others are placed
    biggest GPUs-per-node first, as the counts guarantee a fit only in that order; of jobs up to `kappa` GPUs each goes where
    its GPUs have least work, then the tightest fit; larger ones where the node's mean work is least.
    """
    free = {node.name: node.free for node in capacities}
    total = {node.name: max(1, node.free, len(work.get(node.name, ()))) for node in capacities}
    load = {node.name: float(sum(work.get(node.name, ()))) for node in capacities}
    # A job placed here without figures of its own counts like the mean of what is known.
    known = [w for each in work.values() for w in each if w > 0]
    typical = sum(known) / len(known) if known else 1.0
    nodes: dict[int, tuple[str, ...]] = {}
    failed: dict[int, str] = {}
    for request in requests:
        if request.stay:
            nodes[request.job_id] = request.nodes
            for name in request.nodes:
                if name in free:
                    free[name] = max(0, free[name] - request.shape.gpus_per_node)
    choices = {r.node_filter: sum(node.admits(r.node_filter) for node in capacities) for r in requests}
    changing = sorted(
        (r for r in requests if not r.stay),
        key=lambda r: (-r.shape.gpus_per_node, -r.shape.nodes, choices[r.node_filter], not r.nodes, r.job_id),
    )
    for request in changing:
        shape, gpus = request.shape, request.shape.gpus_per_node
        fit = [
            node.name
            for node in capacities
            if node.gpu_type == shape.gpu_type and node.admits(request.node_filter) and free[node.name] >= gpus
        ]
        if len(fit) < shape.nodes:
            failed[request.job_id] = why_not(free, capacities, request)
            continue
        own = frozenset(request.nodes)
        if shape.gpus <= kappa:
            # Free GPUs are idle: all equal, so that only the fit is left to decide.
            fit.sort(key=lambda name: (name not in own, free[name]))
        else:
            fit.sort(key=lambda name: (load[name] / total[name], name not in own, free[name]))
        chosen = frozenset(fit[: shape.nodes])
        for name in chosen:
            free[name] -= gpus
            load[name] += gpus * typical
        nodes[request.job_id] = tuple(node.name for node in capacities if node.name in chosen)
    return Placement(nodes, failed, free)
