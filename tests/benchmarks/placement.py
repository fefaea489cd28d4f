"""Placement with leaf switches: time, jobs that cross leaves, and what oversubscribed uplinks cost, over epochs of turnover.

    python -m tests.benchmarks.placement [--nodes 1280] [--leaf 32] [--epochs 30] [--turnover 0.05] [--json]

A full cluster of nodes x 8 GPUs, leaves of --leaf nodes, jobs of 1, 2, 4 and 8 GPUs, one in eleven of 2 to 16 whole nodes. Each
epoch --turnover of the jobs end and twice as many new ones ask; those that find no room are dropped. Three ways: `leaves` (as
synergyd), `blind` (the same without knowing the leaves), `random` (nodes in random order). What is lost is the share of
throughput at an oversubscription of 4 and of 8, by slowdown.py's forecast, for jobs that send a fifth of their step when alone;
`fragmented` counts jobs on more leaves than they need.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass, replace

from synergy_core.records import Shape

from synergyd.links.model import Link, Topology
from synergyd.links.slowdown import Traffic, slowdowns
from synergyd.scheduler.placement.place import PlacementRequest, place
from synergyd.scheduler.problem.records import NodeCapacity

NIC = Link(0.05, 0.0137)  # ms/MB and penalty: 200 Gb/s, the penalty in 10 GbE's proportion
MESSAGE_MB, SHARE = 2000.0, 0.2


@dataclass
class Way:
    """One way to place: its nodes as it sees them, and who is where."""

    name: str
    rooms: tuple[NodeCapacity, ...]
    held: dict[int, PlacementRequest]
    next_id: int = 1


SIZES = [(1, 1), (1, 2), (1, 4), (1, 8)] * 10 + [(2, 8), (4, 8), (8, 8), (16, 8)]


def batch_fill(way: Way, rnd: random.Random, count: int) -> float:
    """Lays `count` new jobs at once as an epoch does, those that find no room left out; seconds."""
    new = [PlacementRequest(way.next_id + i, Shape("h100", *rnd.choice(SIZES))) for i in range(count)]
    way.next_id += count
    rooms = list(way.rooms)
    if way.name == "random":
        rnd.shuffle(rooms)
    begin = time.process_time()
    found = place(rooms, [*way.held.values(), *new])
    spent = time.process_time() - begin
    for one in new:
        if one.job_id in found.nodes:
            way.held[one.job_id] = replace(one, nodes=found.nodes[one.job_id], stay=True)
    return spent


def lost(way: Way, leaf: dict[str, str], per_leaf: int, oversubscription: float) -> tuple[float, int]:
    """(share of throughput lost, jobs on more leaves than they need)."""
    uplink = Link(NIC.per_mb * oversubscription / per_leaf, NIC.penalty * oversubscription / per_leaf)
    topology = Topology(NIC, {}, leaf, uplink)
    compute_s = MESSAGE_MB * NIC.per_mb / 1000 * (1 - SHARE) / SHARE
    jobs = [Traffic(j, r.nodes, compute_s, MESSAGE_MB) for j, r in way.held.items() if r.shape.nodes > 1]
    slow = slowdowns(jobs, topology)
    total = sum(r.shape.gpus for r in way.held.values())
    worth = sum(r.shape.gpus / (slow[j].slowdown if j in slow else 1.0) for j, r in way.held.items())
    wide = sum(len({leaf[n] for n in r.nodes}) > -(-r.shape.nodes // per_leaf) for r in way.held.values())
    return 1 - worth / total, wide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1280)
    parser.add_argument("--leaf", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--turnover", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = [f"n{i:05}" for i in range(given.nodes)]
    leaf = {name: f"s{i // given.leaf}" for i, name in enumerate(names)}
    blind = tuple(NodeCapacity(name, "h100", 8) for name in names)
    seeing = tuple(replace(room, leaf=leaf[room.name]) for room in blind)
    ways = [Way("leaves", seeing, {}), Way("blind", blind, {}), Way("random", blind, {})]
    answer = []
    for way in ways:
        rnd = random.Random(given.seed)
        for _ in range(60):
            batch_fill(way, rnd, given.nodes // 20)
        spent = []
        losses: dict[int, list[float]] = {4: [], 8: []}
        wide = []
        for _ in range(given.epochs):
            ended = rnd.sample(sorted(way.held), int(len(way.held) * given.turnover))
            for job_id in ended:
                del way.held[job_id]
            spent.append(batch_fill(way, rnd, 2 * len(ended)))
            for ratio, own in losses.items():
                share, count = lost(way, leaf, given.leaf, ratio)
                own.append(share)
            wide.append(count)
        answer.append(
            {
                "way": way.name,
                "jobs": len(way.held),
                "gpus_used": sum(r.shape.gpus for r in way.held.values()),
                "place_ms_median": 1e3 * statistics.median(spent),
                "place_ms_worst": 1e3 * max(spent),
                "lost_4": statistics.mean(losses[4]),
                "lost_8": statistics.mean(losses[8]),
                "fragmented": statistics.mean(wide),
                "multi_node": sum(r.shape.nodes > 1 for r in way.held.values()),
            }
        )
    if given.json:
        print(json.dumps(answer, indent=1))
        return
    for row in answer:
        print(
            "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
