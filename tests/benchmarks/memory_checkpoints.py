"""What memory checkpoints cost, and what they save when a node is lost, on a real cluster with real processes.

    python -m tests.benchmarks.memory_checkpoints [--times 3] [--hidden 32] [--json]

The job is synergy_launch.examples.ddp under torchrun with gloo on three nodes, all of them this machine. It saves to disk each 300 steps.
200 steps after such a checkpoint a node's slurmd and all that runs on it are killed, the launcher included. `memory` is with
SYNERGY_MEMORY_COPIES=1, `disk` without.

How to read it: seconds from the failure to the first step afterwards and to the first step that had not been trained before; steps trained
twice; how far the losses of the steps that were trained twice lie apart. `cost`: what the run itself has measured of its first memory
checkpoint, the seconds that it held training up, the seconds until it was held on two nodes, and the interval that it chose from them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.ettr_failures import LIMIT_S, START_S, Cost, evaluate, make_failure, restore
from tests.integration.daemon_site import until_beat
from tests.integration.test_in_place import last_step, steps
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd
from tests.throwaway.torch_job import nodes_of, output, submit

NODES = 3
EVERY = 300  # steps between two checkpoints on disk
FAILS_AT = EVERY + 200
STEP_S = 0.1  # added to each step
WAYS = ("memory", "disk")
COST = re.compile(
    r"memory checkpoint of step \d+: training held up for ([0-9.]+) s, held on two nodes after ([0-9.]+) s; the next one after ([0-9]+) s"
)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One lost node, and what the run has said of its first memory checkpoint: seconds held up, until it counts, and between two."""

    way: str
    cost: Cost
    held_s: float | None
    copied_s: float | None
    every_s: float | None
    #: of a step without a failure, in the mean from the first checkpoint on disk on
    step_s: float

    def line(self) -> str:
        """Return the row for a terminal."""
        of = self.cost
        figures = (
            f"held up {self.held_s} s, counts after {self.copied_s} s, every {self.every_s} s"
            if self.held_s is not None
            else ""
        )
        return (
            f"{self.way:7} trains {of.step_s} s, new step {of.new_step_s} s, {of.repeated} repeated, {of.lost} lost, "
            f"losses {of.apart:.1e} apart, step {self.step_s:.4f} s; {figures}"
        )


def measure(cluster: SlurmCluster, way: str, hidden: int) -> Loss:
    """Run a job, take a node from it and measure what follows."""
    before = "export SYNERGY_MEMORY_COPIES=1\n" if way == "memory" else ""
    job = submit(cluster, NODES, step_s=STEP_S, checkpoint_every=EVERY, hidden=hidden, before=before)
    cluster.wait_for(lambda: last_step(cluster, job).get("step", 0) >= FAILS_AT, 2 * START_S, "steps")
    node, begun_s = nodes_of(cluster, job)[1], time.time()
    log = [line for line in steps(cluster, job) if line["step"] > EVERY]
    step_s = (log[-1]["time"] - log[0]["time"]) / (len(log) - 1)
    make_failure(cluster, job, "node", node)
    time.sleep(0.5)
    reached = int(last_step(cluster, job)["step"])
    while time.time() < begun_s + LIMIT_S and int(last_step(cluster, job)["step"]) <= reached + 1:
        time.sleep(0.05)
    said = COST.search(output(cluster, job))
    result = steps(cluster, job)
    restore(cluster, job, {node})
    held_s, copied_s, every_s = (float(number) for number in said.groups()) if said else (None, None, None)
    cost = evaluate(result, begun_s, "node", way, None)
    return Loss(way=way, cost=cost, held_s=held_s, copied_s=copied_s, every_s=every_s, step_s=step_s)


def run(times: int, hidden: int, say: Callable[[str], None]) -> list[Loss]:
    """Measure each way `times` times, in turn."""
    losses = []
    cluster = make_cluster([NodeGroup("cpu", NODES, 1)], epoch_s=1)
    cluster.slurmd_timeout_s = 300
    with cluster, synergyd(cluster):
        until_beat(cluster)
        for _ in range(times):
            for way in WAYS:
                losses.append(measure(cluster, way, hidden))
                say(losses[-1].line())
    return losses


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="lost nodes each way (default %(default)s)")
    parser.add_argument("--hidden", type=int, default=32, help="width of the model (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args(argv)
    if args.times < 1 or args.hidden < 1:
        parser.error("--times and --hidden must be at least 1")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    out = sys.stderr if args.json else sys.stdout
    # a benchmark that is stopped takes its cluster and processes down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        losses = run(args.times, args.hidden, lambda text: print(text, file=out, flush=True))
    except (MissingProgram, RuntimeError) as error:
        print(f"memory_checkpoints: {error}", file=sys.stderr)
        return 1
    for way in WAYS:
        some = [loss for loss in losses if loss.way == way]
        medians = [
            statistics.median(getattr(loss.cost, name) or LIMIT_S for loss in some)
            for name in ("step_s", "new_step_s", "repeated")
        ]
        print(f"{way:7} median: trains {medians[0]} s, new step {medians[1]} s, {medians[2]} repeated", file=out)
    if args.json:
        print(json.dumps([asdict(loss) for loss in losses]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
