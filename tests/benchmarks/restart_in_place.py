"""Seconds without training where a job's GPUs stay: restarted inside its allocation, against a requeue.

    python -m tests.benchmarks.restart_in_place [--times 5] [--job light|megatron] [--nodes 1,2] [--json]

Each job starts before the daemon with a poor plan of its own; the daemon then gives it a better one for the same GPUs. `in place` is with
SYNERGY_IN_PLACE=nodes, `requeue` with 0. One job runs at a time. How to read it: seconds from the last step before to the first
step after, median and all; the restart count of Slurm must be 0 in place and 1 by requeue. The light job imports nothing; megatron is
the example GPT on megatron-core and gloo, whose imports are in its figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from tests.benchmarks.downtime import Line, steps, wait
from tests.demo.jobs import GPT
from tests.throwaway import light_job
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster
from tests.throwaway.synergy import explain, make_cluster, synergyd

GPUS = 2  # of each node
STEPS_BEFORE = 5
LIMIT_S = 600.0  # of a loaded machine that imports Megatron
FIGURES = "#SYNERGY GpuType=cpu peak_tflops=0.002 memory_gib=4 bandwidth_gbs=10 intra_gbs=1 inter_gbs=1"
MODEL = {"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 256}
ARGUMENTS = ("--steps", "100000", "--global-batch", "8", "--step-delay", "0.2", "--hidden", "64", "--seq", "64")


def submit(cluster: SlurmCluster, job: str, nodes: int, *, in_place: bool) -> tuple[int, Path]:
    """Submits the job; returns its id and step log. As many stages as GPUs: any other plan is better."""
    folder = cluster.folder / f"{job}-{nodes}-{in_place}-{time.monotonic_ns()}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    world, checkpoint = nodes * GPUS, folder / "checkpoints"
    plan = json.dumps({"pp": world, "global_batch": 8})
    what = (
        ["-m", GPT, *ARGUMENTS]
        if job == "megatron"
        else ["--runner", "python", str(Path(light_job.__file__).resolve())]
    )
    script = (
        f"#!/bin/bash\n#SBATCH --nodes={nodes} --gres=gpu:{GPUS} --open-mode=append\n"
        f"#SYNERGY model={folder}/config.json min_gpus={world} max_gpus={world} global_batch=8 micro_batch=1 "
        f"checkpoint={checkpoint}\nexport SYNERGY_PLAN_JSON={shlex.quote(plan)} SYNERGY_IN_PLACE={'nodes' if in_place else 0}\n"
        f"srun synergy-launch --checkpoint {checkpoint} {shlex.join(what)}\n"
    )
    return cluster.sbatch(script, f"--output={folder}/out"), checkpoint / "steps.jsonl"


def gap(log: Sequence[Line]) -> float | None:
    """Seconds without a step where the plan changed."""
    for before, after in pairwise(log):
        if (before["tp"], before["pp"], before["dp"]) != (after["tp"], after["pp"], after["dp"]):
            return float(after["time"]) - float(before["time"])
    return None


def once(job: str, nodes: int, *, in_place: bool) -> float:
    """One job's gap. Raises RuntimeError where it does not come as it should."""
    with make_cluster([NodeGroup("cpu", nodes, GPUS)], epoch_s=1, settings=[FIGURES]) as cluster:
        job_id, log = submit(cluster, job, nodes, in_place=in_place)
        wait(f"{STEPS_BEFORE} steps", lambda: len(steps(log)) >= STEPS_BEFORE, LIMIT_S)
        with synergyd(cluster) as daemon:
            try:
                wait("a step with another plan", lambda: gap(steps(log)) is not None, LIMIT_S)
            except RuntimeError:
                told = [[e["detail"] for e in explain(cluster, job_id)["story"]], daemon.tail(), steps(log)[-3:]]
                print(*told, (log.parents[1] / "out").read_text(errors="replace")[-4000:], sep="\n", file=sys.stderr)
                raise
            restarts = steps(log)[-1]["restarts"]
            if restarts != int(not in_place):
                raise RuntimeError(f"it was restarted {restarts} times by a requeue")
            found = gap(steps(log))
            assert found is not None
            return found


def measure(job: str, nodes: int, times: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Seconds by way."""
    found: dict[str, list[float]] = {"in place": [], "requeue": []}
    for _ in range(times):
        for way, gaps in found.items():
            gaps.append(round(once(job, nodes, in_place=way == "in place"), 2))
    for way, gaps in found.items():
        say(f"{job}, {nodes} node(s), {way:<8}: median {statistics.median(gaps):6.2f} s of {sorted(gaps)}")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="restarts of each kind (default %(default)s)")
    parser.add_argument("--job", choices=("light", "megatron"), default="light", help="default %(default)s")
    parser.add_argument("--nodes", default="1,2", help="numbers of nodes (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args(argv)
    counts = [int(n) for n in args.nodes.split(",") if n.isdecimal() and 1 <= int(n) <= 8]
    if args.times < 1 or not counts:
        parser.error("--times must be at least 1, --nodes numbers from 1 to 8 such as 1,2")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    out = sys.stderr if args.json else sys.stdout
    # a benchmark that is stopped takes its cluster and processes down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        found = {n: measure(args.job, n, args.times, lambda text: print(text, file=out, flush=True)) for n in counts}
    except (MissingProgram, RuntimeError) as error:
        print(f"restart_in_place: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"job": args.job, "gaps_s": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
