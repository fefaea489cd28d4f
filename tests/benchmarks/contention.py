"""Contention: mean JCT of SRSF(1), SRSF(2), SRSF(3), Ada-SRSF and the look-ahead over a grid, and of LWF-kappa against first-fit.

    python -m tests.benchmarks.contention [--seeds 10] [--first-seed 0] [--scale 5] [--processes 2] [--exclusive] [--json]
    python -m tests.benchmarks.contention --paper [--seeds 10] [--scale 1000]
    python -m tests.benchmarks.contention --speed

The set-up is the paper's (arXiv 2002.10105): 16 nodes x 4 GPUs, 10 GbE with b = 0.856 and h = 0.235 ms/MB, 160 jobs of its mix and
models. The grid multiplies h (`--penalty`), the messages (`--message`) and the rate of arrivals (`--load`). `--scale 1000` is the
paper's 1,000 to 6,000 iterations and 1,200 s of arrivals; a smaller scale shrinks both, so that the load stays what it is. Without
--exclusive jobs share GPUs as in the paper. `--paper` runs the stated constants alone, placements included, without a grid.
`--speed`: processor milliseconds of placing by LWF-1 and of forecasting every job's slowdown on 1,280 nodes of 4 GPUs behind leaves
of 32.

How to read it: a row is a cell; `JCT` is the mean over seeds of SRSF(1)'s mean JCT (in seconds at scale 1000; others are scaled up
to it), the other columns are the mean over seeds of each policy's mean JCT over SRSF(1)'s on the same jobs, +- the standard deviation
over seeds. `best` names the best of SRSF(1), SRSF(2) and Ada-SRSF by mean JCT over the seeds; `ahead` is the look-ahead's mean JCT
below that one's (per cent, +- standard error of the paired differences).
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from multiprocessing import get_context
from typing import Any

from synergy_core.records import Shape
from synergy_sim.contention.run import POLICIES, Setup, run_contention

from synergyd.links.model import TEN_GBE, Topology
from synergyd.links.slowdown import Traffic, slowdowns
from synergyd.scheduler.placement.lwf import place_lwf
from synergyd.scheduler.placement.place import PlacementRequest
from synergyd.scheduler.problem.records import NodeCapacity

RIVALS = ("srsf-1", "srsf-2", "ada-srsf")
OURS = "look-ahead"
PLACEMENTS = ("first-fit", "lwf-1", "lwf-2", "lwf-4")
# Of the abstract: Ada-SRSF's mean JCT over SRSF(1)'s and SRSF(2)'s, LWF-1's gain over first-fit.
ABSTRACT = {"ada/srsf-1": 1 - 0.201, "ada/srsf-2": 1 - 0.367, "first-fit/lwf-1": 1.59}

Task = tuple[tuple[str, ...], int, Setup]


def _one(task: Task) -> dict[str, float]:
    policies, seed, setup = task
    found = {}
    for policy in policies:
        begun = time.process_time()
        found[policy] = run_contention([policy], seed, setup)[0].jct_s * 1000.0 / setup.scale
        found[f"{policy}:cpu"] = time.process_time() - begun
    return found


def over_seeds(policies: Sequence[str], setup: Setup, seeds: range, processes: int) -> dict[str, list[float]]:
    """Mean JCT of every policy on every seed, seconds at scale 1000; and its processor seconds as `POLICY:cpu`."""
    tasks: list[Task] = [(tuple(policies), seed, setup) for seed in seeds]
    if processes > 1:
        with get_context("fork").Pool(processes) as pool:
            rows = pool.map(_one, tasks, chunksize=1)
    else:
        rows = [_one(task) for task in tasks]
    return {key: [row[key] for row in rows] for key in rows[0]}


def spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def cell(setup: Setup, seeds: range, processes: int) -> dict[str, Any]:
    """One cell's numbers."""
    jct = over_seeds(POLICIES, setup, seeds, processes)
    mean = {p: statistics.fmean(jct[p]) for p in POLICIES}
    best = min(RIVALS, key=lambda p: mean[p])
    ratio = {p: [x / y for x, y in zip(jct[p], jct["srsf-1"], strict=True)] for p in POLICIES}
    gap = [y - x for x, y in zip(jct[OURS], jct[best], strict=True)]
    return {
        "penalty": setup.penalty,
        "message": setup.message,
        "load": setup.load,
        "mean_jct_s": mean,
        "jct_s": {p: jct[p] for p in POLICIES},
        "over_srsf1": {p: [statistics.fmean(r), spread(r)] for p, r in ratio.items()},
        "best": best,
        "ahead": statistics.fmean(gap) / mean[best],
        "ahead_se": spread(gap) / len(gap) ** 0.5 / mean[best],
        "cpu_s": {p: statistics.fmean(jct[f"{p}:cpu"]) for p in POLICIES},
    }


def grid_line(row: dict[str, Any]) -> str:
    relative = "  ".join(f"{m:.3f} ±{s:.3f}" for p, (m, s) in row["over_srsf1"].items() if p != "srsf-1")
    return (
        f"{row['penalty']:>7g} {row['message']:>7g} {row['load']:>5g} {row['mean_jct_s']['srsf-1']:>8.0f}  {relative}  "
        f"{row['best']:>8} {100 * row['ahead']:>6.1f} ±{100 * row['ahead_se']:.1f} %"
    )


