"""Nodes and Cells that a job can't have because of what it needs beside GPUs, known before anything is placed.

A policy counts GPUs. So that its counts hold, GPUs that no job can use (a node's CPUs are taken) are not handed out, nodes
without room for a job's smallest piece are barred to it, and Cells that too few nodes have room for are banned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from synergy_core.node_needs import GPUS_ONLY, NodeNeeds, Room

from synergyd.scheduler.problem.cell_index import CellIndex
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, NodeFilter


def usable_gpus(node: NodeCapacity, least: Iterable[NodeNeeds], own_gpus: int) -> NodeCapacity:
    """Return the node with only as many GPUs to hand out as some job could have with its CPUs and memory.

    They are at least those that are `own_gpus` by the problem's own jobs.
    """
    if node.room is None or node.free <= own_gpus:
        return node
    most = own_gpus
    for needs in least:
        for gpus in range(node.free, most, -1):
            if node.room.has_room_for(needs.room_for(gpus, node.threads, node.total.memory_mib)):
                most = gpus
                break
        if most == node.free:
            return node
    return replace(node, free=most, unusable_gpus=node.free - most)


class NodeLimits:
    """A summary of what the nodes of one epoch's problem offer, so that jobs that it can't bind cost nothing."""

    def __init__(self, nodes: Sequence[NodeCapacity]) -> None:
        self._nodes = [node for node in nodes if node.room is not None]
        self._all = nodes
        rooms = [node.room for node in self._nodes if node.room is not None and node.free > 0]
        self._least = Room(min((r.cpus for r in rooms), default=0), min((r.memory_mib for r in rooms), default=0))
        self._threads = max((node.threads for node in self._nodes), default=1)
        self._total_memory = min((node.total.memory_mib for node in self._nodes), default=0)
        self._disk = min((node.tmp_disk_mib for node in self._nodes), default=0)
        self._barred: dict[tuple[NodeNeeds, int], tuple[str, ...]] = {}
        self._reach: dict[tuple[int, NodeFilter, NodeNeeds, int | None], frozenset[int]] = {}

    def restrict_job(self, job: JobRequest) -> JobRequest:
        """Return the job with the nodes barred to it and the Cells banned that it can't have.

        Its present nodes and Cell stay its own.
        """
        cells = CellIndex.build(job.cells)
        if not cells:
            return job
        shapes = cells.by_shape
        smallest, largest = min(each for _, _, each in shapes), max(each for _, _, each in shapes)
        barred = set(self._without_room(job.needs, smallest)) - set(job.nodes)
        required = job.node_filter.required_nodes
        if required and all(nodes == len(required) for _, nodes, _ in shapes):
            # exactly these nodes: then the policy's counts are of them
            barred |= {node.name for node in self._all if (node.host or node.name) not in required}
        if barred:
            names = tuple(sorted(barred.union(job.node_filter.excluded_nodes)))
            job = replace(job, node_filter=job.node_filter._replace(excluded_nodes=names))
        is_limited = bool(barred or required or job.max_nodes) or not self._plenty(job.needs, largest)
        if not is_limited:
            return job
        if job.current is not None:
            return replace(job, banned_cells=job.banned_cells | self._out_of_reach(job, shapes))
        key = id(job.cells), job.node_filter, job.needs, job.max_nodes  # like jobs that wait share their Cells
        if key not in self._reach:
            self._reach[key] = self._out_of_reach(job, shapes)
        return replace(job, banned_cells=job.banned_cells | self._reach[key])

    def _plenty(self, needs: NodeNeeds, gpus: int) -> bool:
        """Return whether every node has what so many GPUs take with them."""
        if needs == GPUS_ONLY:
            return True
        if not self._nodes:
            return _is_allowed(needs, needs.room_for(gpus))
        if needs.whole_nodes or needs.whole_memory or needs.gres:
            return False
        if needs.total_memory_mib > self._total_memory or needs.tmp_disk_mib > self._disk:
            return False
        need = needs.room_for(gpus, self._threads)
        return self._least.has_room_for(need) and _is_allowed(needs, need)

    def _without_room(self, needs: NodeNeeds, gpus: int) -> tuple[str, ...]:
        if self._plenty(needs, gpus):
            return ()
        key = needs, gpus
        if key not in self._barred:
            self._barred[key] = tuple(node.name for node in self._nodes if not _could_take(node, needs, gpus))
        return self._barred[key]

    def _out_of_reach(self, job: JobRequest, shapes: Mapping[tuple[str, int, int], list[int]]) -> frozenset[int]:
        """Return the Cells that the job can't have because of their number of nodes.

        These are Cells of more nodes than have room for their pieces, or than its partitions allow a job, or of too few for
        --nodelist.
        """
        required, banned = job.node_filter.required_nodes, set[int]()
        open_to = [node for node in self._all if node.admits(job.node_filter) or node.name in job.nodes]
        room: dict[tuple[str, int], int] = {}
        for (kind, nodes, each), indices in shapes.items():
            if (kind, each) not in room:
                fit = [
                    n
                    for n in open_to
                    if n.gpu_type == kind and (n.name in job.nodes or _could_take(n, job.needs, each))
                ]
                hosts = {n.host or n.name for n in fit}
                room[kind, each] = _in_one_partition(job, fit) if hosts.issuperset(required) else 0
            if nodes > room[kind, each] or nodes < len(required) or (job.max_nodes and nodes > job.max_nodes):
                banned.update(indices)
        banned.discard(-1 if job.current is None else job.current)
        return frozenset(banned)


def _could_take(node: NodeCapacity, needs: NodeNeeds, gpus: int) -> bool:
    need = needs.room_for(gpus, node.threads, node.total.memory_mib)
    if not _is_allowed(needs, need):
        return False
    if node.room is None:
        return True
    if needs.total_memory_mib > node.total.memory_mib or needs.tmp_disk_mib > node.tmp_disk_mib:
        return False
    if needs.whole_nodes and not node.is_untouched:
        return False
    return node.room.has_room_for(need)


def _is_allowed(needs: NodeNeeds, need: Room) -> bool:
    """Return whether `need` is within what the job's partitions let it take of a node."""
    within_cpus = not needs.max_cpus or need.cpus <= needs.max_cpus
    return within_cpus and (not needs.max_memory_mib or need.memory_mib <= needs.max_memory_mib)


def _in_one_partition(job: JobRequest, nodes: Sequence[NodeCapacity]) -> int:
    names = job.node_filter.partition.split(",")
    if len(names) == 1:
        return len(nodes)
    counts = Counter(p for node in nodes for p in (set(names) & set(node.partitions) if node.partitions else names))
    return max(counts.values(), default=0)
