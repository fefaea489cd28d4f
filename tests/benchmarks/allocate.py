"""The allocation: milliseconds, objective, certified bound; against the exact program and cvxpy + GLPK_MI.

    python -m tests.benchmarks.allocate --jobs 10000 --gpus 10240 --types 3 [--family cells] --json
    python -m tests.benchmarks.allocate --instance FILE.npz --json

An instance is an npz with `indptr[N+1]` (job -> its columns), `gpu_type[nnz]`, `gpus[nnz]`, `utility[nnz]` (not running = 0, the
sum is maximised), `capacity[T]`, optional `previous[N]` (column or -1). `--save FILE.npz` writes the generated one.

Families: `cells` (about 100 Cells a job, concave goodput, log utility over waiting), `few` (2 to 20 Cells), `linear` (utility is
goodput itself), `clones` (all jobs identical), `rigid` (one Cell a job), `sia` (power -0.5), `integer` (small whole utilities, many
ties).

How to read it: `cold` starts from nothing, `warm` from the answer before 2 % of the jobs changed. `cpu_ms_*` is processor time
of all threads, reading the arrays included; median over `--repeats`, the worst beside it as `*_worst`. `gap` is (upper_bound -
objective) / upper_bound. `proven` (--proven): the same solver asked to prove its optimum. `exact` (--exact): HiGHS over all
columns, no prices. `glpk` (--glpk): cvxpy + GLPK_MI where it is installed. `--peer-limit` seconds bounds each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from synergy_core.errors import UsageError

from synergyd.scheduler.solver.bounds import feasible
from synergyd.scheduler.solver.bounds import objective as worth
from synergyd.scheduler.solver.instance import Instance, instance
from synergyd.scheduler.solver.lagrangian import Effort, LagrangianSolution, solve
from synergyd.scheduler.solver.reduced_milp import solve_columns

Arrays = dict[str, Any]
SIZES = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256])
FAMILIES = ("cells", "few", "linear", "clones", "rigid", "sia", "integer")


def generate(family: str, jobs: int, gpus: int, types: int, seed: int = 0) -> Arrays:
    """Arrays of an instance. Goodput = speed(job, type) x gpus^a(job) x noise per plan, a in [0.5, 0.98]."""
    rng = np.random.default_rng(seed)
    capacity = np.full(types, gpus // types)
    capacity[: gpus % types] += 1
    sizes = SIZES[: max(1, np.searchsorted(SIZES, capacity.max(), side="right"))]
    wide = max(1, 100 // types)
    count = {"few": rng.integers(2, 21, jobs), "rigid": np.ones(jobs, int)}.get(family, np.full(jobs, wide * types))
    indptr = np.concatenate([[0], np.cumsum(count)])
    job = np.repeat(np.arange(jobs), count)
    nth = np.arange(indptr[-1]) - indptr[job]
    gpu_type = rng.integers(0, types, len(job)) if family in ("few", "rigid") else nth % types
    taken = rng.choice(sizes[: max(1, len(sizes) // 2)] if family == "rigid" else sizes, len(job))
    speed = rng.uniform(0.5, 2.0, (jobs, types)) * (1 + np.arange(types) / 2)
    power = rng.uniform(0.5, 0.98, jobs)
    weight = rng.choice([0.5, 1.0, 1.0, 2.0], jobs)
    noise = rng.uniform(0.8, 1.0, len(job))
    goodput = speed[job, gpu_type] * taken ** power[job] * noise
    if family == "linear":
        utility = weight[job] * goodput
    elif family == "sia":
        least = np.minimum.reduceat(goodput, indptr[:-1])
        utility = weight[job] * (1.1 + 1.0 - (goodput / least[job]) ** -0.5)
    elif family == "integer":
        utility = np.rint(weight[job] * 4 * (np.log2(goodput) + 2))
    else:
        utility = weight[job] * np.log(goodput / 0.1)
    if family == "clones":
        taken, utility = np.tile(taken[: count[0]], jobs), np.tile(utility[: count[0]], jobs)
    return {"indptr": indptr, "gpu_type": gpu_type, "gpus": taken, "utility": utility, "capacity": capacity}


def changed(arrays: Arrays, share: float, seed: int) -> Arrays:
    """The same instance with the utilities of a share of the jobs redrawn within 20 % a job and 5 % a column."""
    rng = np.random.default_rng(seed)
    indptr, utility = np.asarray(arrays["indptr"]), np.asarray(arrays["utility"], dtype=float).copy()
    jobs = len(indptr) - 1
    for j in rng.choice(jobs, max(1, round(share * jobs)), replace=False) if jobs else []:
        own = slice(indptr[j], indptr[j + 1])
        utility[own] *= rng.uniform(0.8, 1.2) * rng.uniform(0.95, 1.05, indptr[j + 1] - indptr[j])
    return {**arrays, "utility": utility}


def built(arrays: Arrays) -> Instance:
    indptr, gpu_type, gpus, utility, capacity = (
        arrays[n] for n in ("indptr", "gpu_type", "gpus", "utility", "capacity")
    )
    return instance(indptr, gpu_type, gpus, utility, capacity, previous=arrays.get("previous"))


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """(result, processor ms, wall ms)."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3


