"""The reporting path: N jobs report each 10 s to one daemon on this machine. What does it cost, and what is lost?

    python -m tests.benchmarks.reports [--jobs 1000] [--seconds 60] [--away 30]

Real munge credentials (a munged of its own), real TCP, the launcher's own Reporter for every job (a thread each, in two
processes), the daemon's Inbox and loop with a SQLite store in a process of its own, ticking each 2 s; only Slurm is in
memory. Then the daemon's port is closed for `--away` seconds and opened again: when has every job's latest state arrived?
CPU is the daemon process' own and munged's, in percent of one core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from synergy_core.job_report import Report
from synergy_core.records import Plan
from synergy_launch.launcher.reporter import Reporter

from synergyd.daemon import adoption
from synergyd.daemon.dependencies import DaemonDependencies
from synergyd.daemon.loop import Daemon
from synergyd.daemon.ports.report_inbox import ReportInbox
from synergyd.settings import Settings
from synergyd.store.buffer import BufferedStore
from synergyd.store.store import open_store
from tests.throwaway.slurm import SlurmCluster
from tests.unit.daemon import daemon_world

EVERY_S = 10.0
TICK_S = 2.0
SENDERS = 2
SCRIPT = "#!/bin/bash\n#SYNERGY model=gpt2 global_batch=64 resize=no checkpoint=/ckpt\nsrun synergy-launch train.py\n"


def _tools(reader: Any, world: Any, store: BufferedStore, inbox: ReportInbox, port: int) -> DaemonDependencies:
    return DaemonDependencies(
        reader=reader, writer=world, store=store, inbox=inbox, clock=time.time, report_address=f"127.0.0.1:{port}"
    )


def serve(pipe: Any, folder: Path, jobs: int, port: int) -> None:
    """The daemon's process: commands come through the pipe, each is answered with what it asked for."""
    world = daemon_world.FakeCluster(gpus={f"n{i}": 2 for i in range(jobs)})
    for job_id in range(1, jobs + 1):
        world.submit(job_id, SCRIPT, uid=os.getuid())
        world.runs(job_id, f"n{job_id - 1}")
    url = f"sqlite:///{folder}/synergy.db"
    store = BufferedStore(lambda: open_store(url, create=True), time.monotonic)
    inbox = ReportInbox("127.0.0.1", port)
    real = inbox.take
    taken = 0

    def counted() -> list[Any]:
        nonlocal taken
        found = real()
        taken += len(found)
        return found

    inbox.take = counted  # type: ignore[method-assign]
    reader = daemon_world._Reader(world)
    settings = Settings(state_dir=folder, epoch_s=60.0)
    adoption.ADOPTED_AN_EPOCH = jobs
    daemon = Daemon(settings, _tools(reader, world, store, inbox, port))
    while len(daemon.controller.jobs) < jobs:  # scripts are read a bounded number an epoch
        daemon.epoch()
    pipe.send("ready")
    slowest = 0.0
    while True:
        if pipe.poll(TICK_S):
            word = pipe.recv()
            if word == "close":
                inbox.close()
            elif word == "open":
                inbox = ReportInbox("127.0.0.1", port)
                real, inbox.take = inbox.take, counted  # type: ignore[method-assign]
                daemon.dependencies = _tools(reader, world, store, inbox, port)
            elif word == "end":
                store.close()
                return
            daemon.tick()
            used = resource.getrusage(resource.RUSAGE_SELF)
            steps = {i: r.step for i, r in daemon.controller.reports.items()}
            pipe.send((used.ru_utime + used.ru_stime, taken, steps, slowest))
            continue
        began = time.perf_counter()
        daemon.tick()
        slowest = max(slowest, time.perf_counter() - began)


