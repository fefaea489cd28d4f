"""Tiresias as the Pollux artifact's simulator plays it, on jobs of the size and batch that their users asked for.

Matched to it, and checked to the digit (tests/benchmarks/fidelity.py):
  - decisions every 60 s, the first one a period after time zero; a job that has arrived by then takes part;
  - two queues: all start in the first, in order of arrival; once a job has had 16 GPU hours (counted from the round that
    started it, in whole rounds) it goes to the end of the second, for good;
  - both queues in order, each job runs if its GPUs are still left of the cluster's total, so small ones pass big ones;
  - preempted jobs give up their GPUs at once and keep their progress; those that go on keep their nodes;
  - a started job takes from the node with the most free GPUs (first in order of equals) until it has enough: a placement may
    be as uneven as 4+2, which is why this is no Policy over Shapes;
  - each start costs 30 s on the GPUs; training epochs end at whole seconds (`whole_seconds`), and a job that ends in a round
    keeps its GPUs until the next decision;
  - a job that can't run just anywhere (TraceJob.can_run; the artifact has none) takes equal GPUs of its own type on the
    fewest nodes, the fullest that have room; where there is no such room it waits, though enough GPUs are free in all;
  - jobs on the same nodes do not slow each other down (the artifact's default for its published numbers).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from synergy_core.errors import UsageError

from synergy_sim.records import requested_plan, requested_shape
from synergy_sim.world import SimulatedJob, World

DEMOTED_GPU_S = 16 * 3600.0


@dataclass
class TiresiasReference:
    """Director. `served_s` is how long a job has been running, as rounds count it."""

    start_s: float = 30.0
    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    served_s: dict[int, float] = field(default_factory=dict)
    decisions_s: list[float] = field(default_factory=list)  # wall time of each
    _runs: set[int] = field(default_factory=set)
    _seen_s: float = 0.0

    def on_arrival(self, world: World, live: SimulatedJob) -> None:
        self.first.append(live.job_id)
        self.served_s[live.job_id] = 0.0

    def on_speed_change(self, world: World, live: SimulatedJob) -> None:
        """Do nothing: nothing is learnt."""

    def on_finish(self, world: World, live: SimulatedJob) -> None:
        for queue in (self.first, self.second):
            if live.job_id in queue:
                queue.remove(live.job_id)
        self._runs.discard(live.job_id)

    def on_node_failure(self, world: World, live: SimulatedJob) -> None:
        self._runs.discard(live.job_id)

    def on_out_of_memory(self, world: World, live: SimulatedJob) -> None:
        """Raise UsageError: the artifact's jobs have the size that their users asked for, and fit there."""
        raise UsageError(live.job.where or live.job.name, "does not fit on the GPUs that it asks for")

    def reserved_gpus(self, world: World) -> Mapping[str, int]:
        return {}

    def run_epoch(self, world: World) -> None:
        began = time.perf_counter()
        self._decide(world)
        self.decisions_s.append(time.perf_counter() - began)

    def _decide(self, world: World) -> None:
        for job_id in world.jobs:
            if job_id in self._runs:
                self.served_s[job_id] += world.now_s - self._seen_s
                if job_id in self.first and self.served_s[job_id] * world.jobs[job_id].job.gpus >= DEMOTED_GPU_S:
                    self.first.remove(job_id)
                    self.second.append(job_id)
        self._seen_s = world.now_s
        free_gpus: Counter[str] = Counter()
        for node in world.scenario.cluster.nodes:
            free_gpus[node.gpu_type] += 0 if node.name in world.down else node.gpus
        self._runs.clear()
        for job_id in (*self.first, *self.second):
            job = world.jobs[job_id].job
            gpu_type = job.gpu_type if job.gpu_type in free_gpus else next(iter(free_gpus))
            if job.gpus <= free_gpus[gpu_type]:
                free_gpus[gpu_type] -= job.gpus
                self._runs.add(job_id)
            else:
                world.halt(world.jobs[job_id])
        for job_id in (*self.first, *self.second):
            live = world.jobs[job_id]
            if job_id in self._runs and not live.grant:
                rigid = live.job.can_run is not None
                grant = self._equal(world, live) if rigid else self._most_free(world, live.job.gpus)
                if grant:
                    world.begin(live, grant, requested_plan(live.job), self.start_s)
                else:
                    self._runs.discard(job_id)

    def _equal(self, world: World, live: SimulatedJob) -> tuple[tuple[str, int], ...]:
        """Return equal GPUs on the fewest nodes, () where they have no room."""
        shape = requested_shape(live.job, world.scenario.cluster)
        if shape is None:
            return ()
        nodes = [n for n in world.scenario.cluster.nodes if n.gpu_type == shape.gpu_type and n.name not in world.down]
        room = [n.name for n in nodes if world.free[n.name] >= shape.gpus_per_node]
        if len(room) < shape.nodes:
            return ()
        fullest = sorted(room, key=lambda name: world.free[name])[: shape.nodes]
        return tuple((name, shape.gpus_per_node) for name in fullest)

    def _most_free(self, world: World, gpus: int) -> tuple[tuple[str, int], ...]:
        free = {name: n for name, n in world.free.items() if name not in world.down}
        grant: list[tuple[str, int]] = []
        while gpus:
            name = max(free, key=lambda n: free[n])
            count = min(free[name], gpus)
            grant.append((name, count))
            free[name] -= count
            gpus -= count
        return tuple(grant)
