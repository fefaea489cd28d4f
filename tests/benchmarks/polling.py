"""Polling: what one epoch costs with a long queue in a real slurmctld.

    python -m tests.benchmarks.polling [--jobs 1000,10000] [--synergy 10] [--json]

A throwaway cluster of 8 nodes x 8 GPUs; half of them busy with plain jobs. N single batch jobs are pending, each
submitted by its own sbatch (arrays would be one record): `--synergy` percent carry a #SYNERGY line that the plugin stamps
(four models, two batch sizes, two weights), the others are plain jobs that may begin tomorrow, so that Slurm's own
scheduler leaves the machine alone. The daemon runs in this process, through Slurm's commands, on SQLite.

How to read it: `first` is the first epoch, which sees every job for the first time and parks, starts and stamps jobs; `learning` is
the number of epochs until every job is known (scripts of unstamped jobs are read a bounded number an epoch) and their mean;
`steady` is the median of three epochs after that. Of each: seconds in all, their split into read (squeue, sinfo), learn
(stamps, scripts), forecast (Cells), decide (allocation, placement, reasons), store (SQLite), act (writes to Slurm) and the
rest; commands started, and RPCs as the controller's own count (sdiag) has them. `newcomer` is a steady epoch in which one
plain job has just been submitted; `parking` one in which the start times of all waiting Synergy jobs run out at once and
are put off again (the daemon's clock is put forward for it; it comes about once in ParkTime).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from synergyd.cli.shared.context import Context
from synergyd.daemon import heartbeat, loop
from synergyd.daemon.dependencies import DaemonDependencies
from synergyd.daemon.loop import Daemon
from synergyd.scheduler.epoch import run
from synergyd.slurm.command_line import CommandLine
from synergyd.store.buffer import BufferedStore
from synergyd.store.store import open_store
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster

MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
PARALLEL_SBATCH = 4
_RPC = re.compile(r"^\s*(REQUEST_\w+|MESSAGE_\w+)\s*\(\s*\d+\)\s*count:(\d+)", re.MULTILINE)
NOT_OURS = (
    "REQUEST_STATS_INFO",
    "MESSAGE_NODE_REGISTRATION_STATUS",
    "REQUEST_COMPLETE_BATCH_SCRIPT",
    "MESSAGE_EPILOG_COMPLETE",
)


class Clock:
    """Seconds by part of an epoch, each second counted once: under the innermost part."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._stack.append(name)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


class Timed:
    """Any object, the time in its methods counted under `part`."""

    def __init__(self, inner: Any, clock: Clock, part: str) -> None:
        self._inner, self._clock, self._part = inner, clock, part

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._clock.part(self._part):
                return value(*args, **kwargs)

        return call


class Bench:
    """One cluster with one queue, and a daemon in this process."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.slurm = CommandLine(cluster.env, timeout_s=120)
        settings = Context(cluster.conf).settings
        # the plugin stamps only while a daemon is there
        heartbeat.write(settings.state_dir, time.time(), max(30.0, 3 * settings.epoch_s))
        self.clock = Clock()
        self.ahead_s = 0.0
        store = BufferedStore(lambda: open_store(settings.database_url(), create=True), time.monotonic)
        timed_store: Any = Timed(store, self.clock, "store")
        reader = Timed(self.slurm, self.clock, "read")
        dependencies = DaemonDependencies(
            reader=reader, writer=self.slurm, store=timed_store, inbox=None, clock=lambda: time.time() + self.ahead_s
        )
        self.daemon = Daemon(settings, dependencies)
        for name, part in (("registry", "learn"), ("forecast", "forecast"), ("actuator", "act")):
            setattr(self.daemon, name, Timed(getattr(self.daemon, name), self.clock, part))

    def rpcs(self) -> Counter[str]:
        """The controller's count by message type."""
        return Counter({k: int(n) for k, n in _RPC.findall(self.cluster.run("sdiag").stdout) if k not in NOT_OURS})

    def epoch(self) -> dict[str, Any]:
        """One epoch, measured."""
        self.clock.seconds.clear()
        calls, before = self.slurm.calls, self.rpcs()

        def timed_decide(*args: Any, **kwargs: Any) -> Any:
            with self.clock.part("decide"):
                return run(*args, **kwargs)

        with patch.object(loop, "run", timed_decide):
            began, cpu = time.perf_counter(), time.process_time()
            with self.clock.part("rest"):
                record = self.daemon.epoch()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        commands = self.slurm.calls - calls
        made = self.rpcs() - before
        return {
            "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu, 3),
            "split": {k: round(v, 3) for k, v in sorted(self.clock.seconds.items())},
            "commands": commands,
            "rpcs": made.total(),
            "rpcs_by_type": dict(made.most_common()),
            "synergy_jobs": record.summary["jobs"],
            "actions": dict(Counter(d.action.value for d in record.decisions)),
        }


