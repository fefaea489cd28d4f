"""Rows for CPUs and memory where they are scarce: what a policy's counts of GPUs do not see, before anything is placed.

Nodes of one GPU type count together, so no placement is ruled out. A job that does not fit into a node's last CPUs is found at
placement.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from synergy_core.node_needs import NodeNeeds

from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Rate, UsageLimit


def room_rows(jobs: Sequence[JobRequest], nodes: Iterable[NodeCapacity]) -> tuple[UsageLimit, ...]:
    """Return the rows, and none for a type whose nodes have enough for the most demanding job on all GPUs that are handed out."""
    of_type: dict[str, list[NodeCapacity]] = {}
    for node in nodes:
        of_type.setdefault(node.gpu_type, []).append(node)
    rows: list[UsageLimit] = []
    for gpu_type, own in sorted(of_type.items()):
        if all(node.room is not None for node in own):
            rows += _rows(gpu_type, own, jobs)
    return tuple(rows)


def _rows(gpu_type: str, nodes: Sequence[NodeCapacity], jobs: Sequence[JobRequest]) -> Iterable[UsageLimit]:
    sizes: dict[NodeNeeds, set[int]] = {}  # GPUs of a node that jobs with these needs may ask for
    of_cells: dict[int, set[int]] = {}
    for job in jobs:
        if id(job.cells) not in of_cells:
            shapes = CellIndex.build(job.cells).by_shape
            of_cells[id(job.cells)] = {each for kind, _, each in shapes if kind == gpu_type}
        sizes.setdefault(job.needs, set()).update(of_cells[id(job.cells)])
    gpus = sum(node.free for node in nodes)
    up = {node.name for node in nodes if node.free > 0}
    for unit, rooms, rates in (
        ("CPUs", _cpus(nodes), {needs: _cpu_rate(needs, gpu_type, nodes) for needs in sizes}),
        ("MiB", _memory(nodes), {needs: _memory_rate(needs, gpu_type, nodes) for needs in sizes}),
    ):
        pieces = {(rate.count_use(gpu_type, 1, each), each) for needs, rate in rates.items() for each in sizes[needs]}
        if max((piece / each for piece, each in pieces), default=0.0) * gpus <= sum(rooms) or not sum(rooms):
            continue
        share = sum(rooms) / gpus  # as much as goes with a GPU: rows of one scale keep the search for prices short
        scaled = {needs: rate.times(1 / share) for needs, rate in rates.items()}
        row = UsageLimit("nodes of type", gpu_type, 0.0, unit=unit, rates={j.job_id: scaled[j.needs] for j in jobs})
        present_use = sum(row.use(job, job.current) for job in jobs)
        # `gpus` does not include what jobs hold of nodes that give nothing out
        away = sum(row.use(job, job.current) * _share_away(job, up) for job in jobs if job.current is not None)
        yield replace(row, most=max(gpus + away, present_use))


def _share_away(job: JobRequest, up: Container[str]) -> float:
    """Return the share of the job's nodes that are not `up`."""
    return sum(name not in up for name in job.nodes) / max(1, len(job.nodes))


def _cpus(nodes: Sequence[NodeCapacity]) -> list[int]:
    return [max(0, node.room.cpus) for node in nodes if node.room is not None and node.free > 0] or [0]


def _memory(nodes: Sequence[NodeCapacity]) -> list[int]:
    return [max(0, node.room.memory_mib) for node in nodes if node.room is not None and node.free > 0] or [0]


def _cpu_rate(needs: NodeNeeds, gpu_type: str, nodes: Sequence[NodeCapacity]) -> Rate:
    """Return a rate that is at most what the job takes: Slurm rounds up to whole cores."""
    if needs.whole_nodes:
        return Rate(per_node=min(node.total.cpus for node in nodes), per_gpu=0.0, gpu_type=gpu_type)
    threads = min(node.threads for node in nodes) if needs.one_thread else 1
    return Rate(per_node=needs.cpus * threads, per_gpu=needs.cpus_per_gpu * threads, gpu_type=gpu_type)


def _memory_rate(needs: NodeNeeds, gpu_type: str, nodes: Sequence[NodeCapacity]) -> Rate:
    if needs.whole_nodes or needs.whole_memory:
        return Rate(per_node=min(node.total.memory_mib for node in nodes), per_gpu=0.0, gpu_type=gpu_type)
    per_node = needs.memory_mib + needs.memory_per_cpu_mib * needs.cpus
    per_gpu = needs.memory_per_gpu_mib + needs.memory_per_cpu_mib * needs.cpus_per_gpu
    return Rate(per_node=per_node, per_gpu=per_gpu, gpu_type=gpu_type)
