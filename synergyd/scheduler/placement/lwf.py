"""LWF-kappa: least workload first (arXiv 2002.10105, algorithm 1).

Small jobs go to the least loaded GPUs wherever they are, jobs of more than kappa workers fill whole nodes, least loaded first, so
that few links are crossed and crossed links are quiet.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.placement.place import Placement, PlacementRequest, placing_order, why_not
from synergyd.scheduler.problem.records import NodeCapacity

# (work a GPU, not one of its own, free GPUs)
_Rank = tuple[float, bool, int]


def choose_gpus(
    work: Sequence[float], free: Sequence[bool], nodes: Sequence[Sequence[int]], need: int, kappa: int
) -> tuple[int, ...] | None:
    """Return `need` GPUs of those that are `free` (have the memory), or None if there are too few.

    `work[g]` is GPU g's remaining work (any unit), `nodes` the GPUs of each node. Up to `kappa` workers: the GPUs with least
    work. More: nodes in order of their GPUs' mean work, GPUs within by work.
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
    spanned: Collection[str] | None = None,
) -> Placement:
    """Choose the nodes of every request, as `place` does, by least workload first.

    `work[node]` is the remaining work (seconds) of each GPU of the node that will go on working; idle ones may be left out.
    Jobs placed by this call count as work too, so that jobs placed together spread out. Requests that stay keep their nodes.
    Others are placed biggest GPUs-per-node first, as the counts guarantee a fit only in that order. Free GPUs are idle, thus
    all alike to a job of up to `kappa` GPUs: it gets the tightest fit, as `place` gives it. Larger ones go where the node's
    mean work is least.
    """
    free_gpus = FreeGpus(capacities, spanned)
    order = {node.name: i for i, node in enumerate(capacities)}
    total = {node.name: max(1, node.free, len(work.get(node.name, ()))) for node in capacities}
    load = {node.name: float(sum(work.get(node.name, ()))) for node in capacities}
    # a job placed here without figures of its own counts as typical of what is known, as in `node_work`
    positive_work = [w for each in work.values() for w in each if w > 0]
    typical = statistics.median(positive_work) if positive_work else 1.0
    nodes: dict[int, tuple[str, ...]] = {}
    failed: dict[int, str] = {}
    for request in requests:
        if request.stay:
            free_gpus.take(request.nodes, request.shape.gpus_per_node, request.needs)
            nodes[request.job_id] = request.nodes
    for request in placing_order(capacities, requests):
        shape, own, needs = request.shape, frozenset(request.nodes), request.needs
        if shape.gpus <= kappa:
            names = free_gpus.pick(shape, request.node_filter, own, None, needs, request.shun)
        else:

            def rank(name: str, own: frozenset[str] = own) -> _Rank:
                return load[name] / total[name], name not in own, free_gpus.free[name]

            names = _idlest(free_gpus, request, rank)
        if names is None:
            failed[request.job_id] = why_not(free_gpus.free, capacities, request) + free_gpus.format_other_needs(needs)
            continue
        free_gpus.take(names, shape.gpus_per_node, needs)
        for name in names:
            load[name] += shape.gpus_per_node * typical
        nodes[request.job_id] = tuple(sorted(names, key=order.__getitem__))
    return Placement(nodes, failed, free_gpus.free)


def _idlest(free_gpus: FreeGpus, request: PlacementRequest, rank: Callable[[str], _Rank]) -> tuple[str, ...] | None:
    """Return the nodes of least rank inside the partition where the busiest of them is idlest, or None where there are too few."""
    shape, required = request.shape, frozenset(request.node_filter.required_nodes)
    candidates = []
    for partition in request.node_filter.partition.split(","):
        node_filter = request.node_filter._replace(partition=partition)
        fits = sorted(free_gpus.fitting(shape, node_filter, request.needs), key=rank)
        # a node of several GPU types has one name a type
        must = [name for name in fits if name.partition(":")[0] in required]
        rest = [name for name in free_gpus.better(fits, shape.nodes, request.shun) if name not in must]
        names = (*must, *rest)[: shape.nodes]
        if len(names) == shape.nodes and node_filter.allows(names, {}):
            candidates.append(names)
    return min(candidates, key=lambda names: max(rank(name) for name in names), default=None)
