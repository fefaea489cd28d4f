"""How near to one another a job's nodes could be if nobody else had GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from synergyd.records import Shape
from synergyd.scheduler.problem.delays import Tier
from synergyd.scheduler.problem.records import NodeCapacity, NodeFilter


def nearest_tier(nodes: Sequence[NodeCapacity], shape: Shape, node_filter: NodeFilter) -> Tier:
    """The nearest tier that a job of this shape could have on `nodes` when all that they hand out is free: not what jobs hold that
    Synergy does not touch. Required nodes and partitions that it may not mix are not looked at: of such a job a tier may be told
    that it can't have."""
    if shape.nodes == 1:
        return Tier.NODE
    able = Counter(
        node.leaf
        for node in nodes
        if node.gpu_type == shape.gpu_type and node.free >= shape.gpus_per_node and node.admits(node_filter)
    )
    return Tier.LEAF if max(able.values(), default=0) >= shape.nodes else Tier.ACROSS