def verdict(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """In how many cells the look-ahead is ahead, and where it is behind."""
    return {
        "cells": len(rows),
        "ahead": sum(r["ahead"] > 0 for r in rows),
        "behind": [[r["penalty"], r["message"], r["load"], r["ahead"], r["ahead_se"]] for r in rows if r["ahead"] < 0],
        "mean_ahead": statistics.fmean(r["ahead"] for r in rows),
        "ada_over_srsf1": [min(r["over_srsf1"]["ada-srsf"][0] for r in rows), max(r["over_srsf1"]["ada-srsf"][0] for r in rows)],
    }  # fmt: skip


def paper(setup: Setup, seeds: range, processes: int) -> dict[str, Any]:
    """The stated constants: disciplines on LWF-1, and placements under SRSF(1) and Ada-SRSF."""
    names = [*POLICIES[:-1], *(f"{p}+{d}" for p in PLACEMENTS if p != "lwf-1" for d in ("srsf-1", "ada-srsf"))]
    jct = over_seeds(names, setup, seeds, processes)

    def over(top: str, bottom: str) -> list[float]:
        r = [x / y for x, y in zip(jct[top], jct[bottom], strict=True)]
        return [statistics.fmean(r), spread(r)]

    return {
        "mean_jct_s": {n: [statistics.fmean(jct[n]), spread(jct[n])] for n in names},
        "ada/srsf-1": over("ada-srsf", "srsf-1"),
        "ada/srsf-2": over("ada-srsf", "srsf-2"),
        "first-fit/lwf-1": over("first-fit+ada-srsf", "ada-srsf"),
        "abstract": ABSTRACT,
        "cpu_s": {n: statistics.fmean(jct[f"{n}:cpu"]) for n in names},
    }


def speed(nodes: int = 1280, repeats: int = 5) -> dict[str, float]:
    """Median processor ms of `place_lwf` and of `slowdowns` with jobs of 2 to 32 whole and half nodes that fill the machine."""
    rng = random.Random(1)
    rooms = [NodeCapacity(f"n{i}", "v100", 4) for i in range(nodes)]
    requests: list[PlacementRequest] = []
    left = nodes * 4
    while left >= 4:
        shape = Shape("v100", min(rng.choice((1, 2, 4, 8, 32)), left // 4), rng.choice((2, 4)))
        requests.append(PlacementRequest(len(requests), shape))
        left -= shape.gpus
    work = {room.name: tuple(rng.uniform(0, 1e4) for _ in range(4)) for room in rooms[::2]}
    tree = Topology(leaf={f"n{i}": f"leaf{i // 32}" for i in range(nodes)}, uplink=TEN_GBE.faster(8))
    spent: dict[str, list[float]] = {"place_ms": [], "slowdowns_ms": []}
    for _ in range(repeats):
        begun = time.process_time()
        placed = place_lwf(rooms, requests, 1, work)
        spent["place_ms"].append(1e3 * (time.process_time() - begun))
        jobs = [Traffic(job, names, 0.09, 500.0) for job, names in placed.nodes.items()]
        begun = time.process_time()
        slowdowns(jobs, tree)
        spent["slowdowns_ms"].append(1e3 * (time.process_time() - begun))
    return {"nodes": nodes, "jobs": len(requests), **{k: statistics.median(v) for k, v in spent.items()}}


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def show(lines: Iterable[str], quiet: bool) -> None:
    for line in lines:
        print(line, file=sys.stderr if quiet else sys.stdout, flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", action="store_true", help="the stated constants only, with placements")
    parser.add_argument("--speed", action="store_true", help="decision times at 1,280 nodes only")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="seeds are this one and those that follow")
    parser.add_argument("--scale", type=float, default=5.0)
    parser.add_argument("--penalty", type=numbers, default=[0.0, 1.0, 3.0], metavar="X,Y,..", help="times h = 0.235")
    parser.add_argument(
        "--message", type=numbers, default=[0.3, 1.0, 3.0], metavar="X,Y,..", help="times the models' sizes"
    )
    parser.add_argument("--load", type=numbers, default=[0.3, 1.0], metavar="X,Y,..", help="times the paper's arrivals")
    parser.add_argument("--jobs", type=int, default=160)
    parser.add_argument("--exclusive", action="store_true", help="one job on a GPU")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if args.speed:
        print(json.dumps(speed()))
        return 0
    base = Setup(exclusive=args.exclusive, scale=args.scale, jobs=args.jobs).check()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    answer: dict[str, Any] = {
        "seeds": args.seeds,
        "first_seed": args.first_seed,
        "scale": args.scale,
        "exclusive": args.exclusive,
    }
    if args.paper:
        answer["paper"] = told = paper(base, seeds, args.processes)
        show((f"{n:<22} {m:>8.1f} ±{s:.1f} s" for n, (m, s) in told["mean_jct_s"].items()), args.json)
        show((f"{n:<16} {told[n][0]:.3f} ±{told[n][1]:.3f}   abstract {x:.3f}" for n, x in ABSTRACT.items()), args.json)
    else:
        head = "  ".join(f"{p:>13}" for p in POLICIES[1:])
        show([f"penalty message  load      JCT  {head}      best   ahead"], args.json)
        answer["cells"] = []
        for penalty, message, load in itertools.product(args.penalty, args.message, args.load):
            setup = Setup(
                exclusive=args.exclusive, scale=args.scale, jobs=args.jobs, penalty=penalty, message=message, load=load
            )
            answer["cells"].append(cell(setup, seeds, args.processes))
            show([grid_line(answer["cells"][-1])], args.json)
        answer["verdict"] = verdict(answer["cells"])
        show([json.dumps(answer["verdict"])], args.json)
    if args.json:
        print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
