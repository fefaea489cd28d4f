"""Does the simulator come to the numbers that the reference implementations print?

    python -m tests.benchmarks.fidelity --data DIR [--json]

DIR holds pollux/workloads, pollux/workloads-0.5 and pollux/traces. Tiresias with 16 x 4 GPUs must give the printed averages
with rounds of whole seconds, to the digit (petuum/adaptdl, branch osdi21-artifact: deterministic), and within 1 % with events
on workload 6. Exit code 1 where it does not; 0 with a line that says so where the data is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from synergy_sim.records import Scenario, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.traces import pollux

# Average JCT, s, as printed for each workload (results-jobload of the artifact)
PRINTED = {
    "workloads": {
        "1": 2473.65,
        "2": 5144.96,
        "3": 3876.26,
        "4": 3280.26,
        "5": 3501.01,
        "6": 3469.69,
        "7": 5479.91,
        "8": 5079.71,
    },
    "workloads-0.5": {
        "1": 1450.94,
        "2": 2333.28,
        "3": 1869.9,
        "4": 1946.76,
        "5": 1425.39,
        "6": 1826.58,
        "7": 3979.15,
        "8": 1899.95,
    },
}


def average(path: Path, *, whole: bool) -> float:
    jobs = pollux.read(path, None)
    run = simulate(Scenario(jobs, build_cluster({"t4": (16, 4)}), whole_seconds=whole), "tiresias")
    return float(np.mean([result.jct_s for result in run.jobs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found, wrong = {}, False
    for folder, printed in PRINTED.items():
        for number, want in printed.items():
            path = args.data / "pollux" / folder / f"workload-{number}.csv"
            if path.exists():
                got = average(path, whole=True)
                found[f"{folder}/{number}"] = {"avg_jct_s": got, "printed": want}
                wrong |= round(got, 2) != want
    path = args.data / "pollux" / "workloads" / "workload-6.csv"
    if path.exists():
        want = PRINTED["workloads"]["6"]
        got = average(path, whole=False)
        found["workloads/6, events"] = {"avg_jct_s": got, "printed": want}
        wrong |= abs(got / want - 1) > 0.01
    if not found:
        print(f"skipped: {args.data} has no pollux/workloads")
        return
    print(json.dumps(found) if args.json else "\n".join(f"{name}: {one}" for name, one in found.items()))
    sys.exit(wrong)


if __name__ == "__main__":
    main()
