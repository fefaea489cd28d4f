"""The links of a plan's groups, and what collectives over them take. Arrays of plans: shape (N,); seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synergyd.jobmodel.model.arrays import Floats, Ints, PlanArrays
from synergyd.jobmodel.model.hardware import GpuFigures

# latency of a ring's hop, over NVLink and between nodes (hwLat of protocol Simple in NCCL's src/graph/tuning.cc, 2.20)
_HOP_S, _NODE_HOP_S = 3.4e-6, 14e-6


@dataclass(frozen=True)
class GroupLink:
    """A group's link: bandwidth (bytes/s) and latency (s)."""

    rate: Floats
    latency: Floats


def group_links(gpu: GpuFigures, plans: PlanArrays) -> dict[str, GroupLink]:
    """Return the link of each group, of two classes: a group whose ranks span more GPUs than a node gives it goes over the network.

    Megatron's rank order is tp, cp, dp, pp from inside out, so tp groups span t ranks, cp groups t*c, dp groups t*c*d
    and a pipeline the whole job. A collective's ring enters a node once per network port that its members there own, so
    a group with n members on a node has min(in-node rate, n^rail_use * inter_gbs) (NCCL uses one channel per port, but
    the ring's hops inside the node share the switches with the other groups'). ZeRO-3 has a power of its own, by its
    software; `zero3`, `shard` and `replicas` (ranks of other groups that hold the same) only where a plan has them. The ranks
    that hold the same experts (every e-th of the context and data groups together) have entries of their own, `expert_dp` and so on.
    """
    inner = plans.tp * plans.cp
    intra = gpu.intra_gbs * 1e9 * gpu.link_efficiency
    inter = gpu.inter_gbs * 1e9 * gpu.inter_efficiency

    def link(spans: Ints, members: Ints | float, rail_use: float = gpu.rail_use) -> GroupLink:
        leaves = spans > plans.local
        rate = np.where(leaves, np.minimum(intra, inter * members**rail_use), intra)
        return GroupLink(rate, np.where(leaves, gpu.inter_latency_s, gpu.intra_latency_s))

    data = np.maximum(1, plans.local // inner)
    links = {
        "tp": link(plans.tp, plans.local),
        "cp": link(inner, np.maximum(1, plans.local // plans.tp)),
        "ep": link(inner * plans.ep, data),
        "pp": link(inner * plans.pp * plans.dp, 1.0),
        # where the tied embedding's two copies meet
        "ends": link(inner * plans.pp * plans.dp, 1.0),
    }
    # consecutive ranks of the context and data groups together
    members = np.maximum(1, plans.local // plans.tp)
    kinds: list[tuple[str, Ints, Ints, Ints]] = [("", data, members, plans.shard)]
    if np.any(plans.ep > 1):
        apart = np.maximum(1, members // plans.ep)
        kinds.append(("expert_", apart, apart, np.maximum(1, plans.shard // plans.ep)))
    for kind, on_node, in_shard, shard in kinds:
        links[f"{kind}dp"] = link(inner * plans.dp, on_node)
        if np.any(plans.zero_stage >= 3):
            links[f"{kind}zero3"] = link(inner * plans.dp, on_node, gpu.zero3_rail_use)
        if np.any(plans.shard < plans.dp * plans.cp):
            links[f"{kind}shard"] = link(plans.tp * plans.shard, np.minimum(in_shard, shard))
            links[f"{kind}replicas"] = link(inner * plans.dp, np.maximum(1, in_shard // shard))
    return links


def ring(link: GroupLink, size: Ints, volume: Floats) -> Floats:
    """Return the seconds of a reduce-scatter or all-gather of `volume` bytes over `size` ranks.

    It takes (size-1)/size of the bytes over the link, and a latency that grows with the ranks' logarithm (NCCL's trees; one
    latency for two ranks), and nothing for a group of one.
    """
    hops = (1 + np.log2(np.maximum(size, 2))) / 2
    return np.where(size > 1, volume * (size - 1) / (size * link.rate) + link.latency * hops, 0.0)


def ring_hops_s(size: Ints, nodes: Floats) -> Floats:
    """Return the extra seconds of all-gathers and reduce-scatters, for which NCCL has only rings: a latency at each rank, (N,)."""
    return np.where(
        size > 1, _HOP_S * np.maximum(size - nodes, 0.0) + _NODE_HOP_S * np.where(nodes > 1, nodes, 0.0), 0.0
    )
