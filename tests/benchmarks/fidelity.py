"""Does the simulator come to the numbers that the reference implementations print?

    python -m tests.benchmarks.fidelity --data DIR [--json]

DIR holds pollux/workloads and pollux/traces. Tiresias on workload 6 with 16 x 4 GPUs must give 3469.69 s with rounds of whole
seconds, to the digit (petuum/adaptdl, branch osdi21-artifact: deterministic), and within 1 % with events. Exit code 1
where it does not; 0 with a line that says so where the data is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from synergyd.sim.records import Scenario, cluster_of
from synergyd.sim.simulate import simulate
from synergyd.sim.traces import pollux

# of workload 6: average JCT, and their p99
PRINTED = {"tiresias": (3469.69, 46_336.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    workload = args.data / "pollux" / "workloads" / "workload-6.csv"
    if not workload.exists():
        print(f"skipped: {workload} is not there")
        return
    jobs = pollux.read(workload, None)
    found, wrong = {}, False
    for whole in (True, False):
        run = simulate(Scenario(jobs, cluster_of({"t4": (16, 4)}), whole_seconds=whole), "tiresias")
        jcts = [result.jct_s for result in run.jobs]
        average, p99 = float(np.mean(jcts)), float(np.percentile(jcts, 99))
        printed = PRINTED["tiresias"]
        found["rounds" if whole else "events"] = {
            "avg_jct_s": average,
            "p99_jct_s": p99,
            "printed_avg_jct_s": printed[0],
        }
        wrong |= round(average, 2) != printed[0] if whole else abs(average / printed[0] - 1) > 0.01
    print(json.dumps(found) if args.json else "\n".join(f"{name}: {one}" for name, one in found.items()))
    sys.exit(wrong)


if __name__ == "__main__":
    main()
