"""Public training scripts, as they are, whose nodes change while they run: the live column of any_trainer.

    python -m tests.benchmarks.any_trainer_live --sources DIR [--only NAME ...] [--json FILE]

Each script is an ordinary job (`srun synergy-launch SCRIPT ...`) on two nodes of a throwaway Slurm cluster with a daemon. Another job
comes, for which one of its nodes leaves, and goes again, so that a node joins. Its steps are compared with those of a run left alone.
Rows, checkouts and interpreter are any_trainer's; `synergy-launch` and `synergyctl` are those beside the interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from synergy_core.errors import SynergyError
from synergy_launch.agent.settings import TRY
from synergy_launch.launcher.trial import Leg, own_plan
from synergy_launch.launcher.trial_table import StepRecord, compare, merge

from tests.benchmarks import any_trainer
from tests.benchmarks.any_trainer_rows import ROWS, Row
from tests.integration.daemon_site import story, until_beat
from tests.throwaway import light_job, slow_steps
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

STEPS = 4  # of each size
CHANGE_S, START_S = 240.0, 240.0
GPU_STEP_S = 1.0
HEAD = ("script", "live", "restarts", "examples", "learning rate", "loss")
_START = re.compile(
    r"^(?:synergy: step (\d+): tp=|.*successfully loaded checkpoint from .* at iteration\s+(\d+))", re.MULTILINE
)


@dataclass(frozen=True)
class Run:
    """What one start of the processes has trained. `start`: the step from which it goes on."""

    start: int
    world: int
    records: tuple[StepRecord, ...]


def read_runs(folder: Path, world: int, output: str) -> list[Run]:
    """Return the runs of a job in order, by the records of its `world` processes in `folder` and the steps that its output names."""
    by_rank = [_segments(folder / f"steps-{rank}.jsonl") for rank in range(world)]
    begins = [segment[0]["at"] for segment in by_rank[0]]
    starts = [int(a or b) for a, b in _START.findall(output)]
    starts = [0] * (len(starts) == len(begins) - 1) + starts  # Megatron-LM's first start loads nothing
    runs = []
    for i, began in enumerate(begins):
        until = begins[i + 1] if i + 1 < len(begins) else float("inf")
        # ranks make their first step together, within what one step takes
        parts = [s for segments in by_rank for s in segments if began - 1.0 <= s[0]["at"] < until - 1.0]
        start = starts[i - len(begins)] if len(starts) >= len(begins) else -1
        runs.append(Run(start, len(parts), tuple(merge(parts, start))))
    return runs


def joined_records(runs: Sequence[Run]) -> list[StepRecord]:
    """Return the steps that count: those of a run up to the step from which the next one goes on."""
    found = [r for run, following in pairwise(runs) for r in run.records if r.step <= following.start]
    return [*found, *runs[-1].records]


def _segments(path: Path) -> list[list[dict[str, Any]]]:
    """Return the lines of one process's file by the starts in it, each of which counts steps from 1."""
    segments: list[list[dict[str, Any]]] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["step"] == 1:
            segments.append([])
        segments[-1].append(record)
    return segments


class LiveJob:
    """One row's job on the cluster."""

    def __init__(self, cluster: SlurmCluster, row: Row, place: Path, folder: Path) -> None:
        self._cluster, self.folder = cluster, folder
        self._record = folder / "record"
        self._record.mkdir(parents=True)
        slow_steps.write_site(folder / "site", any_trainer.STAND_INS / row.stand_in if row.stand_in else None)
        subject = any_trainer.subject_of(row, place)
        environment = any_trainer.environment_of(row, place)
        environment |= {
            "PYTHONPATH": os.pathsep.join((str(folder / "site"), environment["PYTHONPATH"])), TRY: str(self._record),
            slow_steps.VARIABLE: str(GPU_STEP_S), "PATH": f"{Path(sys.executable).parent}:{cluster.env['PATH']}",
        }  # fmt: skip
        if row.stand_in:  # it looks for RANK as Python starts, which a process that ranks are forked from has not
            environment["SYNERGY_WARM_START"] = "0"
        environment.pop("SYNERGY_GLOBAL_BATCH", None)
        keys = [f"checkpoint={subject.checkpoint}"] * bool(subject.checkpoint) + [f"loop={subject.loop}"] * bool(
            subject.loop
        )
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
        script = (
            f"#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:1 --open-mode=append\n#SYNERGY min_gpus=1 max_gpus=2 {' '.join(keys)}\n"
            f"cd {shlex.quote(str(place))}\n{exports}srun synergy-launch --style {subject.style} {shlex.join(subject.words)}\n"
        )
        self.job = cluster.sbatch(script, "--job-name=public", f"--output={folder}/out")

    def runs(self) -> list[Run]:
        output = self.folder / "out"
        return read_runs(self._record, 2, output.read_text(errors="replace") if output.exists() else "")

    def until_world(self, count: int, world: int, limit_s: float) -> None:
        """Wait until the run number `count` has `world` processes and has made STEPS steps. Raises SynergyError."""
        until = time.monotonic() + limit_s
        while True:
            runs = self.runs()
            if len(runs) >= count and runs[-1].world == world and len(runs[-1].records) >= STEPS:
                return
            if self._cluster.state(self.job) not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
                raise SynergyError("job", f"ended before run {count}: {self.last_line()}")
            if time.monotonic() > until:
                last = story(self._cluster, self.job).strip().splitlines()[-1:]
                raise SynergyError("job", f"no run on {world} nodes in {limit_s:.0f} s; {' '.join(last)}")
            time.sleep(0.5)

    def last_line(self) -> str:
        path = self.folder / "out"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        errors = [line for line in lines if re.match(r"(?:\[rank\d+\]: ?)?[\w.]*(?:Error|Exception)\b", line)]
        return (errors or lines or ["(nothing printed)"])[-1][:300]

    def restarts(self) -> int:
        text = self._cluster.run("scontrol", "show", "job", str(self.job)).stdout
        match = re.search(r"\bRestarts=(\d+)", text)
        return int(match[1]) if match else -1


