"""MaxCPUsPerNode: the most CPUs of a node that all jobs of a partition together may have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from synergyd.slurm.parsed.rows import JobRow, NodeRow, PartitionRow, gpus_of


def cpu_caps(
    nodes: Iterable[NodeRow], jobs: Sequence[JobRow], partitions: Mapping[str, PartitionRow]
) -> dict[str, int]:
    """By node: CPUs that count as there, so that those which are free are what the partition's limit leaves too.

    Free to partition p with limit L are min(C - used, L - used by p's jobs): with C' = min(C, L + used by others) that is C' - used.
    Where jobs for GPUs are in several partitions of a node the loosest counts.
    """
    if not any(p.max_cpus_per_node for p in partitions.values()):
        return {}
    asking = {j.partition for j in jobs if gpus_of(j.tres_per_node)[1] or gpus_of(j.tres_other)[1]}
    named = {name for text in asking for name in text.split(",")}
    limited = {name for name in named if name in partitions and partitions[name].max_cpus_per_node}
    used: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        for name in job.node_names:
            used[job.partition, name] += -(-job.num_cpus // len(job.node_names))
    caps = {}
    for node in nodes:
        here = [p for p in node.partitions if p in named]
        if here and limited.issuperset(here):
            most = ((partitions[p].max_cpus_per_node or 0) + max(0, node.cpus_alloc - used[p, node.name]) for p in here)
            caps[node.name] = min(node.cpus, max(most))
    return caps


def capped(nodes: Iterable[NodeRow], caps: Mapping[str, int]) -> tuple[NodeRow, ...]:
    """The nodes with no more CPUs than that."""
    return tuple(replace(n, cpus=min(n.cpus, caps[n.name])) if n.name in caps else n for n in nodes)
