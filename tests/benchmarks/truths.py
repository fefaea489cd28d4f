"""Synergy and its peers on the Rubick and Crius artifacts' own traces and clusters.

    python -m tests.benchmarks.truths --data DIR [--trace morphling|arena] [--policy NAME,...] [--decompose] [--json FILE]

DIR holds morphling/ and arena/. --decompose runs Synergy twice more: with an oracle, and with an oracle and free restarts; the
differences are what model errors and restarts cost. `alone` is the average of the jobs each by itself on its fastest shape,
with its one start: where a goal lies below it, no scheduler reaches the goal on this ground truth. Exit code 0; a line that
says so where the data is not there.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from synergy_sim.ideal import Ideals, compute_lower_bound
from synergy_sim.metrics import compute_metrics
from synergy_sim.records import Costs, Scenario, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.traces.kinds import cluster_of_trace, read_trace

from synergyd.settings import Settings

TRACES = {
    "morphling": ("morphling/workloads/workload-base.csv", "fifo,tiresias,optimus,pollux,sia,crius,synergy"),
    "arena": ("arena/traces/simulate_trace_pai.csv", "fifo,tiresias,sia,crius,synergy"),
}
# s, as published (the artifact's own simulation), and what this project reaches for
PEERS: dict[str, dict[str, dict[str, float]]] = {
    "morphling": {"Rubick": {"avg_jct_s": 3638.3, "median_jct_s": 1767, "p99_jct_s": 29156, "makespan_s": 58680}},
    "arena": {"Crius": {"avg_jct_s": 2510.4, "p99_jct_s": 20496}, "FCFS": {"avg_jct_s": 7459}},
}
GOALS = {"morphling": {"avg_jct_s": 3000.0, "makespan_s": 55_000.0}, "arena": {"avg_jct_s": 2000.0}}
WORDS = (
    "avg_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "makespan_s",
    "avg_queueing_s",
    "avg_idle_s",
    "restarts_per_job",
    "most_restarts",
)
MORE = ("worst_restart_share", "worst_ftf", "unfair_share", "utilisation", "efficiency", "decision_ms_median", "wall_s")


def scenario_of(data: Path, kind: str) -> Scenario:
    """The trace on the cluster that it comes with."""
    text = f"{kind}:{data / TRACES[kind][0]}"
    groups = cluster_of_trace(text, None) or {}
    gpu_type, (_, each) = next(iter(groups.items()))
    loaded = read_trace(text, None, gpu_type, 0, each)
    return Scenario(loaded.jobs, build_cluster(groups), loaded.costs)


def bounds(scenario: Scenario, ideals: Ideals) -> dict[str, float]:
    """What no scheduler can beat: average JCT, and the end of the job that would end last alone."""
    bound, start_s = compute_lower_bound(scenario, ideals), scenario.costs.first_start_s
    ends = [
        job.submit_s + start_s + best.alone_s for job in scenario.jobs if (best := ideals.find_ideal(job)) is not None
    ]
    return {**asdict(bound), "avg_jct_s": bound.average_s, "makespan_s": max(ends)}


def show(kind: str, name: str, values: dict[str, Any]) -> None:
    known = [(w, values[w]) for w in (*WORDS, *MORE) if values.get(w) is not None]
    print(kind, name, " ".join(f"{w}={value:.2f}" for w, value in known), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--trace", choices=sorted(TRACES))
    parser.add_argument("--policy", default="")
    parser.add_argument("--fairness", type=float, default=0.0)
    parser.add_argument("--decompose", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    settings = Settings(fairness=args.fairness)
    found: dict[str, dict[str, Any]] = {}
    for kind in [args.trace] if args.trace else list(TRACES):
        if not (args.data / TRACES[kind][0]).exists():
            print(f"skipped: {args.data} has no {TRACES[kind][0]}")
            continue
        scenario = scenario_of(args.data, kind)
        ideals = Ideals(scenario)
        mine: dict[str, Any] = {"no scheduler can beat": bounds(scenario, ideals)}
        show(kind, "no scheduler can beat", mine["no scheduler can beat"])
        runs = [(name, name, scenario, False) for name in (args.policy or TRACES[kind][1]).split(",")]
        if args.decompose:
            free = replace(scenario, costs=Costs(scenario.costs.first_start_s, 0.0, 0.0, 0.0))
            runs.append(("synergy, oracle", "synergy", scenario, True))
            runs.append(("synergy, oracle, free restarts", "synergy", free, True))
        for name, policy, given, oracle in runs:
            run = simulate(given, policy, settings, oracle=oracle, ideals=ideals)
            mine[name] = asdict(compute_metrics(run, ideals))
            show(kind, name, mine[name])
        for name, published in PEERS[kind].items():
            show(kind, f"{name}, as published", published)
        show(kind, "reach for", GOALS[kind])
        found[kind] = mine
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
