"""From counts to names: which nodes each allocated job gets.

A job that keeps its Cell keeps exactly its nodes. The others are placed biggest first; each keeps as many of its
present nodes as it can (a growing job gets a superset, a shrinking one a subset), then the tightest fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from synergy_core.node_needs import GPUS_ONLY, NodeNeeds
from synergy_core.records import Shape

from synergyd.scheduler.placement.free_gpus import FreeGpus
from synergyd.scheduler.problem.records import ANY_NODE, Allocation, NodeCapacity, NodeFilter, Problem


@dataclass(frozen=True)
class PlacementRequest:
    """One job to be placed. `nodes` are those it holds now; with `stay` it keeps exactly them."""

    job_id: int
    shape: Shape
    node_filter: NodeFilter = ANY_NODE
    nodes: tuple[str, ...] = ()
    stay: bool = False
    needs: NodeNeeds = GPUS_ONLY
    shun: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Placement:
    """The nodes of the requests. `nodes` by job id; `unplaced_reasons`: why, by job id; `free_gpus`: by node name, after all of it."""

    nodes: dict[int, tuple[str, ...]]
    unplaced_reasons: dict[int, str]
    free_gpus: dict[str, int]


def place(
    capacities: Sequence[NodeCapacity], requests: Sequence[PlacementRequest], spanned: Collection[str] | None = None
) -> Placement:
    """Choose the nodes of every request.

    The same input gives the same answer. If `spanned` is not None, no two jobs that span nodes get the same node, see FreeGpus.
    """
    free_gpus = FreeGpus(capacities, spanned)
    nodes: dict[int, tuple[str, ...]] = {}
    failed: dict[int, str] = {}
    for request in requests:
        if request.stay:
            free_gpus.take(request.nodes, request.shape.gpus_per_node, request.needs)
            nodes[request.job_id] = request.nodes
    changing = placing_order(capacities, requests)
    # Nodes on which a changing job sits are left to it where others have a choice.
    homes = Counter(name for r in changing for name in r.nodes)
    for request in changing:
        homes.subtract(request.nodes)
        names = free_gpus.pick(
            request.shape,
            request.node_filter,
            frozenset(request.nodes),
            homes,
            request.needs,
            request.shun,
            first=request.nodes[0] if request.nodes else "",
        )
        if names is None:
            failed[request.job_id] = why_not(free_gpus.free, capacities, request) + free_gpus.format_other_needs(
                request.needs
            )
            if spanned is not None and request.shape.nodes > 1:
                failed[request.job_id] += ", on nodes with no other job that spans nodes"
            continue
        free_gpus.take(names, request.shape.gpus_per_node, request.needs)
        nodes[request.job_id] = names
    return Placement(nodes, failed, free_gpus.free)


def placing_order(capacities: Sequence[NodeCapacity], requests: Sequence[PlacementRequest]) -> list[PlacementRequest]:
    """Return the requests that do not stay, in the order in which they are to be placed.

    Those that must have certain nodes come first. Among equal sizes those on several nodes come first (they need distinct
    ones), then those with the fewest nodes open to them, then those that have a home to keep.
    """
    changing = [r for r in requests if not r.stay]
    choices = {f: sum(node.admits(f) for node in capacities) for f in {r.node_filter for r in changing}}
    return sorted(
        changing,
        key=lambda r: (
            not r.node_filter.required_nodes,
            -r.shape.gpus_per_node,
            -r.shape.nodes,
            choices[r.node_filter],
            not r.nodes,
            r.job_id,
        ),
    )


def make_placement_requests(problem: Problem, allocation: Allocation) -> list[PlacementRequest]:
    """Return the placement requests of an allocation."""
    return [
        PlacementRequest(job.job_id, cell.shape, job.node_filter, job.nodes, stay, job.needs, job.shun)
        for job, cell, stay in ((problem.jobs[i], cell, stay) for i, cell, stay in allocation.assignments(problem))
    ]


def why_not(free: Mapping[str, int], nodes: Sequence[NodeCapacity], request: PlacementRequest) -> str:
    """Return why no nodes were found for a request while `free` GPUs were left by node name."""
    shape = request.shape
    usable = [r for r in nodes if r.gpu_type == shape.gpu_type and r.admits(request.node_filter)]
    fit = sum(free[r.name] >= shape.gpus_per_node for r in usable)
    gpus = sum(free[r.name] for r in usable)
    return (
        f"it needs {shape.nodes} node{'s' * (shape.nodes != 1)} with {shape.gpus_per_node} free {shape.gpu_type} GPUs "
        f"each, {fit} left ({gpus} free GPUs in all)"
    )
