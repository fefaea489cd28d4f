"""Reading: what one epoch's reads of jobs and nodes take with a long queue, by each reader that is here.

    python -m tests.benchmarks.reading [--jobs 10000] [--times 5]
    python -m tests.throwaway.other_slurm 24.11 .venv/bin/python -m tests.benchmarks.reading

A throwaway cluster of 8 nodes x 8 GPUs and `--jobs` single batch jobs that wait, each of its own sbatch. Each read is in a new process
of the reader, as after a daemon's start: seconds are of its reads alone. Its own CPU (its commands' included, slurmctld's not)
says more on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from tests.benchmarks.polling import submit
from tests.integration.test_slurm_backends import available, gpus_counted, read_raw
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster


def measure(cluster: SlurmCluster, backend: str, jobs: int, times: int) -> str:
    """One line: the reader, Slurm's release, seconds of the reads. Raises RuntimeError where it does not give all rows."""
    seconds: dict[str, list[float]] = {"jobs": [], "nodes": []}
    cpu_s: list[float] = []
    version = ""
    for _ in range(times):
        raw = read_raw(cluster, backend)
        version = raw["version"]
        for what, count in (("jobs", jobs), ("nodes", len(cluster.node_names))):
            if len(raw[what]) != count:
                raise RuntimeError(f"{backend}: {len(raw[what])} {what}, there are {count}")
            seconds[what].append(raw["seconds"][what])
        cpu_s.append(sum(raw["cpu_seconds"][what] for what in seconds))
    both = [a + b for a, b in zip(*seconds.values(), strict=True)]
    jobs_s, nodes_s = (statistics.median(s) for s in seconds.values())
    own_s = statistics.median(cpu_s)
    return (
        f"Slurm {version}, {backend}: {jobs} jobs {jobs_s:.2f} s, {len(cluster.node_names)} nodes {nodes_s:.2f} s; "
        f"both: median {statistics.median(both):.2f} s, longest {max(both):.2f} s of {times}; the reader's own CPU {own_s:.2f} s"
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.reading")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args(argv)
    if not 1 <= options.jobs <= 19_000 or options.times < 1:
        parser.error("--jobs takes 1 to 19000, --times 1 or more")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        with SlurmCluster([NodeGroup("a100", 8, 8)], accounting=gpus_counted()) as cluster:
            _, took_s = submit(cluster, options.jobs, 0)
            print(f"{options.jobs} jobs queued in {took_s:.0f} s; load {os.getloadavg()[0]:.1f}", flush=True)
            for backend in available():
                print(measure(cluster, backend, options.jobs, options.times), flush=True)
    except MissingProgram as error:
        print(f"reading: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
