"""What each part of Synergy brings in real training: the plan alone, the batch alone, the allocation alone, all together.

    python -m tests.benchmarks.parts_real [--seeds 1] [--part NAME,...] [--verbose] [--json FILE]

Six small jobs train on a throwaway Slurm cluster of one node with two GPUs in name; a rank is a process with one thread, so no
more ranks than a small machine's cores run at once. Three are the example GPT on megatron-core, three the plain PyTorch
example under DistributedDataParallel. Each asks for one or two GPUs and trains on Python's language reference, until the mean
loss over the last WINDOW samples is at its target; then it is cancelled, as its user would. The order of submission and the
weights come from the seed. Each part runs beside what users asked for:

    plain       Slurm with backfill, no daemon: data-parallel at the size asked for, Megatron with micro-batch 1, fixed batches
    plan        Synergy chooses the Megatron jobs' tp, pp and micro-batch at the size asked for (policy fifo, resize=no)
    batch       Synergy chooses the global batch, and changes it as the noise scale grows (policy fifo, resize=no; Megatron keeps its
                degrees and micro-batch)
    allocation  Synergy decides who gets how many GPUs and when; degrees, micro-batch and global batch stay
    all         all three

Printed: seconds from each job's submission to its target, their mean, restarts, and the cluster's throughput: targets
reached an hour, and samples trained a second. Exit code 1: a job did not reach its target.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.downtime import Line, steps
from tests.demo.jobs import GPT, PLAIN, DemoJob, work_folder
from tests.throwaway.replay_site import cpu_s
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster
from tests.throwaway.synergy import hook, synergyd

GPUS = 2
LAYERS = 2  # of the GPT
WINDOW = 512  # samples; a job's loss is the mean over so many
LIMIT_S = 1200.0  # of one part, on a loaded machine
ASK_EVERY_S = 5.0  # whether a job still runs
# A small machine's core, and what importing torch and reading a checkpoint take there
SETTINGS = (
    "#SYNERGY GpuType=cpu peak_tflops=0.002 memory_gib=4 bandwidth_gbs=10 intra_gbs=1 inter_gbs=1",
    "#SYNERGY Epoch=3 RestartCost=25",
)


@dataclass(frozen=True)
class Part:
    """`policy`: "" for none of Synergy. What Synergy may choose of a job."""

    policy: str
    plan: bool = False
    batch: bool = False
    size: bool = False


PARTS = {
    "plain": Part(""),
    "plan": Part("fifo", plan=True),
    "batch": Part("fifo", batch=True),
    "allocation": Part("synergy", size=True),
    "all": Part("synergy", plan=True, batch=True, size=True),
}


@dataclass(frozen=True)
class Training:
    """A job: what it trains on how many GPUs, and to what loss. `batch` is what its user asked for, `most` what it may grow to."""

    name: str
    module: str
    gpus: int
    batch: int
    most: int
    target: float

    def job(self, part: Part, seed: int) -> DemoJob:
        limits = f"min_gpus=1 max_gpus={GPUS}" if part.size else "resize=no"
        directive = f"{limits} global_batch={self.batch}{f':{self.most}' if part.batch else ''}"
        if self.module == GPT and not part.plan:
            directive += " tp=1 pp=1 micro_batch=1"
        elif self.module == PLAIN and not part.batch:
            directive += f" micro_batch={self.batch // GPUS}"
        arguments = ["--steps", "4000", "--global-batch", str(self.batch), "--seed", str(seed)]
        arguments += ["--checkpoint-interval", "0", "--lr", "3e-3"]
        sizes = ["--layers", str(LAYERS)] if self.module == GPT else ["--hidden", "48", "--layers", "3", "--seq", "32"]
        return DemoJob(self.name, self.module, self.gpus, directive, (*arguments, *sizes), hidden=64, seq=64)


# Losses that the jobs reach after some hundred steps of their own batch (measured: 125 and 172; 278 and 615)
TRAININGS = (
    Training("gpt-a", GPT, 2, 8, 64, 2.6),
    Training("gpt-b", GPT, 2, 8, 64, 2.4),
    Training("gpt-c", GPT, 1, 8, 64, 2.6),
    Training("plain-a", PLAIN, 2, 16, 128, 1.85),
    Training("plain-b", PLAIN, 2, 16, 128, 1.7),
    Training("plain-c", PLAIN, 1, 16, 128, 1.85),
)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """One job that has reached its target."""

    name: str
    #: from its submission, waiting included
    seconds: float
    #: to the first step's end, of `seconds`
    first_step_s: float
    samples: int
    steps: int
    restarts: int
    batch: int
    #: (tp, pp, dp) of its last step
    degrees: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    jobs: tuple[Reached, ...]
    makespan_s: float
    load: float
    busy: float

    @property
    def mean_s(self) -> float:
        return statistics.fmean(job.seconds for job in self.jobs)


def at_target(lines: Sequence[Line], target: float) -> int | None:
    """The number of lines up to the first at which the mean loss of the last WINDOW samples is `target` or less."""
    first, samples, total = 0, 0, 0.0
    for number, line in enumerate(lines, 1):
        samples, total = samples + line["global_batch"], total + line["loss"] * line["global_batch"]
        while samples - lines[first]["global_batch"] >= WINDOW:
            samples -= lines[first]["global_batch"]
            total -= lines[first]["loss"] * lines[first]["global_batch"]
            first += 1
        if samples >= WINDOW and total <= target * samples:
            return number
    return None


def reached(training: Training, lines: Sequence[Line], submitted_s: float) -> Reached | None:
    count = at_target(lines, training.target)
    if count is None:
        return None
    last = lines[count - 1]
    return Reached(
        name=training.name,
        seconds=last["time"] - submitted_s,
        first_step_s=lines[0]["time"] - submitted_s,
        samples=sum(line["global_batch"] for line in lines[:count]),
        steps=count,
        restarts=last["restarts"],
        batch=last["global_batch"],
        degrees=(last["tp"], last["pp"], last["dp"]),
    )


def submit(cluster: SlurmCluster, job: DemoJob, managed: bool) -> int:
    folder = work_folder(cluster, job)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**json.loads(job.config()), "n_layer": LAYERS}))
    lines = job.script(folder / "checkpoints").splitlines()
    if not managed:
        lines = [line for line in lines if not line.startswith("#SYNERGY")]
    lines.insert(-1, "export OMP_NUM_THREADS=1")
    return cluster.sbatch("\n".join(lines) + "\n", "-o", str(folder / "output"))


def run(part: Part, seed: int, say: Callable[[str], None]) -> Outcome:
    """All jobs to their targets. Raises RuntimeError: one ended before, or LIMIT_S passed."""
    cluster = SlurmCluster([NodeGroup("cpu", 1, GPUS)])
    cluster.slurm_conf = (
        "SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0",
    )
    if part.policy:
        cluster.job_submit = hook(cluster.state_dir)
        own = f"#SYNERGY StateDir={cluster.state_dir} Policy={part.policy}"
        cluster.slurm_conf += (own, *SETTINGS)
    order = list(TRAININGS)
    random.Random(seed).shuffle(order)
    with cluster:
        if not part.policy:
            return _trained(cluster, part, order, seed, say)
        with synergyd(cluster):
            return _trained(cluster, part, order, seed, say)


def _trained(
    cluster: SlurmCluster, part: Part, order: Sequence[Training], seed: int, say: Callable[[str], None]
) -> Outcome:
    began_s, used, loads = time.time(), cpu_s(), []
    left: dict[int, tuple[Training, Path, float]] = {}
    for training in order:
        job, submitted_s = training.job(part, seed), time.time()
        log = work_folder(cluster, job) / "checkpoints" / "steps.jsonl"
        left[submit(cluster, job, bool(part.policy))] = training, log, submitted_s
    done: list[Reached] = []
    asked_s = began_s
    while left:
        time.sleep(0.5)
        loads.append(os.getloadavg()[0])
        ended: set[int] = set()
        if time.time() > asked_s + ASK_EVERY_S:
            asked_s = time.time()
            ended = {i for i in left if cluster.state(i) in ("", "FAILED", "COMPLETED", "CANCELLED")}
        for job_id, (training, log, submitted_s) in list(left.items()):
            if (one := reached(training, steps(log), submitted_s)) is not None:
                cluster.run("scancel", str(job_id), check=False)
                done.append(one)
                del left[job_id]
                say(f"{training.name} after {one.seconds:.0f} s, {one.steps} steps")
            elif job_id in ended or time.time() > began_s + LIMIT_S:
                output = log.parents[1] / "output"
                text = output.read_text(errors="replace")[-3000:] if output.exists() else ""
                raise RuntimeError(f"{training.name} did not reach its target: {cluster.state(job_id)}\n{text}")
    # the last one's end, whose time is not known any better than its last step's
    after = cpu_s()
    return Outcome(
        jobs=tuple(sorted(done, key=lambda one: one.name)),
        makespan_s=time.time() - began_s,
        load=statistics.fmean(loads),
        busy=(after[0] - used[0]) / (after[1] - used[1]),
    )


def table(found: dict[str, list[Outcome]]) -> str:
    """Markdown: means over the seeds."""
    names = [training.name for training in TRAININGS]
    rows = [
        f"| Part | {' | '.join(names)} | mean s | restarts | targets/h | samples/s | load |",
        "| --- |" + " ---: |" * (len(names) + 5),
    ]
    for part, outcomes in found.items():
        cells = [
            statistics.fmean(next(job.seconds for job in one.jobs if job.name == name) for one in outcomes)
            for name in names
        ]
        restarts = statistics.fmean(sum(job.restarts for job in one.jobs) for one in outcomes)
        an_hour = statistics.fmean(3600 * len(one.jobs) / one.makespan_s for one in outcomes)
        a_second = statistics.fmean(sum(job.samples for job in one.jobs) / one.makespan_s for one in outcomes)
        load = statistics.fmean(one.load for one in outcomes)
        rows.append(
            f"| {part} | {' | '.join(f'{c:.0f}' for c in cells)} | {statistics.fmean(cells):.0f} | {restarts:.1f} | "
            f"{an_hour:.0f} | {a_second:.0f} | {load:.0f} |"
        )
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--part", default=",".join(PARTS), metavar="NAME,...", help="default: all")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    names = args.part.split(",")
    if args.seeds < 1 or not set(names) <= set(PARTS):
        parser.error(f"--seeds must be at least 1, --part names of {', '.join(PARTS)}")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # a benchmark that is stopped takes its cluster and processes down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found: dict[str, list[Outcome]] = {name: [] for name in names}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for name in names:

            def say(text: str, where: str = f"seed {seed}, {name}") -> None:
                print(f"{where}: {text}", file=sys.stderr, flush=True)

            try:
                one = run(PARTS[name], seed, say if args.verbose else lambda text: None)
            except (MissingProgram, RuntimeError) as error:
                print(f"parts_real: seed {seed}, {name}: {error}", file=sys.stderr)
                return 1
            found[name].append(one)
            say(f"{one.mean_s:.0f} s to target on average, {one.makespan_s:.0f} s in all, load {one.load:.1f}")
            if args.json:
                kept: dict[str, Any] = {part: [asdict(one) for one in some] for part, some in found.items()}
                args.json.write_text(json.dumps(kept, indent=2) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
