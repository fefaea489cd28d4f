"""Single failures of a job on several nodes, for `ettr`: how they are made, and what is measured of each."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass

from tests.benchmarks.downtime import Line
from tests.integration.test_in_place import last_step, shown, steps
from tests.throwaway.power import power_off, power_on
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.torch_job import CHECKPOINT_EVERY, nodes_of, output, rank_on, submit

NODES = 4
KINDS = ("killed", "stopped", "node")
WAYS = ("in place", "requeue")
LIMIT_S = 90.0  # for a new step after a failure
START_S = 240.0
STEPS_BEFORE = 25  # trained before the failure: past the first steps, and in the middle between two checkpoints
# what a launcher says when it has noticed a failure
NOTICED = re.compile(r"was the first to fail|lost: started again|lost: waits for Slurm|started again in place")
# a plain script's own answer to a failure
REQUEUES = '[ $? -eq 0 ] || scontrol requeue "$SLURM_JOB_ID"\n'


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One failure. Seconds count from it; None: not within `LIMIT_S`."""

    kind: str
    way: str
    noticed_s: float | None
    #: to the first step afterwards
    step_s: float | None
    #: to the first step that had not been trained before
    new_step_s: float | None
    #: steps trained twice
    repeated: int
    #: steps that nothing has trained
    lost: int
    #: largest difference of the losses of a step that was trained twice
    apart: float

    @property
    def cost_s(self) -> float:
        """Return the seconds without a new step, at least."""
        return LIMIT_S if self.new_step_s is None else self.new_step_s

    def line(self) -> str:
        """Return the row for a terminal."""

        def text(seconds: float | None) -> str:
            return f"{seconds:5.1f} s" if seconds is not None else f"> {LIMIT_S:.0f} s"

        return (
            f"{self.kind:8}{self.way:9} noticed {text(self.noticed_s)}, trains {text(self.step_s)}, new step {text(self.new_step_s)}, "
            f"{self.repeated} repeated, {self.lost} lost, losses {self.apart:.1e} apart"
        )


def make_failure(cluster: SlurmCluster, job: int, kind: str, node: str) -> None:
    """Make a failure of `kind` on `node`. Raises LookupError where no rank runs there."""
    if kind == "node":
        power_off(cluster, node)
        return
    os.kill(rank_on(cluster, job, node), signal.SIGKILL if kind == "killed" else signal.SIGSTOP)


def restore(cluster: SlurmCluster, job: int, lost: set[str]) -> None:
    """End the job and bring its nodes back."""
    cluster.run("scancel", str(job), check=False)
    if lost:
        power_on(cluster, *sorted(lost))

    def idle() -> bool:
        return cluster.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.split() == cluster.node_names

    cluster.wait_for(idle, START_S, "idle nodes")


def measure(cluster: SlurmCluster, kind: str, way: str) -> Cost:
    """Run a job, make the failure and measure what follows."""
    in_place = way == "in place"
    before = "" if in_place else "export SYNERGY_IN_PLACE=0\n"
    job = submit(cluster, NODES, before=before, after="" if in_place else REQUEUES, options=("--requeue",))
    cluster.wait_for(lambda: last_step(cluster, job).get("step", 0) >= STEPS_BEFORE, START_S, "steps")
    node = nodes_of(cluster, job)[2]
    said = len(output(cluster, job))
    begun_s = time.time()
    make_failure(cluster, job, kind, node)
    noticed_s = None
    time.sleep(0.05)
    reached = int(last_step(cluster, job)["step"])
    while time.time() < begun_s + LIMIT_S and int(last_step(cluster, job)["step"]) <= reached + 1:
        if noticed_s is None and _is_noticed(cluster, job, said):
            noticed_s = round(time.time() - begun_s, 1)
        time.sleep(0.05)
    log = steps(cluster, job)
    restore(cluster, job, {node} if kind == "node" else set())
    return evaluate(log, begun_s, kind, way, noticed_s)


def _is_noticed(cluster: SlurmCluster, job: int, said: int) -> bool:
    """Return whether a launcher has said something behind the first `said` characters, or Slurm has taken the job off its nodes."""
    if NOTICED.search(output(cluster, job), said):
        return True
    return cluster.state(job) not in ("RUNNING", "?") or shown(cluster, job, "Restarts") != "0"


def evaluate(log: list[Line], begun_s: float, kind: str, way: str, noticed_s: float | None) -> Cost:
    """Return the cost of a failure at `begun_s` from the job's step log."""
    again = next((i for i in range(1, len(log)) if log[i]["step"] != log[i - 1]["step"] + 1), None)
    if again is None and kind != "stopped":  # nothing to repeat
        again = next((i for i in range(1, len(log)) if log[i]["time"] - log[i - 1]["time"] > CHECKPOINT_EVERY), None)
    if again is None:
        return Cost(
            kind=kind, way=way, noticed_s=noticed_s, step_s=None, new_step_s=None, repeated=0, lost=0, apart=0.0
        )
    earlier = {line["step"]: line["loss"] for line in log[:again]}
    reached = max(earlier)
    new = next((line for line in log[again:] if line["step"] > reached), None)
    later = {line["step"]: line["loss"] for line in log[again:]}
    twice = sorted(earlier.keys() & later.keys())
    everything = earlier.keys() | later.keys()
    return Cost(
        kind=kind,
        way=way,
        noticed_s=noticed_s,
        step_s=round(log[again]["time"] - begun_s, 1),
        new_step_s=round(new["time"] - begun_s, 1) if new is not None else None,
        repeated=len(twice),
        lost=max(everything) - len(everything),
        apart=max((abs(earlier[n] - later[n]) for n in twice), default=0.0),
    )