def submit(cluster: SlurmCluster, jobs: int, synergy_percent: int) -> tuple[int, float]:
    """Queues `jobs` single batch jobs. Returns how many carry a directive, and the seconds it took."""
    began = time.perf_counter()
    folder = cluster.folder / "jobs"
    folder.mkdir()
    plain = folder / "plain.sh"
    plain.write_text("#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:8 --begin=now+1day -o /dev/null\nsleep 86400\n")
    kinds = []
    for number in range(16):
        words = f"model={MODELS[number % 4]} min_gpus=1 max_gpus=16 global_batch={64 << (number // 4 % 2)} "
        path = folder / f"synergy{number}.sh"
        path.write_text(
            "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:4 -o /dev/null\n"
            f"#SYNERGY {words}weight={1 + number // 8}\nsleep 86400\n"
        )
        kinds.append(path)
    wanted = [plain] * jobs
    carriers = range(0, jobs, 100 // synergy_percent) if synergy_percent else range(0)
    for count, place in enumerate(carriers):  # spread over the queue
        wanted[place] = kinds[count % len(kinds)]
    names = "\n".join(map(str, wanted)) + "\n"
    cluster.run("xargs", "-P", str(PARALLEL_SBATCH), "-n", "1", "sbatch", "-Q", input=names, timeout_s=1800)
    return len(carriers), time.perf_counter() - began


def measure(jobs: int, synergy_percent: int, say: Callable[[str], None], profile: Path | None) -> dict[str, Any]:
    """All numbers for one length of the queue."""
    with make_cluster((NodeGroup("a100", 8, 8),), epoch_s=60) as cluster:
        bench = Bench(cluster)
        for node in range(1, 5):
            cluster.sbatch("#!/bin/bash\nsleep 86400\n", "--gres=gpu:8", "-w", f"n{node}", "-o", "/dev/null")
        carry, seconds = submit(cluster, jobs, synergy_percent)
        say(f"{jobs} jobs queued in {seconds:.0f} s, {carry} with a #SYNERGY line")
        first = bench.epoch()
        say(_line("first", first))
        learning = []
        while len(bench.daemon.registry.plain) + len(bench.daemon.registry.submitted) < jobs + 4:
            learning.append(bench.epoch())
            if len(learning) in (1, 2) or len(learning) % 10 == 0:
                say(_line(f"learning {len(learning)}", learning[-1]))
        runs = []
        for number in range(3):
            if profile and number == 2:
                import cProfile

                with cProfile.Profile() as profiler:
                    runs.append(bench.epoch())
                profiler.dump_stats(profile)
            else:
                runs.append(bench.epoch())
        steady = sorted(runs[:2] if profile else runs, key=lambda r: r["seconds"])[len(runs) // 2 if not profile else 0]
        say(_line("steady", steady))
        cluster.run("sbatch", "-Q", str(cluster.folder / "jobs" / "plain.sh"))
        newcomer = bench.epoch()
        say(_line("newcomer", newcomer))
        bench.ahead_s = bench.daemon.settings.park_s
        parking = bench.epoch()
        say(_line("parking", parking))
        return {
            "pending": jobs,
            "with_directive": carry,
            "submit_seconds": round(seconds, 1),
            "first": first,
            "learning": {
                "epochs": 1 + len(learning),
                "mean_seconds": round(statistics.fmean(r["seconds"] for r in learning), 3) if learning else 0.0,
                "commands": sum(r["commands"] for r in learning),
            },
            "steady": steady,
            "newcomer": newcomer,
            "parking": parking,
        }


def _line(name: str, run: dict[str, Any]) -> str:
    split = ", ".join(f"{k} {v:.2f}" for k, v in run["split"].items() if v >= 0.005)
    types = ", ".join(f"{k} {n}" for k, n in run["rpcs_by_type"].items())
    return (
        f"  {name}: {run['seconds']:.2f} s ({split}; daemon's own CPU {run['cpu_seconds']:.2f} s), "
        f"{run['commands']} commands, {run['rpcs']} RPCs ({types}); {run['synergy_jobs']} Synergy jobs {run['actions']}"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="1000,10000", metavar="N[,N...]", help="lengths of the queue (%(default)s)")
    parser.add_argument(
        "--synergy", type=int, default=10, metavar="PERCENT", help="jobs with a directive (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="cProfile of a steady epoch into FILE")
    args = parser.parse_args(argv)
    words = args.jobs.split(",")
    if not all(w.isdecimal() and 1 <= int(w) <= 19_000 for w in words) or not 0 <= args.synergy <= 100:
        parser.error("--jobs takes whole numbers from 1 to 19000, --synergy a percentage")
    logging.basicConfig(level=logging.ERROR)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    out = sys.stderr if args.json else sys.stdout

    def say(text: str) -> None:
        print(text, file=out, flush=True)

    # a benchmark that is stopped takes its cluster down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        answers = [measure(int(w), args.synergy, say, args.profile) for w in words]
    except MissingProgram as error:
        print(f"polling: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
