"""A whole epoch: goodput table, allocation, placement and decision records, for many jobs that run.

    python -m tests.benchmarks.epoch --jobs 10000 --nodes 1280 --types 3 [--repeats 5] [--room plenty|scarce] [--json]

Jobs name one of several models, sizes, batch ranges and learnt speeds, so that --kinds of them differ. The first epoch starts all
that fit; then, before each further one, 2 % of the jobs have learnt something new (their profile moved) and 1 % of the jobs have
ended with new ones in their place. Parts, in milliseconds of CPU: table (SynergyTask through the daemon's Forecast), decide
(allocation, placement, decision records). `moved` counts running jobs that were sent to other nodes with the Cell they had;
`changed` those that were resized; `failed` Cells that were allocated and could not be placed. With --room nodes have 128 CPUs and
1 TiB, of which jobs ask for as much as there is (plenty) or some for more than that with all GPUs of a node (scarce).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from synergy_core.node_needs import GPUS_ONLY, NO_ROOM, NodeNeeds, Room
from synergy_core.records import (
    Action,
    Cell,
    Cluster,
    Decision,
    Directive,
    Job,
    JobState,
    Node,
    Plan,
    Profile,
    Shape,
    Snapshot,
)

import synergyd.scheduler.epoch_answer as solving
import synergyd.scheduler.placement.place as place_module
from synergyd.daemon.forecast import Forecast
from synergyd.settings import Settings
from tests.unit.scheduler.epochs import decide

TYPES = ("a100-80", "h100", "v100", "a100-40", "l20", "h200", "a40", "b200")
NEEDS = {
    "": (GPUS_ONLY,),
    "plenty": (NodeNeeds(cpus=8, memory_mib=65_536), NodeNeeds(cpus_per_gpu=16, memory_per_gpu_mib=131_072)),
    "scarce": (
        NodeNeeds(cpus=8),
        NodeNeeds(cpus_per_gpu=16, memory_per_gpu_mib=131_072),
        NodeNeeds(cpus=48),
        NodeNeeds(cpus_per_gpu=24),
    ),
}
MODELS = ("gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "llama2-7b", "llama2-13b", "llama3-8b")


class World:
    """A cluster with a queue, kept between epochs."""

    def __init__(self, jobs: int, nodes: int, types: int, kinds: int, seed: int, room: str = "") -> None:
        self._rnd = random.Random(seed)
        self._types = TYPES[:types]
        total = Room(128, 1_048_576) if room else None
        self._needs = NEEDS[room]
        self._nodes = [Node(f"n{i:05}", TYPES[i % types], 8, room=total) for i in range(nodes)]
        self._kinds = [self._kind() for _ in range(kinds)]
        self._next = 1
        self.now_s = 1e6
        self.jobs: dict[int, Job] = {}
        self.profiles: dict[int, Profile] = {}
        self.plans: dict[int, Plan] = {}
        for _ in range(jobs):
            self._submit()

    def _kind(self) -> tuple[Directive, Shape, Profile]:
        rnd = self._rnd
        batch = rnd.choice([64, 128, 256, 512])
        top = rnd.choice([1, 1, 4])
        most = rnd.choice([8, 16, 64, 256])
        directive = Directive(model=rnd.choice(MODELS), global_batch=(batch, batch * top), max_gpus=most)
        profile = Profile(speed=rnd.uniform(0.7, 1.3), samples=8, noise_scale=rnd.uniform(100, 5000), resharding=True)
        return directive, Shape(self._rnd.choice(self._types), 1, rnd.choice([1, 2, 4, 8])), profile

    def _submit(self) -> None:
        directive, asked, profile = self._rnd.choice(self._kinds)
        made = Job(
            self._next, f"j{self._next}", "u", 1, "gpu", JobState.PENDING, "Resources", self.now_s, None, None, 0,
            asked, asked, directive=directive, needs=self._needs[self._next % len(self._needs)],
        )  # fmt: skip
        self.jobs[self._next], self.profiles[self._next] = made, profile
        self._next += 1

    def snapshot(self) -> Snapshot:
        used: Counter[str] = Counter()
        room: dict[str, Room] = {}
        for job in self.jobs.values():
            for name in job.node_names:
                used[name] += job.shape.gpus_per_node
                room[name] = room.get(name, NO_ROOM).plus(job.needs.room_for(job.shape.gpus_per_node))
        nodes = tuple(replace(n, gpus_used=used[n.name], used=room.get(n.name, NO_ROOM)) for n in self._nodes)
        return Snapshot(self.now_s, Cluster(nodes), tuple(self.jobs.values()))

    def carry_out(self, decisions: tuple[Decision, ...]) -> Counter[str]:
        told: Counter[str] = Counter()
        for d in decisions:
            job = self.jobs[d.job_id]
            told[d.action.value] += 1
            if d.cell is None or d.action is Action.KEEP:
                continue
            told["moved"] += (
                d.action is Action.RESIZE and d.cell.shape == job.shape and d.cell.plan == self.plans[d.job_id]
            )
            restarts = job.restarts + (d.action is Action.RESIZE)
            self.jobs[d.job_id] = replace(
                job,
                state=JobState.RUNNING,
                shape=d.cell.shape,
                node_names=d.node_names,
                restarts=restarts,
                start_s=self.now_s,
            )
            self.plans[d.job_id] = d.cell.plan
        return told

    def pass_time(self) -> None:
        self.now_s += 3600.0
        for job_id in self._rnd.sample(sorted(self.jobs), len(self.jobs) // 50):
            profile = self.profiles[job_id]
            self.profiles[job_id] = replace(profile, speed=profile.speed * self._rnd.uniform(0.9, 1.1))
        for job_id in self._rnd.sample(sorted(self.jobs), len(self.jobs) // 100):
            del self.jobs[job_id], self.profiles[job_id]
            self.plans.pop(job_id, None)
            self._submit()


def epoch(world: World, forecast: Forecast, settings: Settings) -> dict[str, Any]:
    """One epoch's parts in CPU milliseconds, and what came of it."""
    world_now = world.snapshot()
    start = time.process_time()
    cells: dict[int, tuple[Cell, ...]] = {}
    why: dict[int, str] = {}
    for job in world_now.jobs:
        found = forecast.cells(job, world.profiles[job.job_id], world.plans.get(job.job_id), world_now.cluster)
        cells[job.job_id], why[job.job_id] = found.cells, found.why_none
    table = time.process_time()
    ages = {j.job_id: world.now_s - j.submit_s for j in world_now.jobs}
    placing, failed = [], 0
    plain = place_module.place

    def place(*args: Any) -> Any:
        nonlocal failed
        begin = time.process_time()
        placed = plain(*args)
        placing.append(time.process_time() - begin)
        failed += len(placed.unplaced_reasons)
        return placed

    vars(solving)["place"] = place  # as `solve` looks it up
    try:
        begin, wall = time.process_time(), time.perf_counter()
        decisions = decide(world_now, settings, cells, why, world.plans, ages)
        end, wall = time.process_time(), time.perf_counter() - wall
    finally:
        vars(solving)["place"] = plain
    told = world.carry_out(decisions)
    return {
        "table_ms": (table - start) * 1e3,
        "decide_ms": (end - begin) * 1e3,
        "decide_wall_ms": wall * 1e3,
        "place_ms": sum(placing) * 1e3,
        "total_ms": (table - start + end - begin) * 1e3,
        "cells": sum(len(own) for own in cells.values()),
        "running": sum(j.state is JobState.RUNNING for j in world.jobs.values()),
        "changed": told["resize"] - told["moved"],
        "moved": told["moved"],
        "failed": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_280)
    parser.add_argument("--types", type=int, default=3, choices=range(1, len(TYPES) + 1))
    parser.add_argument("--kinds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", default="", choices=[x for x in NEEDS if x])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    world = World(given.jobs, given.nodes, given.types, given.kinds, given.seed, given.room)
    settings = Settings()
    forecast = Forecast(settings)
    first = epoch(world, forecast, settings)
    rest = []
    for _ in range(given.repeats):
        world.pass_time()
        gc.freeze()  # as the daemon does between epochs (service.py)
        rest.append(epoch(world, forecast, settings))
    steady = {
        key: {"median": statistics.median(e[key] for e in rest), "worst": max(e[key] for e in rest)} for key in rest[0]
    }
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer = {
        "jobs": given.jobs,
        "nodes": given.nodes,
        "types": given.types,
        "first": first,
        "steady": steady,
        "rss_bytes": rss,
    }
    if given.json:
        print(json.dumps(answer, indent=1))
        return
    print(f"{given.jobs} jobs, {given.nodes} nodes x 8 GPUs, {given.types} types; {rss / 2**20:.0f} MiB")
    print(f"{'':16}{'first':>12}{'median':>12}{'worst':>12}")
    for key in first:
        print(f"{key:16}{first[key]:>12.6g}{steady[key]['median']:>12.6g}{steady[key]['worst']:>12.6g}")


if __name__ == "__main__":
    if "OMP_NUM_THREADS" not in os.environ:  # one core, as the numbers say: libraries read it when they are loaded
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        os.execv(sys.executable, sys.orig_argv)
    main()
