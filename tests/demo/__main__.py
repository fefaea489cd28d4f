"""`make demo`: see tests/demo/__init__.py. Exits non-zero if anything it claims did not happen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.demo.jobs import FIRST, FOURTH, FOURTH_STEPS, DemoJob, submit, work_folder
from tests.demo.story import Leg, faults, grew, legs, shrank
from tests.throwaway.slurm import MissingProgram, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

EPOCH_S = 4
# What eight processes on two cores get: an admin would measure and write such a line for a GPU type of their own.
FIGURES = "#SYNERGY GpuType=cpu peak_tflops=0.002 memory_gib=4 bandwidth_gbs=10 intra_gbs=1 inter_gbs=1"
LARGEST_JUMP = 1.0  # of the mean loss of a few steps before and after; untrained it is 2 to 3 higher
STAGES = ("three jobs train", "a fourth arrives", "GPUs shift", "it ends", "the others grow", "they train on")


class Demo:
    """One run; `claims` collects what was seen to happen."""

    def __init__(self, cluster: SlurmCluster, console: Console, progress: Progress, task: TaskID) -> None:
        self.cluster, self.console, self.progress, self.task = cluster, console, progress, task
        self.jobs: dict[int, DemoJob] = {}
        self._shown: object = None

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """synergyctl, as a user runs it."""
        # eight ranks that import torch at once leave it 1 s of two cores in 60 (measured)
        return self.cluster.run("synergyctl", *words, check=False, timeout_s=240)

    def status(self) -> list[dict[str, Any]]:
        """The jobs that `synergyctl status --json` lists; prints the table when sizes or states have changed."""
        done = self.ctl("status", "--json")
        rows: list[dict[str, Any]] = json.loads(done.stdout)["jobs"] if done.returncode == 0 else []
        shown = [(r["job_id"], r["lifecycle"], r["gpus"], r["plan"]) for r in rows]
        if rows and shown != self._shown:
            self._shown = shown
            self.console.print(self.ctl("status").stdout, markup=False, highlight=False)
        return rows

    def submit(self, job: DemoJob) -> int:
        job_id = submit(self.cluster, job)
        self.jobs[job_id] = job
        self.console.print(f"sbatch: job {job_id}, {job.name}: #SYNERGY {job.directive}", highlight=False)
        return job_id

    def legs(self, job_id: int) -> list[Leg]:
        return legs(work_folder(self.cluster, self.jobs[job_id]) / "checkpoints" / "steps.jsonl")

    def wait(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Waits, showing status as it changes; SystemExit(1) when time is up."""
        self.progress.update(self.task, description=what)
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                self.fail(f"did not happen within {timeout_s:.0f} s: {what}")
            self.status()
            time.sleep(1.0)
        self.progress.advance(self.task)

    def fail(self, text: str) -> None:
        """Prints what is known, the reason last, and ends the demo."""
        self.progress.stop()
        for job_id, job in self.jobs.items():
            self.console.print(self.ctl("explain", str(job_id)).stdout, markup=False, highlight=False)
            output = work_folder(self.cluster, job) / "output"
            self.console.print(_tail(output, 8), markup=False, highlight=False)
        self.console.print(_tail(self.cluster.folder / "log" / "synergyd.log"), markup=False, highlight=False)
        self.console.print(f"FAILED: {text}", style="bold red", markup=False)
        raise SystemExit(1)


