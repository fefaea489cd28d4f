"""Standstill of changes of a running job's nodes, without a requeue, beside the floor of the same run by hand.

    python -m tests.benchmarks.live [--job light|gpt] [--rounds 5] [--json]

A job runs on a real cluster under the daemon. Rivals that ask for whole nodes come and go, so that nodes leave the job and join it:
`light` (it only pretends to train; a checkpoint of a few bytes) on 2 -> 3 -> 1 -> 2 nodes, `gpt` (a small GPT on megatron-core and
gloo) on 2 -> 1 -> 2. All nodes are this machine.

How to read it: the standstill is from the last step before a change to the first step after it, from the job's own step log. The
floor of `gpt` is the same change by hand, with torchrun and without Slurm: SIGTERM (it saves), its end, a start with the other plan,
its first step. `light` has no floor of its own: its processes take 0.1 s to start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks.downtime import FIGURES, by_hand, steps
from tests.demo.jobs import GPT, DemoJob, submit, work_folder
from tests.integration.daemon_site import story, until_beat
from tests.integration.test_in_place import folder_of
from tests.throwaway import light_job
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

GPUS = 2  # of each node
#: a batch of four on two or four GPUs; the same arguments as `downtime` measures by hand
GPT_JOB = DemoJob("live-gpt", GPT, GPUS, f"min_gpus={GPUS} max_gpus={2 * GPUS} global_batch=4 micro_batch=1",
                  ("--steps", "100000", "--global-batch", "4", "--step-delay", "0.2"), 128, 128)  # fmt: skip
NODES = {"light": (2, 3, 1, 2), "gpt": (2, 1, 2)}
CHANGE_S = 240
STEPS_BETWEEN = 12

Line = dict[str, Any]


class Rivals:
    """Jobs that hold whole nodes, so that the job under test has the others."""

    def __init__(self, cluster: SlurmCluster, nodes: int) -> None:
        self._cluster, self._nodes, self._held = cluster, nodes, dict[int, int]()

    def leave(self, nodes: int) -> None:
        """Have the job under test run on `nodes` nodes."""
        wanted = self._nodes - nodes
        for job, size in sorted(self._held.items(), key=lambda each: -each[1]):
            if sum(self._held.values()) > wanted:
                self._cluster.run("scancel", str(job))
                del self._held[job]
                wanted_here = min(size, wanted - sum(self._held.values()))
                if wanted_here < size and wanted_here > 0:
                    self._submit(wanted_here)
        missing = wanted - sum(self._held.values())
        for _ in range(missing):
            self._submit(1)

    def _submit(self, nodes: int) -> None:
        size = f"min_gpus={nodes * GPUS} max_gpus={nodes * GPUS} weight=8 resize=no"
        job = light_job.submit(self._cluster, "small", gpus=GPUS, directive=size, options=(f"--nodes={nodes}",))
        self._held[job] = nodes


@contextmanager
def running(kind: str) -> Iterator[tuple[SlurmCluster, int, Path, Rivals]]:
    """A cluster with the job on it: yields it, the job, its step log and the rivals."""
    first, most = NODES[kind][0], max(NODES[kind])
    with make_cluster([NodeGroup("cpu", most, GPUS)], epoch_s=1, settings=[FIGURES]) as cluster:
        config = work_folder(cluster, GPT_JOB) / "config.json"
        line = f"#SYNERGY model={config} {GPT_JOB.directive}\n"
        remember_programs(cluster, {GPT_JOB.name: line}, light_jobs=("wide", "small"))
        with synergyd(cluster) as daemon:
            until_beat(cluster)
            rivals = Rivals(cluster, most)
            try:
                if kind == "gpt":
                    job = submit(cluster, GPT_JOB, f"--nodes={first}")
                    log = work_folder(cluster, GPT_JOB) / "checkpoints" / "steps.jsonl"
                else:
                    size = f"min_gpus={GPUS} max_gpus={most * GPUS} global_batch=24"  # which 2, 4 and 6 GPUs divide
                    job = light_job.submit(
                        cluster, "wide", gpus=GPUS, directive=size, options=(f"--nodes={first}",),
                        before="export CHECKPOINT_EVERY=50\n",
                    )  # fmt: skip
                    log = folder_of(cluster, job) / "steps.jsonl"
                yield cluster, job, log, rivals
            except RuntimeError:
                print(story(cluster, job), daemon.tail(), sep="\n", file=sys.stderr)
                raise


def gpus_of(line: Line) -> int:
    return int(line.get("tp", 1)) * int(line.get("pp", 1)) * int(line["dp"])


def under_the_daemon(kind: str, rounds: int, say: Callable[[str], None]) -> tuple[list[Line], str]:
    """Return each change (nodes before and after, seconds without a step, the plans) and the job's Restarts."""
    path = NODES[kind]
    sizes = [path[0], *(n for _ in range(rounds) for n in path[1:])]
    with running(kind) as (cluster, job, log, rivals):

        def trains_on(nodes: int) -> bool:
            lines = steps(log)
            return len(lines) > STEPS_BETWEEN and all(gpus_of(x) == nodes * GPUS for x in lines[-STEPS_BETWEEN:])

        for nodes in sizes:
            rivals.leave(nodes)
            cluster.wait_for(lambda n=nodes: trains_on(n), CHANGE_S, f"steps on {nodes} nodes")  # type: ignore[misc]
            say(f"trains on {nodes} nodes")
        lines = steps(log)
        restarts = cluster.run("scontrol", "show", "job", str(job)).stdout.split("Restarts=")[1].split()[0]
    changes = []
    for before, after in pairwise(lines):
        if gpus_of(before) != gpus_of(after):
            changes.append(
                {
                    "from": gpus_of(before) // GPUS,
                    "to": gpus_of(after) // GPUS,
                    "standstill_s": after["time"] - before["time"],
                    "steps_lost": before["step"] + 1 - after["step"],
                    "plans": [_degrees(before), _degrees(after)],
                }
            )
    return changes, restarts


