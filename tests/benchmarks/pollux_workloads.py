"""Synergy and its peers on the Pollux artifact's workloads, and what is lost between the models and the best possible.

    python -m tests.benchmarks.pollux_workloads --data DIR [--load 1|0.5] [--workload N,...] [--policy NAME,...]
        [--fairness P] [--unknown-lengths] [--decompose] [--json FILE]

DIR holds pollux/. --decompose runs Synergy three times: learnt, with an oracle, and with an oracle and free restarts; the
differences are what model errors and restarts cost. What is left above the lower bound is queueing, fairness and the bound's
own slack.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from synergy_sim.ideal import Ideals, compute_lower_bound
from synergy_sim.metrics import RunMetrics, compute_metrics
from synergy_sim.records import Costs, Scenario, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.traces import pollux

from synergyd.settings import Settings

# Average JCT, s (facts): the mean over all eight workloads, and workload 6
PEERS = {"1": {"pollux, all eight": 2751.1, "pollux, workload 6": 2446.1}, "0.5": {"pollux, all": 1534.0}}


def one(scenario: Scenario, policy: str, settings: Settings, ideals: Ideals, oracle: bool = False) -> RunMetrics:
    return compute_metrics(simulate(scenario, policy, settings, oracle=oracle, ideals=ideals), ideals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--load", choices=sorted(PEERS), default="1")
    parser.add_argument("--workload", default="")
    parser.add_argument("--policy", default="tiresias,synergy")
    parser.add_argument("--fairness", type=float, default=0.0)
    parser.add_argument("--unknown-lengths", action="store_true", help="jobs don't tell how much is left to do")
    parser.add_argument("--decompose", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = args.data / "pollux" / ("workloads" if args.load == "1" else f"workloads-{args.load}")
    wanted = {f"workload-{n}" for n in args.workload.split(",") if n}
    paths = [p for p in sorted(folder.glob("workload-*.csv")) if not wanted or p.stem in wanted]
    if not paths:
        print(f"skipped: {folder} has no such workloads")
        return
    settings = Settings(fairness=args.fairness)
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        scenario = Scenario(
            pollux.read(path, None), build_cluster({"t4": (16, 4)}), lengths_known=not args.unknown_lengths
        )
        ideals = Ideals(scenario)
        mine: dict[str, Any] = {"lower_bound_avg_jct_s": compute_lower_bound(scenario, ideals).average_s}
        for name in args.policy.split(","):
            mine[name] = asdict(one(scenario, name, settings, ideals))
        if args.decompose:
            free = replace(scenario, costs=Costs(scenario.costs.first_start_s, 0.0, 0.0, 0.0))
            mine["synergy, oracle"] = asdict(one(scenario, "synergy", settings, ideals, oracle=True))
            mine["synergy, oracle, free restarts"] = asdict(one(free, "synergy", settings, ideals, oracle=True))
        found[path.stem] = mine
        for name, value in mine.items():
            if isinstance(value, dict):
                words = ["avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "avg_queueing_s", "avg_idle_s"]
                words += ["restarts_per_job", "most_restarts", "worst_restart_share", "worst_ftf", "unfair_share"]
                words += ["decision_ms_median", "wall_s"]
                print(
                    path.stem, name, " ".join(f"{w}={value[w]:.2f}" for w in words if value[w] is not None), flush=True
                )
            else:
                print(path.stem, name, f"{value:.1f}", flush=True)
    for name in args.policy.split(","):
        print(
            f"mean over {len(paths)}: {name} {statistics.fmean(one[name]['avg_jct_s'] for one in found.values()):.1f} s"
        )
    print("printed by the reference:", ", ".join(f"{name} {s:.0f} s" for name, s in PEERS[args.load].items()))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