def measure(cluster: SlurmCluster, row: Row, sources: Path, folder: Path) -> dict[str, Any]:
    """Run one row in `folder`. Return its cells."""
    found: dict[str, Any] = {"script": row.name, "live": "no", "why": ""}
    live: LiveJob | None = None
    try:
        live = LiveJob(cluster, row, any_trainer.place_of(row, sources, folder / "resized"), folder / "live")
        live.until_world(1, 2, START_S)
        size = "min_gpus=1 max_gpus=1"
        other = light_job.submit(cluster, "small", gpus=1, directive=size, options=("--nodes=1",))
        try:
            live.until_world(2, 1, CHANGE_S)
        finally:
            cluster.run("scancel", str(other))
        live.until_world(3, 2, CHANGE_S)
        found.update(live="2, 1, 2 nodes", restarts=live.restarts())
        runs = live.runs()
        cluster.run("scancel", str(live.job))
        found.update(_compare(row, sources, folder, runs))
    except (SynergyError, ValueError) as error:
        found["why"] = str(error)
    finally:
        if live is not None and found.get("restarts") != 0:
            found["story"] = story(cluster, live.job)
        cluster.run("scancel", "--me")
        cluster.wait_for(lambda: not cluster.run("squeue", "-h").stdout, 90, "an empty queue")
    return found


def _compare(row: Row, sources: Path, folder: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """Run the row left alone, and return how the live run differs."""
    records = joined_records(runs)
    if (log := folder / "resized" / "out" / "steps.jsonl").exists():  # Megatron-LM's losses are in its log alone
        losses = {line["step"]: line["loss"] for line in map(json.loads, log.read_text().splitlines())}
        records = [r if r.loss is not None else replace(r, loss=losses.get(r.step)) for r in records]
    place = any_trainer.place_of(row, sources, folder / "alone")
    subject = any_trainer.subject_of(row, place)
    environment = any_trainer.environment_of(row, place)
    with Leg(subject, folder / "second", 2, plan=own_plan(subject), environment=environment, cwd=place) as leg:
        leg.until(lambda: len(leg.records()) >= records[-1].step, f"step {records[-1].step} of the run left alone")
        expected = leg.records()
    comparison = compare(expected, records, runs[1].start)
    cells = any_trainer.Result(name="", commit="", lines=0, command="")
    any_trainer.fill(cells, comparison)
    gaps = [b.start - a.records[-1].step for a, b in pairwise(runs)]
    return {
        "examples": cells.examples, "rate": cells.rate, "loss": cells.loss, "numbers": cells.numbers,
        "starts": [run.start for run in runs], "worlds": [run.world for run in runs], "gaps": gaps,
    }  # fmt: skip


@contextmanager
def site() -> Iterator[SlurmCluster]:
    """Two nodes of one GPU each, and a daemon."""
    with make_cluster([NodeGroup("cpu", 2, 1)], epoch_s=1) as cluster:
        remember_programs(cluster, light_jobs=("small",))
        with synergyd(cluster):
            until_beat(cluster)
            yield cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="rows whose names contain one of these")
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR", help="for what the runs write")
    parser.add_argument("--json", type=Path, help="add one line a row")
    args = parser.parse_args()
    for row in ROWS:
        if args.only and not any(part in row.name for part in args.only):
            continue
        if why := any_trainer.missing(row, args.sources):
            print(f"{row.name}: skipped: {why}", flush=True)
            continue
        with any_trainer.room(args.keep, row.name.replace("/", "_").replace(" ", "_")) as folder, site() as cluster:
            found = measure(cluster, row, args.sources.absolute(), folder.absolute())
        print(json.dumps(found), flush=True)
        if args.json:
            with args.json.open("a") as stream:
                stream.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
