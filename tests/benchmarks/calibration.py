"""Is the uncertainty of predicted steps what it says? The share of held-out measurements within one and two sigma.

    python -m tests.benchmarks.calibration --data DIR [--json FILE]

DIR holds pollux/traces (a folder for each kind of plain job with placements.csv) and perf (measured rows of named models). What a
job has reported is drawn at random, 5 times; every other step of it is predicted as its Cells would be. `one node`: only steps
on one node were reported, and those on several are scored. A normal error lies within one sigma in 68 % and two in 95 %.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from synergy_core.records import Cell, Measurement, Shape

from synergyd.jobmodel.fit.measured_runs import MeasuredRun, read_files
from synergyd.jobmodel.learning import level, refine_figures
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.step_time import step_time
from synergyd.jobmodel.model.throughput import fit
from synergyd.jobmodel.plan_distance import sigmas
from tests.benchmarks.throughput_rows import rows

DRAWS = 5
LOOKED_AT = frozenset(("bert", "imagenet", "ncf"))  # kinds of jobs that set throughput._MISFIT: not scored
REPORTED = (0, 1, 3, 5, 16)
GPU_TYPE = "t4"  # of the plain jobs
Errors = dict[str, list[tuple[float, float]]]  # (log(measured / predicted), sigma)


def plain(known: Sequence[Measurement], into: Errors) -> None:
    """Of one kind of plain job."""
    gpu = figures(GPU_TYPE)
    single = [m for m in known if m.shape.nodes == 1]
    for draw in range(DRAWS):
        mixed = random.Random(draw).sample(known, len(known))
        alone = random.Random(draw).sample(single, len(single))
        cases = [(f"plain, {n} reported", mixed[:n], mixed[max(REPORTED) :]) for n in REPORTED]
        several = [m for m in known if m.shape.nodes > 1]
        cases += [(f"plain, {n} reported on one node", alone[:n], several) for n in REPORTED[1:]]
        for name, taught, scored in cases:
            found = fit(tuple(taught), (gpu,) * len(taught))
            counts = [(m.shape.gpus, m.shape.nodes, m.plan.dp, m.plan.micro_batch, 1) for m in scored]
            columns = np.array(counts, dtype=np.int64).T
            off = np.log([m.step_s for m in scored]) - np.log(found.model.steps_s(gpu, columns))
            into.setdefault(name, []).extend(zip(off.tolist(), found.sigmas(gpu, columns).tolist(), strict=True))


def named(some: Sequence[MeasuredRun], into: Errors) -> None:
    """Of one model on one cluster, by the built-in figures."""
    gpu, model = figures(some[0].gpu_type), some[0].model
    known = [_measurement(row) for row in some]
    single = [m for m in known if m.shape.nodes == 1]
    several = [m for m in known if m.shape.nodes > 1]
    for draw in range(DRAWS):
        mixed = random.Random(draw).sample(known, len(known))
        alone = random.Random(draw).sample(single, len(single))
        cases = [(f"named, {n} reported", mixed[:n], mixed[n:]) for n in REPORTED if len(mixed) > n]
        cases += [(f"named, {n} reported on one node", alone[:n], several) for n in REPORTED[1:] if len(alone) >= n]
        for name, taught, scored in cases:
            if not scored:
                continue
            own = level(model, gpu, tuple(taught))
            speed = own[0] if own is not None else 1.0
            moved = refine_figures(model, gpu, tuple(taught), speed)
            plans = from_plans([m.plan for m in scored], [m.shape.gpus_per_node for m in scored])
            step_s = step_time(model, moved, plans).total / speed
            cells = tuple(Cell(m.shape, m.plan, 1.0, 1.0, 1.0, 1.0, 0) for m in scored)
            off = np.log([m.step_s for m in scored]) - np.log(step_s)
            into.setdefault(name, []).extend(zip(off.tolist(), sigmas(model, gpu, tuple(taught), cells), strict=True))


def _measurement(row: MeasuredRun) -> Measurement:
    assert row.time_s is not None
    nodes = max(1, -(-row.plan.gpus // row.gpus_per_node))
    return Measurement(row.plan, Shape(row.gpu_type, nodes, row.plan.gpus // nodes), row.time_s, 1)


def shares(errors: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Within one and two sigma, the median sigma, the median error."""
    off, sigma = np.array(list(errors)).T
    return {
        "count": len(off),
        "one": float(np.mean(np.abs(off) <= sigma)),
        "two": float(np.mean(np.abs(off) <= 2 * sigma)),
        "sigma": float(np.median(sigma)),
        "error": float(np.median(np.abs(off))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    errors: Errors = {}
    for path in sorted((args.data / "pollux" / "traces").glob("*/placements.csv")):
        known = rows(path, GPU_TYPE)
        if len(known) > 2 * max(REPORTED) and path.parent.name not in LOOKED_AT:
            plain(known, errors)
    of_job: dict[object, list[MeasuredRun]] = {}
    for row in read_files(sorted((args.data / "perf").glob("*.csv"))):
        if row.time_s is not None and "time" in row.scores:
            of_job.setdefault(row.job, []).append(row)
    for some in of_job.values():
        # the model's sequence length is a column of the row: jobs of several are several
        by_spec: dict[object, list[MeasuredRun]] = {}
        for row in some:
            by_spec.setdefault(row.model, []).append(row)
        for alike in by_spec.values():
            named(alike, errors)
    if not errors:
        print(f"skipped: {args.data} has neither pollux/traces nor perf")
        return
    found = {name: shares(some) for name, some in sorted(errors.items())}
    print(f"{'':<36} {'steps':>7} {'1 sigma':>8} {'2 sigma':>8} {'sigma':>7} {'error':>7}   (medians)")
    for name, value in found.items():
        print(
            f"{name:<36} {value['count']:>7.0f} {100 * value['one']:>7.0f}% {100 * value['two']:>7.0f}% "
            f"{100 * value['sigma']:>6.0f}% {100 * value['error']:>6.0f}%"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
