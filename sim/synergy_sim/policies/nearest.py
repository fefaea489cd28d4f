"""How near to one another a job's nodes could be if nobody else had GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from synergy_core.records import Shape

from synergyd.scheduler.problem.delays import Tier
from synergyd.scheduler.problem.records import NodeCapacity, NodeFilter


def nearest_tier(nodes: Sequence[NodeCapacity], shape: Shape, node_filter: NodeFilter) -> Tier:
    """Return the nearest tier that a job of this shape could have on `nodes` when all that they hand out is free.

    GPUs held by jobs that Synergy does not touch are not handed out. Required nodes and partitions that it may not mix are not
    looked at: the tier returned for such a job may be one that it can't have.
    """
    if shape.nodes == 1:
        return Tier.NODE
    able = Counter(
        node.leaf
        for node in nodes
        if node.gpu_type == shape.gpu_type and node.free >= shape.gpus_per_node and node.admits(node_filter)
    )
    return Tier.LEAF if max(able.values(), default=0) >= shape.nodes else Tier.ACROSS
