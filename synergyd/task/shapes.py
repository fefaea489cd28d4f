"""Which shapes of GPUs a job may have on a cluster."""

from __future__ import annotations

from synergyd.records import Cluster, Directive, Job, Node, Shape
from synergyd.task.hardware import canonical

_ALL_NODES = 16
UNBOUNDED = 1_000_000_000  # GPUs


def bounds(job: Job) -> tuple[int, int]:
    """(fewest, most) GPUs: the directive's, else 1 and no bound (a job that may not be resized: what sbatch asked for)."""
    directive = job.directive or Directive()
    low = directive.min_gpus or 1
    return low, directive.max_gpus or (UNBOUNDED if directive.resize else max(job.asked.gpus, low))


def usable_nodes(job: Job, cluster: Cluster) -> list[Node]:
    """Nodes that may run the job: with GPUs, up or held by the job now, and in one of its partitions."""
    wanted = {name for name in job.partition.split(",") if name}
    return [
        node
        for node in cluster.nodes
        if node.gpus > 0
        and (node.up or node.name in job.node_names)
        and (not wanted or not node.partitions or wanted & set(node.partitions))
    ]


def allows_type(job: Job, gpu_type: str) -> bool:
    """Whether the directive's gpu_types (all, if none) name `gpu_type`, in Slurm's spelling or the built-in name's."""
    wanted = job.directive.gpu_types if job.directive else ()
    if not wanted:
        return True
    name = canonical(gpu_type)
    return any(w.lower() == gpu_type.lower() or (name is not None and canonical(w) == name) for w in wanted)


def node_counts(most: int) -> list[int]:
    """Counts of whole nodes from 2 to `most` that a job may have: all up to 16, above that eight to each doubling (18, 20,
    ... 32, 36, ...). Sizes an eighth apart lose little, and a job on a thousand nodes has 65 of them, not a thousand."""
    counts, step = [], 1
    at = 2
    while at <= most:
        counts.append(at)
        if at >= 2 * _ALL_NODES * step:
            step *= 2
        at += step if at < _ALL_NODES else 2 * step
    return counts


def job_shapes(job: Job, cluster: Cluster) -> dict[str, tuple[Shape, ...]]:
    """GPU type -> shapes within the job's bounds: one node with 1, 2, 4, ... or all of its GPUs; two or more whole
    nodes (Sia's configurations, SOSP 2023; see node_counts); and the shape it asked for or holds, where those nodes exist.
    Sorted, without repeats."""
    low, high = bounds(job)
    by_type: dict[str, list[int]] = {}
    for node in usable_nodes(job, cluster):
        if allows_type(job, node.gpu_type):
            by_type.setdefault(node.gpu_type, []).append(node.gpus)
    result: dict[str, tuple[Shape, ...]] = {}
    for gpu_type in sorted(by_type):
        sizes = by_type[gpu_type]
        found: set[tuple[int, int]] = set()
        for size in set(sizes):
            found |= {(1, 2**i) for i in range(size.bit_length())} | {(1, size)}
            count = sum(1 for s in sizes if s >= size)
            found |= {(nodes, size) for nodes in node_counts(min(count, high // size))}
        for own in (job.asked, job.shape):
            if own.gpu_type in ("", gpu_type) and sum(1 for s in sizes if s >= own.gpus_per_node) >= own.nodes:
                found.add((own.nodes, own.gpus_per_node))
        kept = sorted((nodes, per) for nodes, per in found if nodes > 0 and per > 0 and low <= nodes * per <= high)
        if kept:
            result[gpu_type] = tuple(Shape(gpu_type, nodes, per) for nodes, per in kept)
    return result
