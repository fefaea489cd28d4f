"""Downtime of a resize of a real Megatron job under the daemon, split, against what the same steps cost by hand.

    python -m tests.benchmarks.downtime [--resizes 3] [--json]

One GPT on megatron-core runs on a node of 4 (pretended) GPUs. A second job, which only sleeps, asks for two of them and
leaves again, so that the first is shrunk and grown; whole plans change, tp and pp too.

How to read it: seconds between neighbouring moments of each resize, and their median.
  decided -> signalled       the daemon's decision until slurmctld has the request to signal the job (its log)
  signalled -> saved         the job ends its step and writes the checkpoint (the time of its marker file)
  saved -> acknowledged      launcher, munge, report, the daemon's event
  acknowledged -> requeued   scontrol requeue, end of the old processes, seen as pending by the daemon
  requeued -> released       size, nodes and plan set, read back, made eligible
  released -> started        Slurm's scheduler until it has given out the nodes (slurmctld's log)
  started -> first step      prolog, imports of torch, process groups, load, one step
`downtime` is from the last step before to the first step after. The floor is the same job run by hand with torchrun:
SIGTERM (it saves), its end, a start under the other plan, its first step: what no scheduler can save. Between two
machines only the difference `downtime - floor` compares.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from synergy_core.records import Plan

from tests.demo.jobs import GPT, DemoJob, submit, work_folder
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster
from tests.throwaway.synergy import explain, make_cluster, synergyd

FIGURES = "#SYNERGY GpuType=cpu peak_tflops=0.002 memory_gib=4 bandwidth_gbs=10 intra_gbs=1 inter_gbs=1"
BATCH = 2
ARGUMENTS = ("--steps", "100000", "--global-batch", str(BATCH), "--step-delay", "0.2")
# a batch of two on four GPUs leaves no room for dp 4, so a change of size changes tp or pp
JOB = DemoJob("gpt", GPT, 4, f"min_gpus=1 max_gpus=4 global_batch={BATCH} micro_batch=1", ARGUMENTS, 128, 128)
RIVAL = (
    "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:2 -o /dev/null\n"
    "#SYNERGY model=gpt-mini min_gpus=2 max_gpus=2 global_batch=8 weight=8 resize=no\nexec sleep 3600\n"
)
MOMENTS = ("decided", "signalled", "saved", "acknowledged", "requeued", "released", "started", "first step")
STEPS_BEFORE = 8  # trained before each resize

Line = dict[str, Any]


def steps(log: Path) -> list[Line]:
    """The step log; a last line that is half written is left out."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def wait(what: str, condition: Callable[[], object], timeout_s: float) -> None:
    """Raises RuntimeError when time is up."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"did not happen within {timeout_s:.0f} s: {what}")
        time.sleep(0.2)


def plan_of(step: Line) -> tuple[int, int, int]:
    return step["tp"], step["pp"], step["dp"]


class Marks:
    """The marker files of checkpoints, noted as they appear: the job removes old ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved_s: dict[int, float] = {}

    def look(self) -> None:
        for marker in self.folder.glob("step_*/complete"):
            try:
                self.saved_s.setdefault(int(marker.parent.name[5:]), marker.stat().st_mtime)
            except OSError:
                continue  # removed meanwhile


def controller_times(cluster: SlurmCluster, job_id: int, pattern: str) -> list[float]:
    """Seconds since 1970 of the lines of slurmctld's log that match and name the job."""
    found = []
    for line in (cluster.folder / "log" / "slurmctld.log").read_text(errors="replace").splitlines():
        stamped = re.match(r"\[([0-9T:.\-]+)\] ", line)
        if stamped and re.search(pattern, line) and re.search(rf"JobId={job_id}\b", line):
            found.append(datetime.fromisoformat(stamped[1]).timestamp())
    return found


def resizes(cluster: SlurmCluster, job_id: int, log: list[Line], marks: Marks) -> list[dict[str, Any]]:
    """The moments of every resize that is complete."""
    story = explain(cluster, job_id)["story"]
    signals = controller_times(cluster, job_id, "REQUEST_KILL_JOB")
    starts = controller_times(cluster, job_id, r"Allocate JobId|Started JobId")
    found = []
    for before, after in pairwise(log):
        if before["restarts"] == after["restarts"]:
            continue
        span = [e for e in story if e["at_s"] < after["time"]]
        decided_s = max(e["at_s"] for e in span if e["detail"].startswith("resize decided"))

        def at(words: str, span: list[Line] = span, since_s: float = decided_s) -> float:
            return float(next(e["at_s"] for e in span if e["at_s"] >= since_s and e["detail"].startswith(words)))

        released_s = at("released")
        moments = {
            "decided": decided_s,
            "signalled": next((s for s in signals if s >= decided_s - 0.05), decided_s),
            "saved": marks.saved_s[before["step"]],
            "acknowledged": at("checkpoint acknowledged"),
            "requeued": at("requeued"),
            "released": released_s,
            "started": max(s for s in starts if s <= after["time"]),
            "first step": after["time"],
        }
        found.append(
            {
                "from": plan_of(before),
                "to": plan_of(after),
                "downtime": after["time"] - before["time"],
                "split": {f"{a} -> {b}": moments[b] - moments[a] for a, b in pairwise(MOMENTS)},
            }
        )
    return found


