"""Short jobs: how long a queue of them takes with a #SYNERGY line, against the same jobs without one.

    python -m tests.benchmarks.short_jobs [--jobs 20] [--seconds 10] [--epoch 5] [--line "max_gpus=4"] [--json]

A throwaway node of 4 GPUs; jobs of one GPU that sleep, submitted one after the other. Three queues one after the other on one cluster
with a daemon: plain jobs, jobs with `resize=no`, jobs with `--line`. Seconds from the first sbatch to the last end; the median and
the longest time from a moment at which a GPU was free and a job waited to the start of the next job (`idle`); GPU-seconds in which a
job waited beside a free GPU.

    python -m tests.benchmarks.short_jobs --salloc

A job with the line grows over the node; then a plain job asks for half of it: seconds until it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

from tests.integration.daemon_site import sizes, until_steps
from tests.paths import python_path
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

GPUS = 4


def queue(cluster: SlurmCluster, line: str, jobs: int, seconds: float) -> dict[str, Any]:
    """Submits `jobs` jobs and waits for their end."""
    log = cluster.folder / "tmp" / f"log-{time.monotonic_ns()}"
    log.mkdir()
    script = f"#!/bin/bash\n{line}\ndate +%s.%N > {log}/$SLURM_JOB_ID.start\nsleep {seconds:g}\ndate +%s.%N > {log}/$SLURM_JOB_ID.end\n"
    began = time.time()
    submitted = {cluster.sbatch(script, "--gres=gpu:1", "--output=/dev/null"): time.time() for _ in range(jobs)}
    cluster.wait_for(lambda: len(list(log.glob("*.end"))) == jobs, 60 * seconds * jobs, "the jobs' ends")
    time.sleep(0.5)
    starts = {int(p.stem): float(p.read_text()) for p in log.glob("*.start")}
    ends = {int(p.stem): float(p.read_text()) for p in log.glob("*.end")}
    first = [starts[i] - s for i, s in submitted.items()]
    # with n jobs on GPUs GPUs the k-th start can come at the (k - GPUs)-th end or its submission, whichever is later
    in_order, free = sorted(starts.values()), [0.0] * GPUS + sorted(ends.values())
    gaps = [s - max(f, t) for s, f, t in zip(in_order, free, sorted(submitted.values()), strict=False)]
    return {
        "seconds": round(max(ends.values()) - began, 1),
        "gap_median_s": round(statistics.median(gaps), 2),
        "gap_longest_s": round(max(gaps), 1),
        "wait_mean_s": round(statistics.mean(first), 1),
    }


def waits_for_growth(cluster: SlurmCluster) -> dict[str, Any]:
    """A plain job beside one that has grown over the node."""
    job_id = light_job.submit(cluster, gpus=2, directive=f"min_gpus=1 max_gpus={GPUS}")
    cluster.wait_for(lambda: sizes(cluster, job_id) == [GPUS], 600, "its growth")
    until_steps(cluster, job_id, timeout_s=300)
    began = time.time()
    cluster.run("salloc", "--gres=gpu:2", "date", timeout_s=600)
    return {"salloc_s": round(time.time() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--epoch", type=float, default=5)
    parser.add_argument("--line", default="max_gpus=4")
    parser.add_argument("--only", default="plain,fixed,line")
    parser.add_argument("--salloc", action="store_true")
    parser.add_argument("--log", action="store_true", help="print what the daemon logged")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = python_path()  # light jobs are of this tree
    lines = {"plain": "", "fixed": "#SYNERGY resize=no", "line": f"#SYNERGY {given.line}"}
    result: dict[str, Any] = {}
    with make_cluster([NodeGroup("a100", 1, GPUS)], epoch_s=given.epoch) as cluster, synergyd(cluster) as daemon:
        cluster.wait_for((cluster.state_dir / "heartbeat").exists, 60, "the daemon's first epoch")
        if given.salloc:
            result = waits_for_growth(cluster)
        for name in () if given.salloc else given.only.split(","):
            result[name] = queue(cluster, lines[name], given.jobs, given.seconds)
            if not given.json:
                print(name, result[name], flush=True)
        result["log"] = daemon.tail(400) if given.log else ""
    if given.log:
        print(result.pop("log"))
    if given.json or given.salloc:
        print(json.dumps({"epoch_s": given.epoch, **result}))


if __name__ == "__main__":
    main()
