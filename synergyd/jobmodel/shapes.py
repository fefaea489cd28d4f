"""The shapes of GPUs that a job may have on a cluster."""

from __future__ import annotations

from collections import Counter

from synergy_core.constraint import has_features
from synergy_core.records import Cluster, Directive, Job, Shape

from synergyd.jobmodel.model.hardware import canonical, is_slice

_ALL_NODES = 16
UNBOUNDED = 1_000_000_000  # GPUs


def bounds(job: Job) -> tuple[int, int]:
    """Return (fewest, most) GPUs: the directive's, else 1 and no bound (a job that may not be resized: what sbatch asked for)."""
    directive = job.directive or Directive()
    low = directive.min_gpus or 1
    return low, directive.max_gpus or (UNBOUNDED if directive.resize else max(job.asked.gpus, low))


def usable_nodes(job: Job, cluster: Cluster) -> dict[tuple[str, int], int]:
    """Return the number of nodes that may run the job, by (GPU type, GPUs).

    They are up or held by the job now, and in one of its partitions.
    """
    job_partitions = {name for name in job.partition.split(",") if name}
    counts: Counter[tuple[str, int]] = Counter()
    for gpu_type, gpus, up, partitions, count in kinds(job, cluster):
        if up and (not job_partitions or not partitions or not job_partitions.isdisjoint(partitions)):
            counts[gpu_type, gpus] += count
    for name in job.node_names:  # held although down
        node = cluster.by_name.get(name)
        if node is not None and not node.up and node.gpus > 0:
            counts[node.gpu_type, node.gpus] += 1
    return counts


def kinds(job: Job, cluster: Cluster) -> tuple[tuple[str, int, bool, tuple[str, ...], int], ...]:
    """Return cluster.kinds of the nodes with the features that the job asks for."""
    if not job.features:
        return cluster.kinds
    return Cluster(tuple(n for n in cluster.nodes if has_features(job.features, n.features))).kinds


def allows_type(job: Job, gpu_type: str) -> bool:
    """Return whether the directive's gpu_types (all, if none) name `gpu_type`, in Slurm's spelling or the built-in name's."""
    gpu_types = job.directive.gpu_types if job.directive else ()
    if not gpu_types:
        return True
    name = canonical(gpu_type)
    return any(w.lower() == gpu_type.lower() or (name is not None and canonical(w) == name) for w in gpu_types)


def node_counts(most: int) -> list[int]:
    """Return the counts of whole nodes from 2 to `most` that a job may have.

    These are all counts up to 16, and above that eight to each doubling (18, 20, ... 32, 36, ...). Sizes an eighth apart lose
    little, and a job on a thousand nodes has 65 of them, not a thousand.
    """
    counts, step = [], 1
    at = 2
    while at <= most:
        counts.append(at)
        if at >= 2 * _ALL_NODES * step:
            step *= 2
        at += step if at < _ALL_NODES else 2 * step
    return counts


def job_shapes(job: Job, cluster: Cluster) -> dict[str, tuple[Shape, ...]]:
    """Return GPU type -> shapes within the job's bounds.

    These are one node with 1, 2, 4, ... or all of its GPUs; two or more whole nodes (Sia's configurations, SOSP 2023; see
    node_counts); and the shape it asked for or holds, where those nodes exist. Of MIG slices one: a process can use no more, and NCCL
    connects no two. Sorted, without repeats.
    """
    low, high = bounds(job)
    by_type: dict[str, dict[int, int]] = {}
    for (gpu_type, gpus), number in usable_nodes(job, cluster).items():
        if allows_type(job, gpu_type):
            by_type.setdefault(gpu_type, {})[gpus] = number
    result: dict[str, tuple[Shape, ...]] = {}
    for gpu_type in sorted(by_type):
        sizes = by_type[gpu_type]
        layouts: set[tuple[int, int]] = {(1, 1)} if is_slice(gpu_type) else set()
        for size in () if is_slice(gpu_type) else sizes:
            layouts |= {(1, 2**i) for i in range(size.bit_length())} | {(1, size)}
            count = sum(number for s, number in sizes.items() if s >= size)
            most = min(count, high // size)
            ends = {-(-low // size), most}  # the job's own bounds, whichever they are
            layouts |= {(nodes, size) for nodes in (*node_counts(most), *ends) if 2 <= nodes <= most}
        for own in (job.asked, job.shape):
            room = sum(number for s, number in sizes.items() if s >= own.gpus_per_node)
            if own.gpu_type in ("", gpu_type) and room >= own.nodes:
                layouts.add((own.nodes, own.gpus_per_node))
        layouts_in_bounds = sorted(
            (nodes, per) for nodes, per in layouts if nodes > 0 and per > 0 and low <= nodes * per <= high
        )
        if layouts_in_bounds:
            result[gpu_type] = tuple(Shape(gpu_type, nodes, per) for nodes, per in layouts_in_bounds)
    return result