def under_the_daemon(count: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Runs the job on a cluster and has it resized `count` times."""
    with make_cluster((NodeGroup("cpu", 1, 4),), epoch_s=3, settings=[FIGURES]) as cluster, synergyd(cluster) as daemon:
        cluster.wait_for((cluster.state_dir / "heartbeat").exists, 30, "the daemon's first epoch")
        job_id = submit(cluster, JOB)
        folder = work_folder(cluster, JOB) / "checkpoints"
        log, marks, rival = folder / "steps.jsonl", Marks(folder), 0

        def trained(restarts: int) -> bool:
            marks.look()
            return len([s for s in steps(log) if s["restarts"] == restarts]) >= STEPS_BEFORE

        try:
            for number in range(count + 1):
                wait(f"{STEPS_BEFORE} steps after restart {number}", lambda n=number: trained(n), 150)  # type: ignore[misc]
                say(f"restart {number}: trains on (tp, pp, dp) = {plan_of(steps(log)[-1])}")
                if number == count:
                    break
                if rival:
                    cluster.run("scancel", str(rival))
                    rival = 0
                else:
                    rival = cluster.sbatch(RIVAL)
            return resizes(cluster, job_id, steps(log), marks)
        except (RuntimeError, StopIteration, ValueError, KeyError):
            print(cluster.run("synergyctl", "explain", str(job_id), check=False).stdout, file=sys.stderr)
            print(daemon.tail(), file=sys.stderr)
            raise


class ByHand:
    """The same job under torchrun, without Slurm and daemon."""

    def __init__(self, folder: Path, degrees: tuple[int, int, int], restarts: int, job: DemoJob = JOB) -> None:
        tp, pp, dp = degrees
        batch = int(job.arguments[job.arguments.index("--global-batch") + 1])
        plan = Plan(tp=tp, pp=pp, dp=dp, micro_batch=1, global_batch=batch)
        run_dir = folder / f"run{restarts}"
        run_dir.mkdir()
        self.log, self.restarts = folder / "checkpoints" / "steps.jsonl", restarts
        (folder / "checkpoints").mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "SYNERGY_PLAN_JSON": json.dumps(asdict(plan)),
            "SYNERGY_RUN_DIR": str(run_dir),
            "SYNERGY_RESTARTS": str(restarts),
            "SYNERGY_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "SYNERGY_STEP_LOG": str(self.log),
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        }
        sizes = ("--hidden", str(job.hidden), "--seq", str(job.seq))
        command = (sys.executable, "-m", "synergy_launch.launcher.torchrun", "--nnodes", "1")
        self.output = (folder / f"output{restarts}").open("wb")
        self.began_s = time.time()
        self.process = subprocess.Popen(
            [*command, "--nproc-per-node", str(plan.gpus), "--standalone", "-m", GPT, *job.arguments, *sizes],
            env=environment,
            stdout=self.output,
            stderr=self.output,
        )

    def steps(self) -> list[Line]:
        return [s for s in steps(self.log) if s["restarts"] == self.restarts]

    def end(self) -> None:
        """SIGTERM and its end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(120)
        self.output.close()


def by_hand(
    pairs: list[tuple[tuple[int, int, int], tuple[int, int, int]]], folder: Path, job: DemoJob = JOB
) -> list[dict[str, float]]:
    """Save, end, start, load and one step, for each pair of plans."""
    found = []
    for number, (old, new) in enumerate(pairs):
        part = folder / str(number)
        part.mkdir()
        first, second = ByHand(part, old, 0, job), None
        try:
            wait(f"{STEPS_BEFORE} steps by hand", lambda run=first: len(run.steps()) >= STEPS_BEFORE, 120)  # type: ignore[misc]
            asked_s = time.time()
            first.end()
            ended_s = time.time()
            marks = Marks(part / "checkpoints")
            marks.look()
            second = ByHand(part, new, 1, job)
            wait("the first step after it", second.steps, 120)
            step_s, last = second.steps()[0]["time"], first.steps()[-1]
            found.append(
                {
                    "signal -> saved": marks.saved_s[last["step"]] - asked_s,
                    "saved -> ended": ended_s - marks.saved_s[last["step"]],
                    "started -> first step": step_s - second.began_s,
                    "downtime": step_s - last["time"],
                }
            )
        finally:
            for run in (first, second):
                if run is not None:
                    run.end()
    return found


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(r[key] for r in rows), 3) for key in rows[0]}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resizes", type=int, default=3, help="how many (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args(argv)
    if args.resizes < 1:
        parser.error("--resizes must be at least 1")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    out = sys.stderr if args.json else sys.stdout

    def say(text: str) -> None:
        print(text, file=out, flush=True)

    # a benchmark that is stopped takes its cluster and processes down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        found = under_the_daemon(args.resizes, say)
        with tempfile.TemporaryDirectory(prefix="synergy-downtime-") as folder:
            floor = by_hand([(r["from"], r["to"]) for r in found], Path(folder))
    except (MissingProgram, RuntimeError) as error:
        print(f"downtime: {error}", file=sys.stderr)
        return 1
    answer: dict[str, Any] = {
        "resizes": found,
        "median_split": medians([r["split"] for r in found]),
        "median_downtime": medians([{"downtime": r["downtime"]} for r in found])["downtime"],
        "by_hand": floor,
        "median_by_hand": medians(floor),
    }
    if args.json:
        print(json.dumps(answer))
        return 0
    for r, hand in zip(found, floor, strict=True):
        say(f"{r['from']} -> {r['to']}: {r['downtime']:.2f} s without a step; by hand {hand['downtime']:.2f} s")
    for name, seconds in answer["median_split"].items():
        say(f"  {name:<26} {seconds:6.2f} s")
    say(f"median downtime {answer['median_downtime']:.2f} s; by hand:")
    for name, seconds in answer["median_by_hand"].items():
        say(f"  {name:<26} {seconds:6.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