def _degrees(line: Line) -> tuple[int, int, int]:
    return int(line.get("tp", 1)), int(line.get("pp", 1)), int(line["dp"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=sorted(NODES), default="light", help="which job (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each change is made (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args(argv)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    out = sys.stderr if args.json else sys.stdout

    def say(text: str) -> None:
        print(text, file=out, flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a benchmark that is stopped takes its cluster down
    try:
        changes, restarts = under_the_daemon(args.job, args.rounds, say)
        floor: list[dict[str, float]] = []
        kinds = sorted({(tuple(c["plans"][0]), tuple(c["plans"][1])) for c in changes})
        if args.job == "gpt":
            with tempfile.TemporaryDirectory(prefix="synergy-live-") as folder:
                floor = by_hand(kinds, Path(folder), GPT_JOB)
    except (MissingProgram, RuntimeError) as error:
        print(f"live: {error}", file=sys.stderr)
        return 1
    by_change: dict[str, list[float]] = {}
    for change in changes:
        by_change.setdefault(f"{change['from']} -> {change['to']} nodes", []).append(change["standstill_s"])
    answer = {
        "restarts": int(restarts),
        "steps_lost": sum(c["steps_lost"] for c in changes),
        "median_standstill_s": {name: round(statistics.median(all_s), 2) for name, all_s in by_change.items()},
        "changes": changes,
        "floor": {f"{a} -> {b}": f for (a, b), f in zip(kinds, floor, strict=False)},
    }
    if args.json:
        print(json.dumps(answer))
        return 0
    say(f"Restarts={restarts}; steps lost or repeated: {answer['steps_lost']}")
    for name, all_s in by_change.items():
        figures = ", ".join(f"{s:.1f}" for s in sorted(all_s))
        say(f"{name:<14} median {statistics.median(all_s):5.2f} s of {len(all_s)}: {figures}")
    for (before, after), hand in zip(kinds, floor, strict=False):
        say(f"floor by hand, (tp, pp, dp) {before} -> {after}: {hand['downtime']:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
