"""How far slowdown.py's mean-field forecast is from the task-level simulation: jobs on random nodes that share links freely.

    python -m tests.benchmarks.slowdown_error [--trials 30] [--json]

Each trial lays --jobs jobs of the contention paper's models on 2 to 4 of 8 nodes each, 10 GbE, every job on GPUs of its own, none
gated, and counts their iterations from second 20 to second 140. `forecast` and `simulated` are means over jobs that share a link of
the step time over that with the links to itself, `error` the mean of |forecast / simulated - 1|.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys

from synergy_sim.contention.engine import Engine, Machine
from synergy_sim.contention.workload import NETWORKS, JobSpec

from synergyd.links.disciplines import Discipline, Srsf
from synergyd.links.model import TEN_GBE, Topology
from synergyd.links.slowdown import Traffic, slowdowns

NODES = 8
FROM_MS, UNTIL_MS = 20_000.0, 140_000.0


def trial(seed: int, jobs: int, message: float) -> list[tuple[float, float]]:
    """(forecast, simulated) slowdown of each job that shares a link."""
    draw = random.Random(seed)
    used = [0] * NODES
    specs, nodes, gpus = [], [], []
    for j in range(jobs):
        network, pace = draw.choice(NETWORKS), draw.uniform(0.9, 1.1)
        mine = sorted(draw.sample(range(NODES), draw.choice((2, 2, 3, 4))))
        gpus.append(tuple(n * jobs + used[n] for n in mine))
        for n in mine:
            used[n] += 1
        times = network.forward_ms * pace, network.backward_ms * pace
        specs.append(JobSpec(j, network.name, len(mine), 10**6, 0.0, *times, network.gradient_mb * message))
        nodes.append(tuple(f"n{n}" for n in mine))
    engine = Engine(Machine(NODES, jobs, exclusive=True), specs, lambda _, j: gpus[j], Discipline(Srsf(jobs + 1)))
    engine.advance(until=FROM_MS)
    before = list(engine.left)
    engine.advance(until=UNTIL_MS)
    traffic = [Traffic(s.job_id, nodes[s.job_id], s.step_ms / 1000.0, s.message_mb) for s in specs]
    forecast = slowdowns(traffic, Topology())
    return [
        (
            forecast[j].slowdown,
            (UNTIL_MS - FROM_MS) / (before[j] - engine.left[j]) / (s.step_ms + s.message_mb * TEN_GBE.per_mb),
        )
        for j, s in enumerate(specs)
        if forecast[j].others
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = []
    for message in (0.1, 0.3, 1.0):
        for jobs in (2, 4, 6):
            pairs = [pair for seed in range(args.trials) for pair in trial(seed, jobs, message)]
            rows.append(
                {
                    "message": message,
                    "jobs": jobs,
                    "compared": len(pairs),
                    "forecast": statistics.fmean(p for p, _ in pairs),
                    "simulated": statistics.fmean(r for _, r in pairs),
                    "error": statistics.fmean(abs(p / r - 1) for p, r in pairs),
                }
            )
            if not args.json:
                print("  ".join(f"{k} {v:.3g}" for k, v in rows[-1].items()), flush=True)
    if args.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
