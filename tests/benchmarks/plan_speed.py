"""How long the plan search takes on one core: all plans of a 70B model on 512 GPUs and of a 405B model on 16,384, all Cells of one job
on three GPU types with 1 to 512 GPUs each. `python -m tests.benchmarks.plan_speed [--json]`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

from synergy_core.accepts import Accepts
from synergy_core.recompute import MODULES
from synergy_core.records import Cell, Cluster, Directive, Job, JobState, Node, Profile, Shape

from synergyd.jobmodel import job_planner
from synergyd.jobmodel.cell_search import rank
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.memory_belief import MemoryBelief
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.plan_limits import PlanLimits

TYPES = ("h100", "a100-80", "h200")
FREE = PlanLimits(1024, 1024, vpp=None, cp=None, ep=None, zero_stages=(1, 2, 3))
BASIC = PlanLimits(1024, 1024)


def timed(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """(best, median) milliseconds of processor time of `call`: of this thread, so that other load does not count."""
    spent = []
    for _ in range(repeats):
        start = time.thread_time()
        call()
        spent.append(1e3 * (time.thread_time() - start))
    spent.sort()
    return spent[0], spent[len(spent) // 2]


def a_job(batch: tuple[int, int]) -> Job:
    shape = Shape("h100", 8, 8)
    directive = Directive(global_batch=batch)
    return Job(
        1, "j", "u", 1, "gpu", JobState.PENDING, "", 0.0, None, None, 0, shape=shape, asked=shape, directive=directive
    )


def a_cluster() -> Cluster:
    return Cluster(tuple(Node(f"{t}-{i}", t, 8, partitions=("gpu",)) for t in TYPES for i in range(64)))


def measure(repeats: int) -> list[dict[str, object]]:
    """One row a case: name, plans or Cells, best and median milliseconds, the bound."""
    gpu = figures("h100")
    rows: list[dict[str, object]] = []

    def plans(name: str, model_name: str, nodes: int, limits: PlanLimits, noise: float | None = None) -> None:
        model, shape, belief = (
            load_model(model_name),
            [Shape("h100", nodes, 8)],
            MemoryBelief(sigma=gpu.memory_uncertainty),
        )

        def call() -> int:
            ranked = rank(model, gpu, shape, limits, noise_scale=noise, memory=belief)
            return len(ranked.order)

        best, median = timed(call, repeats)
        bound = 20.0 if nodes == 64 else 50.0
        rows.append({"case": name, "plans": call(), "best_ms": best, "median_ms": median, "bound_ms": bound})

    plans("70B on 512 GPUs, tp pp dp", "llama3-70b", 64, BASIC)
    plans("70B on 512 GPUs, all degrees", "llama3-70b", 64, FREE)
    plans("70B on 512 GPUs, all degrees, batch 512:4096", "llama3-70b", 64, replace(FREE, low=512, high=4096), 3000.0)
    large = replace(FREE, low=2048, high=2048, uneven=True)
    plans("405B on 16,384 GPUs, all degrees", "llama3-405b", 2048, large)
    able = replace(large, blocks=True, modules=MODULES, shards=True, a2a=True)
    plans("405B on 16,384 GPUs, layers and modules too", "llama3-405b", 2048, able)
    plans("405B on 16,384 GPUs, batch 1024:8192", "llama3-405b", 2048, replace(large, low=1024, high=8192), 3000.0)
    plans("DeepSeek-V3 on 2,048 GPUs, all degrees", "deepseek-v3", 256, replace(large, low=15360, high=15360))

    cluster = a_cluster()
    for name, batch, profile, everything in (
        ("Cells of 70B, tp pp dp", (1024, 1024), Profile(), False),
        ("Cells of 70B, all degrees", (1024, 1024), Profile(), True),
        ("Cells of 70B, tp pp dp, batch 512:4096", (512, 4096), Profile(noise_scale=3000.0), False),
        ("Cells of 70B, all degrees, batch 512:4096", (512, 4096), Profile(noise_scale=3000.0), True),
    ):
        task = a_task(a_job(batch), profile, everything)

        def cells(task: JobPlanner = task) -> tuple[Cell, ...]:
            job_planner._best_cells.cache_clear()  # what is timed is the search, not its memory
            return task.cells(cluster)

        best, median = timed(cells, max(3, repeats // 3))
        found = len(cells())
        rows.append({"case": name, "cells": found, "best_ms": best, "median_ms": median, "bound_ms": 100.0})
    return rows


def a_task(job: Job, profile: Profile, everything: bool) -> JobPlanner:
    said = Accepts(vpp=True, cp=True, ep=True) if everything else Accepts()
    return JobPlanner(job, replace(profile, accepts=said), load_model("llama3-70b"), {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    rows = measure(args.repeats)
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        count = f"{row.get('plans', row.get('cells'))} {'plans' if 'plans' in row else 'Cells'}"
        print(f"{row['case']:48} {count:>12} {row['best_ms']:8.1f} ms best {row['median_ms']:8.1f} ms median "
              f"(bound {row['bound_ms']:.0f})")  # fmt: skip


if __name__ == "__main__":
    main()
