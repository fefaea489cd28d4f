"""The rule of which jobs fit on the nodes, as linear rows over counts, for policies that choose before any placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from synergy_core.records import Shape

from synergyd.scheduler.problem.records import NodeFilter, Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PackingItem:
    """One way to run one job: jobs[job] on `shape`.

    `nodes` nodes of it hand out GPUs: fewer than the shape's where the job stays on a node that is down.
    """

    job: int
    shape: Shape
    nodes: int


def packing_item(problem: Problem, job: int, cell: int) -> PackingItem:
    """Return the item of jobs[job] on its Cell `cell`; the present Cell stays on the job's own nodes."""
    request = problem.jobs[job]
    shape = request.cells[cell].shape
    if cell != request.current:
        return PackingItem(job, shape, shape.nodes)
    up = {node.name for node in problem.nodes if node.free > 0}
    return PackingItem(job, shape, sum(name in up for name in request.nodes))


def packing(problem: Problem, items: Sequence[PackingItem]) -> tuple[Floats, Floats]:
    """Return (use [takes x rows], limit [rows]): a choice can be placed only if the sum of its use is within the limits.

    For each set of nodes open to some job, and each number s of GPUs a node that is asked for there: pieces of g >= s GPUs
    count floor(g/s) against the sum of floor(free/s). Enough as well where the sizes divide each other and no job stays
    in place (see milp.py); make_placeable does the rest.
    """
    kinds = sorted({item.shape.gpu_type for item in items})
    nodes = {kind: [r for r in problem.nodes if r.gpu_type == kind] for kind in kinds}
    open_to: dict[tuple[str, NodeFilter], frozenset[int]] = {}
    for item in items:
        key = item.shape.gpu_type, problem.jobs[item.job].node_filter
        if key not in open_to:
            open_to[key] = frozenset(n for n, node in enumerate(nodes[key[0]]) if node.admits(key[1]))
    columns, limits = [], []
    for kind in kinds:
        own = [item if item.shape.gpu_type == kind else None for item in items]
        groups = {open_to[key] for key in open_to if key[0] == kind} | {frozenset(range(len(nodes[kind])))}
        for group in sorted(groups, key=sorted):
            inside = {f for (k, f), usable in open_to.items() if k == kind and usable <= group}
            for size in sorted({item.shape.gpus_per_node for item in items if item.shape.gpu_type == kind}):
                limits.append(float(sum(nodes[kind][n].free // size for n in group)))
                columns.append(
                    [
                        float(item.nodes * (item.shape.gpus_per_node // size))
                        if item is not None and problem.jobs[item.job].node_filter in inside
                        else 0.0
                        for item in own
                    ]
                )
    return np.array(columns, dtype=float).reshape(len(limits), len(items)).T, np.array(limits, dtype=float)