def play(demo: Demo) -> None:
    """The story. Raises SystemExit(1) when it does not happen."""
    first = [demo.submit(job) for job in FIRST]
    demo.wait(STAGES[0], lambda: all(_trained(demo, i, 8) for i in first), 150)
    fourth = demo.submit(FOURTH)
    demo.wait(STAGES[1], lambda: _trained(demo, fourth, 3), 120)
    demo.wait(STAGES[2], lambda: any(shrank(demo.legs(i)) for i in first), 90)
    demo.console.print(demo.ctl("explain", str(first[0])).stdout, markup=False, highlight=False)
    demo.wait(STAGES[3], lambda: demo.cluster.state(fourth) in ("", "COMPLETED"), 120)
    demo.wait(STAGES[4], lambda: any(grew(demo.legs(i)) for i in first), 120)
    marks = {i: demo.legs(i)[-1].last_step for i in first}
    demo.wait(STAGES[5], lambda: all(demo.legs(i)[-1].last_step > marks[i] + 5 for i in first), 60)
    demo.progress.stop()
    check(demo, first, fourth)


def check(demo: Demo, first: list[int], fourth: int) -> None:
    """Prints the closing table and checks every claim against the step logs and Slurm."""
    runs = {job_id: demo.legs(job_id) for job_id in demo.jobs}
    made = Table(title="what happened", title_justify="left")
    for name in ("JOB", "NAME", "PLANS (tp,pp,dp)", "RESTARTS", "LOSS BEFORE -> AFTER EACH RESIZE"):
        made.add_column(name)
    for job_id, run in runs.items():
        changes = ", ".join(f"{a.last_loss:.4f} -> {b.first_loss:.4f}" for a, b in pairwise(run))
        made.add_row(str(job_id), demo.jobs[job_id].name, " ".join(map(str, run)), str(len(run) - 1), changes or "-")
    demo.console.print(made)
    wrong = [text for i, run in runs.items() for text in faults(demo.jobs[i].name, run, LARGEST_JUMP)]
    stories = {i: json.loads(demo.ctl("explain", str(i), "--json").stdout) for i in first}
    wrong += [
        f"{demo.jobs[i].name}: resized without its checkpoint acknowledged"
        for i, told in stories.items()
        if any("no checkpoint acknowledged" in e["detail"] for e in told["story"])
    ]
    if not any(len({(leg.tp, leg.pp) for leg in run}) > 1 for run in runs.values()):
        wrong.append("no job changed tp or pp")
    if not any(len({leg.dp for leg in run}) > 1 for run in runs.values()):
        wrong.append("no job changed dp")
    if runs[fourth][-1].last_step != FOURTH_STEPS:
        wrong.append(f"the fourth job ended at step {runs[fourth][-1].last_step} of {FOURTH_STEPS}")
    if wrong:
        demo.fail("; ".join(wrong))
    demo.console.print(
        "every claim was checked against the step logs: no step lost or repeated, no loss jumped", style="green"
    )


def show(cluster: SlurmCluster, console: Console) -> None:
    """Starts the daemon and plays."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with synergyd(cluster):
        console.print(f"a Slurm cluster of 2 nodes x 4 (pretended) GPUs in {cluster.folder}", highlight=False)
        cluster.wait_for((cluster.state_dir / "heartbeat").exists, 120, "the daemon's first epoch")
        with Progress(*columns, console=console, disable=not sys.stdout.isatty()) as progress:
            play(Demo(cluster, console, progress, progress.add_task("starting", total=len(STAGES))))


def main() -> int:
    """Sets the cluster and the daemon up, plays, takes everything down."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    console = Console(width=None if sys.stdout.isatty() else 160)
    began = time.monotonic()
    try:
        with make_cluster(epoch_s=EPOCH_S, settings=[FIGURES]) as cluster:
            # their programs have run before: the first run of one starts as its script says
            jobs = (*FIRST, FOURTH)
            remember_programs(cluster, {j.name: j.script(work_folder(cluster, j) / "checkpoints") for j in jobs})
            show(cluster, console)
    except MissingProgram as error:
        console.print(f"make demo: {error}", markup=False)
        return 1
    console.print(f"took {time.monotonic() - began:.0f} s", highlight=False)
    return 0


def _trained(demo: Demo, job_id: int, steps: int) -> bool:
    run = demo.legs(job_id)
    return bool(run) and run[-1].last_step - run[-1].first_step + 1 >= steps


def _tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