def send(pipe: Any, first: int, jobs: int, address: str) -> None:
    """`jobs` jobs: each has made a further step each second, as its report says."""
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # every launcher says once that the daemon is away
    rng = random.Random(first)
    plan = Plan(dp=2, micro_batch=4, global_batch=64)
    reporters = []
    for _ in range(jobs):
        reporters.append(Reporter(address, EVERY_S))
        time.sleep(rng.uniform(0, 2 * EVERY_S / jobs))  # they did not all start at the same moment
    pipe.send("ready")
    began = time.monotonic()
    step = 0
    while True:
        if pipe.poll(1.0) and pipe.recv() == "stop":
            break
        step = int(time.monotonic() - began)
        for i, reporter in enumerate(reporters):
            reporter.offer(Report(first + i, 0, step, step_s=1.0, loss=2.5, tokens=step, noise_scale=50.0, plan=plan))
    pipe.send(step)
    pipe.recv()


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(jobs: int, seconds: float, away_s: float) -> dict[str, float]:
    """What the module's text says, as numbers."""
    context = multiprocessing.get_context("spawn")
    cluster = SlurmCluster()
    found: dict[str, float] = {}
    processes = []
    with tempfile.TemporaryDirectory() as name:
        try:
            cluster.folder.chmod(0o755)
            (cluster.folder / "log").mkdir()
            cluster.start_munged()
            os.environ["MUNGE_SOCKET"] = str(cluster.munge_socket)
            munged = cluster._processes["munged"].pid
            port = 20_000 + os.getpid() % 10_000
            daemon, theirs = context.Pipe()
            processes.append(context.Process(target=serve, args=(theirs, Path(name), jobs, port)))
            processes[0].start()
            daemon.recv()
            senders = []
            for k in range(SENDERS):
                mine, theirs = context.Pipe()
                each = jobs // SENDERS
                processes.append(context.Process(target=send, args=(theirs, 1 + k * each, each, f"127.0.0.1:{port}")))
                processes[-1].start()
                senders.append(mine)
            for sender in senders:
                sender.recv()

            def ask(word: str) -> Any:
                daemon.send(word)
                return daemon.recv()

            time.sleep(EVERY_S)
            cpu, taken, _, _ = ask("stats")
            munge_cpu, began = cpu_of(munged), time.monotonic()
            time.sleep(seconds)
            cpu_after, taken_after, steps, slowest = ask("stats")
            took = time.monotonic() - began
            found["jobs"] = jobs
            found["reports a second"] = (taken_after - taken) / took
            found["expected a second"] = jobs / EVERY_S
            found["daemon CPU %"] = 100 * (cpu_after - cpu) / took
            found["munged CPU %"] = 100 * (cpu_of(munged) - munge_cpu) / took
            found["slowest tick s"] = slowest
            found["jobs heard of"] = len(steps)
            newest = max(steps.values())
            found["oldest state s"] = newest - min(steps.values())
            ask("close")
            time.sleep(away_s)
            before = ask("open")[2]
            began = time.monotonic()
            waiting = set(before)
            while waiting and time.monotonic() - began < 180:
                time.sleep(1.0)
                steps = ask("stats")[2]
                waiting = {i for i in before if steps.get(i, 0) <= before[i] + away_s / 2}
            found["all known again s"] = time.monotonic() - began
            found["jobs lost after the outage"] = len(waiting)
            finals = []
            for sender in senders:
                sender.send("stop")
                finals.append(sender.recv())
            time.sleep(3 * EVERY_S)
            steps = ask("stats")[2]
            each = jobs // SENDERS
            found["last states lost"] = sum(
                steps.get(1 + k * each + i) != final for k, final in enumerate(finals) for i in range(each)
            )
            daemon.send("end")
            for sender in senders:
                sender.send("end")
            for process in processes:
                process.join(20)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
            cluster.stop()
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--away", type=float, default=30.0, metavar="S")
    args = parser.parse_args(argv)
    for name, value in measure(args.jobs, args.seconds, args.away).items():
        print(f"{name:<28} {value:g}" if value >= 100 or value == int(value) else f"{name:<28} {value:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
