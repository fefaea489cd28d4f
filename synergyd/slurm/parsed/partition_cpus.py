"""MaxCPUsPerNode: the most CPUs of a node that all jobs of a partition together may have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from synergyd.slurm.parsed.rows import JobRow, PartitionRow, SlurmNodeRow, parse_gpus


def cpu_caps(
    nodes: Iterable[SlurmNodeRow], jobs: Sequence[JobRow], partitions: Mapping[str, PartitionRow]
) -> dict[str, int]:
    """Return by node the CPUs that count as there, so that the free ones are also what the partition's limit leaves.

    The CPUs free to partition p with limit L are min(C - used, L - used by p's jobs): with C' = min(C, L + used by
    others) that is C' - used. If jobs for GPUs are in several partitions of a node, the loosest counts.
    """
    if not any(p.max_cpus_per_node for p in partitions.values()):
        return {}
    asking = {j.partition for j in jobs if parse_gpus(j.tres_per_node)[1] or parse_gpus(j.tres_other)[1]}
    names = {name for text in asking for name in text.split(",")}
    names_with_limit = {name for name in names if name in partitions and partitions[name].max_cpus_per_node}
    used_cpus: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        for name in job.node_names:
            used_cpus[job.partition, name] += -(-job.num_cpus // len(job.node_names))
    caps = {}
    for node in nodes:
        here = [p for p in node.partitions if p in names]
        if here and names_with_limit.issuperset(here):
            most = (
                (partitions[p].max_cpus_per_node or 0) + max(0, node.cpus_alloc - used_cpus[p, node.name]) for p in here
            )
            caps[node.name] = min(node.cpus, max(most))
    return caps


def with_caps(nodes: Iterable[SlurmNodeRow], caps: Mapping[str, int]) -> tuple[SlurmNodeRow, ...]:
    """Return the nodes with no more CPUs than `caps` allows."""
    return tuple(replace(n, cpus=min(n.cpus, caps[n.name])) if n.name in caps else n for n in nodes)