def _solve_again(later: Arrays, last: LagrangianSolution, effort: Effort) -> LagrangianSolution:
    return solve(built(later), warm=last, effort=effort)


def measure(arrays: Arrays, repeats: int, effort: Effort) -> dict[str, Any]:
    """Cold and warm solves of one instance, each answer checked."""
    cold, wall, warm = [], [], []
    found: LagrangianSolution | None = None
    for r in range(repeats):
        found, cpu_ms, wall_ms = timed(lambda: solve(built(arrays), effort=effort))
        cold.append(cpu_ms)
        wall.append(wall_ms)
        later = changed(arrays, 0.02, r)
        again, cpu_ms, _ = timed(partial(_solve_again, later, found, effort))
        warm.append((cpu_ms, again.gap))
        if not feasible(built(arrays), found.choice) or not feasible(built(later), again.choice):
            raise SystemExit("allocate: an answer breaks a limit")
    assert found is not None
    return {
        "cpu_ms_cold": statistics.median(cold),
        "cpu_ms_cold_worst": max(cold),
        "cpu_ms_warm": statistics.median(w for w, _ in warm),
        "cpu_ms_warm_worst": max(w for w, _ in warm),
        "gap_warm_worst": max(g for _, g in warm),
        "wall_ms_cold": statistics.median(wall),
        "wall_ms_cold_worst": max(wall),
        "objective": found.objective,
        "upper_bound": found.upper_bound,
        "gap": found.gap,
        "optimal": found.optimal,
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def once(cpu_ms: float, wall_ms: float, value: float, bound: float, optimal: bool) -> dict[str, Any]:
    """A peer's run in the same keys; it has no warm start."""
    gap = max(0.0, bound - value) / bound if bound > 0 else 0.0
    return {
        "cpu_ms_cold": cpu_ms,
        "cpu_ms_warm": None,
        "wall_ms_cold": wall_ms,
        "objective": value,
        "upper_bound": bound,
        "gap": gap,
        "optimal": optimal,
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def run_proven(arrays: Arrays, limit_s: float) -> dict[str, Any]:
    found, cpu_ms, wall_ms = timed(lambda: solve(built(arrays), effort=Effort(exact=True, time_limit_s=limit_s)))
    return once(cpu_ms, wall_ms, found.objective, found.upper_bound, found.optimal)


def run_exact(arrays: Arrays, limit_s: float) -> dict[str, Any] | None:
    """HiGHS on every column. None where it finds nothing in time."""
    full = built(arrays)
    use = np.flatnonzero((full.utility > 0) & np.isfinite(full.costs(np.zeros(len(full.limit))))[full.kind])
    jobs = np.searchsorted(full.indptr, use, side="right") - 1
    found, cpu_ms, wall_ms = timed(lambda: solve_columns(full, use, jobs, 1.0, limit_s, 1e-7))
    if found.choice is None:
        return None
    value = worth(full, found.choice)
    return once(cpu_ms, wall_ms, value, max(found.bound, value), found.bound - value <= 1e-6 * max(1.0, value))


def run_glpk(arrays: Arrays, limit_s: float, gap: float) -> dict[str, Any] | None:
    """cvxpy + GLPK_MI, one boolean a column (Sia's formulation). None where it is absent or finds nothing in time."""
    try:
        import cvxpy as cp
    except ImportError:
        print("allocate: cvxpy is not installed: no glpk", file=sys.stderr)
        return None
    from scipy.sparse import csr_array

    full = built(arrays)
    nnz = len(full.utility)

    def work() -> Any:
        x = cp.Variable(nnz, boolean=True)
        one = csr_array((np.ones(nnz), np.arange(nnz), full.indptr), shape=(full.jobs, nnz))
        rows = csr_array(full.use[full.kind].T)
        problem = cp.Problem(cp.Maximize(full.utility @ x), [one @ x <= 1, rows @ x <= full.limit])
        try:
            problem.solve(solver=cp.GLPK_MI, tm_lim=int(limit_s * 1000), mip_gap=gap)
        except cp.SolverError as error:
            print(f"allocate: glpk: {str(error).splitlines()[0]}", file=sys.stderr)
            return None
        return None if x.value is None else (float(full.utility @ np.rint(x.value)), problem.status == cp.OPTIMAL)

    found, cpu_ms, wall_ms = timed(work)
    if found is None:
        return None
    value, optimal = found
    return once(cpu_ms, wall_ms, value, value / (1 - gap) if optimal else float("inf"), optimal)


def load(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise SystemExit(f"allocate: {path}: {error}") from None
    missing = [n for n in ("indptr", "gpu_type", "gpus", "utility", "capacity") if n not in arrays]
    if missing:
        raise SystemExit(f"allocate: {path}: lacks {', '.join(missing)}")
    return arrays


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--jobs", type=int, default=10_000)
    about.add_argument("--gpus", type=int, default=10_240)
    about.add_argument("--types", type=int, default=3)
    about.add_argument("--family", choices=FAMILIES, default="cells")
    about.add_argument("--seed", type=int, default=0)
    about.add_argument("--instance", type=Path, metavar="FILE.npz")
    about.add_argument("--save", type=Path, metavar="FILE.npz")
    about.add_argument("--repeats", type=int, default=5)
    about.add_argument("--gap", type=float, default=1e-4, help="relative gap that is good enough")
    about.add_argument("--time-limit", type=float, default=Effort().time_limit_s, help="seconds for the exact part")
    about.add_argument("--proven", action="store_true", help="also ask for a proven optimum")
    about.add_argument("--exact", action="store_true", help="also HiGHS over all columns")
    about.add_argument("--glpk", action="store_true", help="also cvxpy + GLPK_MI")
    about.add_argument("--peer-limit", type=float, default=60.0, help="seconds for each of them")
    about.add_argument("--json", action="store_true")
    given = about.parse_args()
    # HiGHS writes stray lines to the process's standard output: what is ours goes to where that was, all else to errors.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    made = (given.family, given.jobs, given.gpus, given.types, given.seed)
    arrays = load(given.instance) if given.instance else generate(*made)
    if given.save:
        np.savez(given.save, **arrays)
    try:
        answer = measure(arrays, given.repeats, Effort(gap=given.gap, time_limit_s=given.time_limit))
        peers: dict[str, Callable[[], dict[str, Any] | None]] = {
            "proven": lambda: run_proven(arrays, given.peer_limit),
            "exact": lambda: run_exact(arrays, given.peer_limit),
            "glpk": lambda: run_glpk(arrays, given.peer_limit, given.gap),
        }
        for name, run in peers.items():
            if getattr(given, name) and (found := run()) is not None:
                answer[name] = found
    except UsageError as error:
        raise SystemExit(f"allocate: {error}") from None
    if given.json:
        print(json.dumps(answer), file=out)
        return
    for key, value in answer.items():
        print(f"{key:18} {json.dumps(value)}", file=out)


if __name__ == "__main__":
    if "OMP_NUM_THREADS" not in os.environ:  # one core, as the numbers say: libraries read it when they are loaded
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        os.execv(sys.executable, sys.orig_argv)
    main()
