"""Error of the data-parallel throughput model on measured steps, after the job has reported a few of them.

    python -m tests.benchmarks.throughput_rows --data DIR [--gpu-type t4] [--json]

DIR holds a folder for each job kind with placements.csv (placement = GPUs on each node as digits, local_bsz, step_time).
Placements with as many GPUs on each node are used. N of them, drawn at random (5 draws), are what the job has reported;
the error is that of all others but 16, so that every column scores the same rows. Nothing is fitted on what is scored.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
from pathlib import Path

from synergy_core.records import Measurement, Plan, Shape

from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.throughput import fit_throughput

REPORTED = (1, 3, 5, 16)
DRAWS = 5


def rows(path: Path, gpu_type: str) -> list[Measurement]:
    """The measured steps of one job kind."""
    found = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            nodes = [int(c) for c in row["placement"]]
            if len(set(nodes)) == 1:
                shape, batch = Shape(gpu_type, len(nodes), nodes[0]), int(float(row["local_bsz"]))
                plan = Plan(dp=shape.gpus, micro_batch=batch, global_batch=shape.gpus * batch, zero_stage=0)
                found.append(Measurement(plan, shape, float(row["step_time"])))
    return found


def score(known: list[Measurement], gpu_type: str) -> dict[int, float]:
    """Mean error by number of reported steps, a fraction."""
    gpu = figures(gpu_type)
    errors: dict[int, list[float]] = {n: [] for n in REPORTED}
    for draw in range(DRAWS):
        mixed = random.Random(draw).sample(known, len(known))
        for n in REPORTED:
            model = fit_throughput(tuple(mixed[:n]), (gpu,) * n)
            for m in mixed[max(REPORTED) :]:
                predicted = model.step_s(gpu, m.shape, m.plan.dp, m.plan.micro_batch, 1)
                errors[n].append(abs(predicted / m.step_s - 1))
    return {n: statistics.fmean(some) for n, some in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--gpu-type", default="t4")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {}
    for path in sorted(args.data.glob("*/placements.csv")):
        known = rows(path, args.gpu_type)
        if len(known) > 2 * max(REPORTED):
            found[path.parent.name] = score(known, args.gpu_type)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{'job kind':<14}" + "".join(f"{n:>8}" for n in REPORTED) + "   steps reported")
    for name, by_count in found.items():
        print(f"{name:<14}" + "".join(f"{100 * by_count[n]:>7.1f}%" for n in REPORTED))


if __name__ == "__main__":
    main()
