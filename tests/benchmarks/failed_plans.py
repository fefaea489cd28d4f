"""Jobs that fail in every way and at every point, on a real cluster: do they end as they should, and how soon do they train again?

    python -m tests.benchmarks.failed_plans [--kinds exit,memory,...] [--states start,first,...] [--at-once 4] [--json FILE]

Each job runs under a plan that Synergy chose. `start`, `first`, `checkpoint`: it fails before its first step, at the third, or while
its first checkpoint is written, and is started again in place with its own arguments. `other`: the same at the start, where the
size was Synergy's too: a requeue with its own. `mid`: it fails once after 25 steps: in place, from its last checkpoint. `node`:
its node loses its power. `rank`: one of two nodes fails at the start. A job passes where it trains on, as RUNNING, with the
restart count that is said here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from synergyd.daemon import heartbeat
from tests.benchmarks.downtime import steps, wait
from tests.throwaway import failing_job, light_job
from tests.throwaway.power import power_off, set_down
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster
from tests.throwaway.synergy import explain, make_cluster, synergyd

OWN_SIZE, MORE_NODES = "min_gpus=4 max_gpus=4 tp=1 pp=1", "min_gpus=8 max_gpus=8 tp=1 pp=1"
#: restart count of Slurm that is said, by state
STATES = {"start": 0, "first": 0, "checkpoint": 0, "mid": 0, "other": 1, "rank": 1}
NODE_STATES = ("first", "mid")  # of a lost node
LIMIT_S = 150.0
# a run that stops making steps after its first is a hang of HangTimeout, which is off
LEFT_OUT = {("hang", "first"), ("hang", "checkpoint"), ("hang", "mid")}


@dataclass
class Run:
    """One job. `seconds`: from its failure to its next step; None where there was none."""

    kind: str
    state: str
    job_id: int
    log: Path
    failed_s: float | None = None
    seconds: float | None = None
    problem: str = "no failure"

    def look(self, cluster: SlurmCluster) -> bool:
        """Is it over?"""
        if self.failed_s is None and self.kind == "node":
            self._end_node(cluster)
        elif self.failed_s is None:
            found = re.search(r"fails at ([0-9.]+)", light_job.output(cluster, self.job_id))
            self.failed_s = float(found[1]) if found else None
        if self.failed_s is None:
            return False
        # another node's processes may make steps for a moment yet
        after = [s for s in steps(self.log) if s["time"] > self.failed_s and s["restarts"] == self._said]
        if len(after) < 2:
            self.problem = "no step since"
            return cluster.state(self.job_id) in ("FAILED", "CANCELLED", "NODE_FAIL", "COMPLETED", "OUT_OF_MEMORY")
        self.seconds = after[0]["time"] - self.failed_s
        self.problem = self._problem(cluster)
        return True

    def _end_node(self, cluster: SlurmCluster) -> None:
        made = [s["step"] for s in steps(self.log)]
        if not made or made[-1] < (failing_job.MID if self.state == "mid" else failing_job.FIRST):
            return
        name = cluster.run("squeue", "-h", "-j", str(self.job_id), "-o", "%N").stdout.strip()
        power_off(cluster, name)
        self.failed_s = set_down(cluster, name)  # as after SlurmdTimeout

    @property
    def _said(self) -> int:
        """The restart count that is said."""
        return 1 if self.kind == "node" else STATES[self.state]

    def _problem(self, cluster: SlurmCluster) -> str:
        text = cluster.run("scontrol", "show", "job", str(self.job_id)).stdout
        restarts, state = re.search(r"\bRestarts=(\d+)", text), cluster.state(self.job_id)
        if state != "RUNNING":
            return state
        if restarts is None or int(restarts[1]) != self._said:
            return f"restart count {restarts[1] if restarts else '?'}, not {self._said}"
        return ""


def submit(cluster: SlurmCluster, kind: str, state: str) -> Run:
    before = f"export FAILS={kind} FAILS_AT={state if state in STATES and STATES[state] == 0 else 'start'}"
    before += " SYNERGY_FIRST_STEP_S=4 CHECKPOINT_EVERY=5"
    before += " FAILS_ON=1\n" if state == "rank" else "\n"
    name, gpus = f"{kind}-{state}", 2 if state == "other" else 4
    script = Path(failing_job.__file__) if kind != "node" else Path(light_job.__file__)
    directive = MORE_NODES if state == "rank" else OWN_SIZE
    job_id = light_job.submit(cluster, name, gpus=gpus, directive=directive, script=script, before=before)
    text = cluster.run("scontrol", "write", "batch_script", str(job_id), "-").stdout
    folder = re.search(r"checkpoint=(\S+)", text)
    assert folder is not None
    return Run(kind, state, job_id, Path(folder[1]) / "steps.jsonl")


def cases(kinds: Sequence[str], states: Sequence[str]) -> list[tuple[str, str]]:
    every = [(kind, state) for kind in kinds if kind != "node" for state in states if (kind, state) not in LEFT_OUT]
    return every + [("node", state) for state in NODE_STATES if "node" in kinds and state in states]


def measure(some: Sequence[tuple[str, str]], at_once: int) -> list[Run]:
    waiting, running, done = list(some), list[Run](), list[Run]()
    with (
        make_cluster([NodeGroup("cpu", 2 * at_once + len(NODE_STATES), 4)], epoch_s=1) as cluster,
        synergyd(cluster) as daemon,
    ):
        wait("the daemon's heartbeat", (cluster.state_dir / heartbeat.NAME).exists, 120)
        until: dict[int, float] = {}
        while waiting or running:
            while waiting and len(running) < at_once:
                run = submit(cluster, *waiting.pop(0))
                running.append(run)
                until[run.job_id] = time.monotonic() + LIMIT_S
            for run in list(running):
                if run.look(cluster) or time.monotonic() > until[run.job_id]:
                    running.remove(run)
                    done.append(run)
                    print(row(run), flush=True)
                    if run.problem:
                        print([e["detail"] for e in explain(cluster, run.job_id)["story"]], file=sys.stderr)
                        print(light_job.output(cluster, run.job_id)[-1500:], daemon.tail(5), file=sys.stderr)
                    cluster.run("scancel", str(run.job_id))
            time.sleep(0.3)
    return done


def row(run: Run) -> str:
    seconds = "-" if run.seconds is None else f"{run.seconds:.1f}"
    return f"{run.kind:<14} {run.state:<12} {seconds:>8}  {run.problem or 'as said'}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join((*failing_job.KINDS, "node")), help="default: all")
    parser.add_argument("--states", default=",".join(STATES), help="default: all")
    parser.add_argument("--at-once", type=int, default=4, help="jobs (default %(default)s)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    kinds, states = args.kinds.split(","), args.states.split(",")
    if not {*kinds} <= {*failing_job.KINDS, "node"} or not {*states} <= {*STATES} or args.at_once < 1:
        parser.error(f"kinds are {', '.join((*failing_job.KINDS, 'node'))}; states {', '.join(STATES)}")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # a benchmark that is stopped takes its cluster and processes down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"{'kind':<14} {'state':<12} {'seconds':>8}")
    try:
        found = measure(cases(kinds, states), args.at_once)
    except (MissingProgram, RuntimeError) as error:
        print(f"failed_plans: {error}", file=sys.stderr)
        return 1
    wrong = [run for run in found if run.problem]
    print(f"{len(found) - len(wrong)} of {len(found)} as said")
    if args.json:
        args.json.write_text(json.dumps([asdict(run) | {"log": str(run.log)} for run in found], indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
