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
  - jobs on the same nodes do not slow each other down (the artifact's default for its published numbers).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from synergyd.records import Plan
from synergyd.sim.world import Live, World

DEMOTED_GPU_S = 16 * 3600.0


@dataclass
class Tiresias:
    """Director. `served_s` is how long a job has been running, as rounds count it."""

    start_s: float = 30.0
    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    served_s: dict[int, float] = field(default_factory=dict)
    decisions_s: list[float] = field(default_factory=list)  # wall time of each
    _runs: set[int] = field(default_factory=set)
    _seen_s: float = 0.0

    def arrived(self, world: World, live: Live) -> None:
        self.first.append(live.job_id)
        self.served_s[live.job_id] = 0.0

    def moved(self, world: World, live: Live) -> None:
        """Nothing is learnt."""

    def finished(self, world: World, live: Live) -> None:
        for queue in (self.first, self.second):
            if live.job_id in queue:
                queue.remove(live.job_id)
        self._runs.discard(live.job_id)

    def lost(self, world: World, live: Live) -> None:
        self._runs.discard(live.job_id)

    def epoch(self, world: World) -> None:
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
        left = sum(node.gpus for node in world.scenario.cluster.nodes if node.name not in world.down)
        self._runs.clear()
        for job_id in (*self.first, *self.second):
            gpus = world.jobs[job_id].job.gpus
            if gpus <= left:
                left -= gpus
                self._runs.add(job_id)
            else:
                world.halt(world.jobs[job_id])
        for job_id in (*self.first, *self.second):
            live = world.jobs[job_id]
            if job_id in self._runs and not live.grant:
                world.begin(live, self._most_free(world, live.job.gpus), asked_plan(live), self.start_s)

    def _most_free(self, world: World, gpus: int) -> tuple[tuple[str, int], ...]:
        free = {name: n for name, n in world.free.items() if name not in world.down}
        grant: list[tuple[str, int]] = []
        while gpus:
            name = max(free, key=lambda n: free[n])
            taken = min(free[name], gpus)
            grant.append((name, taken))
            free[name] -= taken
            gpus -= taken
        return tuple(grant)


def asked_plan(live: Live) -> Plan:
    """The plan of the size and batch that the job's user asked for; a batch that does not divide is rounded up."""
    if live.job.plan is not None:
        return live.job.plan
    gpus = live.job.gpus
    micro = -(-live.job.batch // gpus)
    return Plan(dp=gpus, micro_batch=micro, global_batch=gpus * micro, zero_stage=0)
