"""The jobs of a simulation that Synergy does not decide about (`TraceJob.plain`): Slurm starts them on what is free, and they keep it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from synergy_core.errors import UsageError
from synergy_core.records import Shape

from synergy_sim.node_pool import NodePool, Placement
from synergy_sim.plain_queue import PlainQueue, PlainRequest, Reservation
from synergy_sim.records import requested_shape

if TYPE_CHECKING:
    from synergy_sim.world import SimulatedJob, World


class PlainJobs:
    """The plain jobs that wait or run, with one queue for each GPU type."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.jobs: dict[int, SimulatedJob] = {}
        self._queues: dict[str, PlainQueue] = {}
        self._nodes: dict[str, list[str]] = {}
        for node in world.scenario.cluster.nodes:
            self._nodes.setdefault(node.gpu_type, []).append(node.name)

    def add(self, live: SimulatedJob) -> None:
        """Put a job into the queue of its GPU type."""
        self.jobs[live.job_id] = live
        shape = self._shape(live)
        limit_s = math.inf if live.job.time_limit_s is None else live.job.time_limit_s
        request = PlainRequest(live.job_id, live.job.submit_s, shape.nodes, shape.gpus_per_node, limit_s)
        self._queues.setdefault(shape.gpu_type, PlainQueue()).add(request)

    def waits(self, gpu_type: str) -> bool:
        """Return whether a plain job waits for GPUs of that type."""
        return bool(self._queues.get(gpu_type))

    def first(self, gpu_type: str) -> tuple[PlainRequest, Reservation | None] | None:
        """Return the job that has waited longest for that type, and its reservation."""
        queue = self._queues.get(gpu_type)
        head = queue.first() if queue else None
        return None if queue is None or head is None else (head, queue.reservation)

    def start(self, reserved: Mapping[str, int]) -> None:
        """Start what can start. `reserved`: GPUs by node that are kept for jobs that restart there."""
        world = self._world
        for gpu_type, queue in self._queues.items():
            if not queue:
                continue
            names = self._nodes[gpu_type]
            pool = self.pool(gpu_type, reserved)
            for request, placement in queue.start(world.now_s, pool, self._running(names)):
                live = self.jobs[request.key]
                shape = Shape(gpu_type, request.nodes, request.each)
                plans = live.job.truth.plans(shape, live.job.batch) or live.job.truth.plans(shape)
                if not plans:
                    raise UsageError(live.job.where or live.job.name, f"nothing was measured of it on {shape}")
                grant = tuple((names[node], gpus) for node, gpus in placement)
                world.begin(live, grant, plans[0], (live.job.costs or world.scenario.costs).first_start_s)

    def pool(self, gpu_type: str, reserved: Mapping[str, int]) -> NodePool:
        """Return what is free of that type, less what is reserved."""
        world = self._world
        return NodePool(
            [
                0 if name in world.down else max(0, world.free[name] - reserved.get(name, 0))
                for name in self._nodes[gpu_type]
            ]
        )

    def choose_nodes(self, shape: Shape) -> tuple[str, ...]:
        """Return nodes for a job that leaves them to Slurm, or none where there is no room."""
        placement = self.pool(shape.gpu_type, {}).take(shape.nodes, shape.gpus_per_node)
        return tuple(self._nodes[shape.gpu_type][node] for node, _ in placement or ())

    def _shape(self, live: SimulatedJob) -> Shape:
        shape = requested_shape(live.job, self._world.scenario.cluster)
        if shape is None:
            raise UsageError(live.job.where or live.job.name, f"{live.job.gpus} GPUs are more than the cluster has")
        return shape

    def _running(self, names: Sequence[str]) -> Iterator[tuple[float, Placement]]:
        index = {name: i for i, name in enumerate(names)}
        ends = []
        for live in (*self.jobs.values(), *self._world.jobs.values()):
            if live.grant and live.grant[0][0] in index:
                limit_s = math.inf if live.job.time_limit_s is None else live.job.time_limit_s
                ends.append((live.granted_s + limit_s, live.job_id, tuple((index[n], g) for n, g in live.grant)))
        heapq.heapify(ends)
        while ends:
            end_s, _, placement = heapq.heappop(ends)
            yield end_s, placement
