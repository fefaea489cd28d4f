"""Time to a target loss on slow links: exact DDP against each way to exchange less, trained for real.

    python -m tests.benchmarks.comm_options [--mbit 1000,100] [--seeds 5] [--steps 160]
                                            [--options exact,local:8,compressed:bf16]
                                            [--json FILE]

Two processes under torchrun on gloo, each in a network namespace with a link of --mbit each way; a byte-level convolutional language
model of 0.54 million parameters (2.2 MB of gradients) on the language reference that every Python has, AdamW, batch 16. The same data
in the same order for all. The target of a seed is the loss on held-out text of its exact run after --steps steps; each other run
ends at its first evaluation (every 8 steps) at or below that, and after 1.5 x --steps steps without one. The first 24 steps are exact.
Needs root and tc.

How to read it: seconds and steps until the target, mean over the seeds +- standard deviation, of the runs that reached it; how many did;
and the ratio of the exact run's seconds to them, seed by seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from synergy_core.exchange import is_removed

from tests.benchmarks.shaped_links import spread
from tests.paths import ROOT, python_path
from tests.throwaway.netns import ShapedNodes, why_not

OPTIONS = "exact,local:8,compressed:bf16"


def measure(mbit: float, options: str, seeds: int, steps: int) -> list[dict[str, Any]]:
    """What each run printed, at this speed. Raises RuntimeError with their output where a process fails."""
    started = []
    with ShapedNodes("com", mbit, 2, 1) as nodes:
        for node in range(2):
            command = [sys.executable, "-m", "synergy_launch.launcher.torchrun", "--nnodes", "2", "--node-rank"]
            command += [str(node), "--nproc-per-node", "1", "--master-addr", nodes.address(0, 0)]
            command += ["--master-port", "29500", "-m", "tests.throwaway.comm_job", "--options", options]
            command += ["--seeds", str(seeds), "--steps", str(steps), "--longest", str(steps * 3 // 2)]
            environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
            environment |= {"GLOO_SOCKET_IFNAME": nodes.interface(0)}
            argv = nodes.command(node, command)
            out = subprocess.PIPE if node == 0 else subprocess.DEVNULL
            started.append(subprocess.Popen(argv, env=environment, stdout=out, text=True, cwd=ROOT))
        found = []
        stream = started[0].stdout
        assert stream is not None
        for line in stream:
            if line.startswith("RUN "):
                found.append(json.loads(line[4:]))
                one = found[-1]
                print(f"{mbit:g} {one['option']} {one['seed']}: {one['evaluations'][-1]}", file=sys.stderr, flush=True)
        if any(process.wait(60) for process in started):
            raise RuntimeError("a process failed: see its output above")
    return found


def to_target(run: dict[str, Any]) -> tuple[float, int] | None:
    """(seconds, steps) until the first evaluation at or below the target."""
    return next(((s, n) for n, s, loss in run["evaluations"] if loss <= run["target"]), None)


def table(mbit: float, runs: list[dict[str, Any]]) -> list[str]:
    """Lines of a Markdown table."""
    exact = {run["seed"]: to_target(run) for run in runs if run["option"] == "exact"}
    lines = []
    for option in dict.fromkeys(run["option"] for run in runs):
        mine = {run["seed"]: to_target(run) for run in runs if run["option"] == option}
        reached = {seed: found for seed, found in mine.items() if found is not None}
        if not reached:
            lines.append(f"| {mbit:g} Mbit/s | {option} | - | - | 0 of {len(mine)} | - |")
            continue
        seconds, counts = zip(*reached.values(), strict=True)
        gains = [first[0] / reached[seed][0] for seed in reached if (first := exact[seed]) is not None]
        lines.append(
            f"| {mbit:g} Mbit/s | {option} | {statistics.fmean(seconds):.1f} ±{spread(seconds):.1f} "
            f"| {statistics.fmean(counts):.0f} ±{spread(counts):.0f} | {len(reached)} of {len(mine)} "
            f"| {statistics.fmean(gains):.2f} ±{spread(gains):.2f} |"
        )
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", default="1000,100")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--options", default=OPTIONS)
    parser.add_argument("--json", type=Path, help="a file for everything that was measured")
    args = parser.parse_args(argv)
    if args.options.split(",")[0] != "exact":
        parser.error("--options: the first one must be exact, whose loss is the target")
    kept = [option for option in args.options.split(",") if not is_removed(option)]
    if len(kept) < len(args.options.split(",")):
        print("--options: what 0.3.0 has removed is left out", file=sys.stderr)
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    print("| Link | Exchange | Seconds to the target | Steps to the target | Reached | Exact's seconds over these |")
    print("| --- | --- | --- | --- | --- | --- |")
    told = {}
    for mbit in map(float, args.mbit.split(",")):
        told[mbit] = measure(mbit, ",".join(kept), args.seeds, args.steps)
        print("\n".join(table(mbit, told[mbit])), flush=True)
    print(f"load: {os.getloadavg()}")
    if args.json:
        args.json.write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
