"""Forecasts of starts against `squeue --start`, at the same moments of a real throwaway cluster.

    python -m tests.benchmarks.start_times_slurm [--jobs 200] [--minutes 12] [--seed 1] [--json FILE]

4 nodes of 8 GPUs; programs of seconds to a minute under limits of 2 to 20 minutes, first a backlog, then one job each few seconds. The
first quarter of the jobs is for learning: nothing is known of any program before. The queue is read as the daemon reads it; each 10 s
its thread's work is done, and `squeue --start` is asked. The errors of both are of the jobs and moments for which both say a time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from synergy_core.expected import Expected

from synergyd.daemon.queue_look import QueueLook
from synergyd.daemon.start_keeper import StartKeeper
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.parsed.rows import PartitionRow
from synergyd.store.store import open_store
from tests.throwaway.slurm import NodeGroup, SlurmCluster

LOOK_S = 10.0


@dataclass(frozen=True)
class Moment:
    """What both said of one job at one time."""

    at_s: float
    job_id: int
    ours: Expected | None
    slurms_s: float | None


def submit(cluster: SlurmCluster, draw: random.Random, number: int) -> int:
    """Submit a job of one of eight programs, and return its id."""
    kind = draw.randrange(8)
    median_s, gpus, minutes = (8, 15, 25, 40)[kind % 4], (1, 2, 4, 8, 16)[kind % 5], (2, 5, 10, 20)[(kind // 2) % 4]
    seconds = max(2.0, min(median_s * draw.lognormvariate(0, 0.4), 60.0 * minutes - 5))
    nodes, each = max(1, gpus // 8), min(8, gpus)
    options = f"--nodes={nodes} --gres=gpu:{each} --time={minutes} --output=/dev/null -J prog{kind}x{number}"
    script = f"#!/bin/bash\n#SBATCH {options}\nsleep {seconds:.1f}\n"
    return cluster.sbatch(script)


def _seconds(cluster: SlurmCluster) -> dict[str, str]:
    return {**cluster.env, "SLURM_TIME_FORMAT": "%s"}


def slurms_starts(cluster: SlurmCluster) -> dict[int, float]:
    """Return what `squeue --start` says, seconds since 1970 by job."""
    text = cluster.run("squeue", "--start", "-a", "-h", "-o", "%A|%S", env=_seconds(cluster)).stdout
    pairs = (line.split("|") for line in text.splitlines())
    return {int(job): float(start) for job, start in pairs if start.isdecimal()}


def true_starts(cluster: SlurmCluster) -> dict[int, float]:
    """Return the starts of all jobs that Slurm remembers."""
    states = "RUNNING,COMPLETING,COMPLETED,FAILED,TIMEOUT"
    text = cluster.run("squeue", "-a", "-h", "-t", states, "-o", "%A|%S", env=_seconds(cluster)).stdout
    pairs = (line.split("|") for line in text.splitlines())
    return {int(job): float(start) for job, start in pairs if start.isdecimal()}


def measure(jobs: int, minutes: float, seed: int) -> dict[str, object]:
    """Return the errors of both, in seconds."""
    draw = random.Random(seed)
    moments: list[Moment] = []
    starts: dict[int, float] = {}
    took_s: list[float] = []
    with SlurmCluster((NodeGroup("a100", 4, 8),)) as cluster:
        line = CommandLine(cluster.env)
        url = f"sqlite:///{cluster.folder}/starts.db"
        with open_store(url, create=True) as store:
            keeper = StartKeeper(lambda: store, line.past_runs)
            keeper.close()  # its work is done here, in step with the looks
            known = [submit(cluster, draw, n) for n in range(jobs // 4)]
            slurms, partitions = dict[int, float](), dict[str, PartitionRow]()
            end_s, next_s = time.monotonic() + 60 * minutes, time.monotonic()
            while time.monotonic() < end_s and (len(known) < jobs or set(known) - starts.keys()):
                if len(known) < jobs:
                    known.append(submit(cluster, draw, len(known)))
                starts |= true_starts(cluster)
                is_due = time.monotonic() >= next_s
                if is_due:
                    next_s = time.monotonic() + LOOK_S
                    slurms = slurms_starts(cluster)
                    partitions = {p.name: p for p in line.partitions()}
                at_s = time.time()
                began = time.perf_counter()
                keeper._rest_until = 0.0 if is_due else math.inf  # in between it learns, as often as a daemon does
                keeper.take(store, QueueLook(at_s=at_s, rows=line.jobs(), nodes=line.nodes(), partitions=partitions))
                if not is_due:
                    time.sleep(0.5)
                    continue
                took_s.append(time.perf_counter() - began)
                stored = store.expected()
                for job in stored.jobs if stored else ():
                    if job.state == "PENDING":
                        moments.append(Moment(at_s, job.job_id, job.start, slurms.get(job.job_id)))
            starts |= true_starts(cluster)
    learnt = sorted(known)[jobs // 4]
    settled = [(m, starts[m.job_id]) for m in moments if starts.get(m.job_id, 0.0) > m.at_s and m.job_id >= learnt]
    both = [(m.ours, m.slurms_s, true_s) for m, true_s in settled if m.ours is not None and m.slurms_s is not None]
    own = [(m.ours, true_s) for m, true_s in settled if m.ours is not None]
    return {
        "jobs": len(known),
        "moments": len(settled),
        "both_say_a_time": len(both),
        "median_wait_s": round(statistics.median(true_s - m.at_s for m, true_s in settled), 1),
        "our_median_error_s": round(statistics.median(abs(ours.middle_s - t) for ours, _, t in both), 1),
        "squeue_median_error_s": round(statistics.median(abs(slurms - t) for _, slurms, t in both), 1),
        "held": round(sum(o.low_s - 1 <= t <= o.high_s + 1 for o, t in own) / len(own), 3),
        "below": round(sum(t < o.low_s - 1 for o, t in own) / len(own), 3),
        "above": round(sum(t > o.high_s + 1 for o, t in own) / len(own), 3),
        "median_width_s": round(statistics.median(o.high_s - o.low_s for o, _ in own), 1),
        "look_and_forecast_s": round(statistics.fmean(took_s), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    row = measure(options.jobs, options.minutes, options.seed)
    print(json.dumps(row))
    if options.json:
        options.json.write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
