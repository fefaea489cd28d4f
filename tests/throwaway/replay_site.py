"""A recorded workload on a real Slurm cluster: submitted at its times, watched to its end, with or without Synergy."""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from synergy_core.records import Shape
from synergy_core.wire.expander import job_of_expander
from synergy_sim.records import Costs, TraceJob, build_cluster, place_shape, requested_shape
from synergy_sim.simulated_forecast import make_directive

from synergyd.daemon import heartbeat
from synergyd.jobmodel.model.hardware import figures
from tests.throwaway import replay_job
from tests.throwaway.replay_truth import PaceServer, Said, needed_s
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import hook, synergyd

PLAIN = "plain"  # in place of a policy: Slurm alone, with its backfill
LOOK_EVERY_S = 0.5
HOLDS = ("RUNNING", "COMPLETING")
_LIMIT_SLACK_S = 30.0  # of a plain job's time limit: its start and its end
RATES = ("peak_tflops", "bandwidth_gbs", "intra_gbs", "inter_gbs")


@dataclass(frozen=True)
class Held:
    """An incarnation's time on its GPUs, COMPLETING included; seconds since 1970, to LOOK_EVERY_S."""

    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One job as it went; seconds since the replay began. `restarts`: with and without a requeue."""

    job: TraceJob
    submit_s: float
    start_s: float
    finish_s: float
    restarts: int
    gpu_s: float

    @property
    def jct_s(self) -> float:
        return self.finish_s - self.submit_s


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A whole replay. `costs` are means over its jobs, real seconds."""

    jobs: tuple[Replayed, ...]
    costs: Costs
    counted: Mapping[str, int]  # of how many the costs are means
    load: float  # mean of the machine's load average over 1 min
    busy: float  # share of its processors' time that was used
    said: Mapping[str, Sequence[Said]]


def figures_lines(gpu_type: str, factor: float) -> str:
    """The type's figures, so many times as fast, as slurm.conf has them."""
    gpu = figures(gpu_type)
    return f"#SYNERGY GpuType={gpu_type} " + " ".join(f"{name}={getattr(gpu, name) * factor:.6g}" for name in RATES)


def script(job: TraceJob, shape: Shape, folder: Path, server: Path, managed: bool) -> str:
    """The batch script as the job's user would have written it. A plain job says how long it takes at the most."""
    directive, limit = "", ""
    if managed:
        said = make_directive(job, rigid=False)
        low, high = said.global_batch or (job.batch, job.batch)
        micro = f" max_micro_batch={said.max_micro_batch}" if said.max_micro_batch else ""
        directive = f"#SYNERGY global_batch={low}:{high}{micro} checkpoint={folder}\n"
        if low == high:
            directive = directive.replace(f"{low}:{high}", str(low))
    else:
        limit = f" --time={-(-(needed_s(job, place_shape(shape)) + _LIMIT_SLACK_S) // 60):.0f}"
    return (
        f"#!/bin/bash\n#SBATCH --nodes={shape.nodes} --gres=gpu:{shape.gpus_per_node} --open-mode=append{limit}\n{directive}"
        "export SYNERGY_IN_PLACE=nodes\n"  # a job of one process a node that can go on with others
        f"srun synergy-launch --runner python --checkpoint {folder} {Path(replay_job.__file__).resolve()} {server} {job.name}\n"
    )


@dataclass
class Watch:
    """Who holds how many GPUs, allocations beside a job's own included, by squeue, in a thread."""

    cluster: SlurmCluster
    names: dict[int, str] = field(default_factory=dict)  # by job id
    held: dict[str, list[Held]] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)  # when it had ended
    failed: list[str] = field(default_factory=list)
    gpu_s: dict[str, float] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)
    _looked_s: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        done = self.cluster.run(
            "squeue",
            "-h",
            "-t",
            "all",
            "-O",
            "JobID:20,State:20,NumNodes:12,Name:80,tres-per-node:80",
            check=False,
            timeout_s=30,
        )
        if done.returncode:
            return
        now_s = time.time()
        passed_s, self._looked_s = now_s - (self._looked_s or now_s), now_s
        for line in done.stdout.splitlines():
            job_id, state, nodes, own_name, gres = line.split()
            beside = job_of_expander(own_name)
            name = self.names.get(beside[0] if beside is not None else int(job_id))
            if name is None or name in self.over:
                continue
            if state in HOLDS:
                gpus = int(nodes) * int(gres.rpartition(":")[2])
                self.gpu_s[name] = self.gpu_s.get(name, 0.0) + gpus * passed_s
                if beside is None:
                    self._since.setdefault(name, now_s)
            if state in HOLDS or beside is not None:
                continue
            if name in self._since:
                self.held.setdefault(name, []).append(Held(self._since.pop(name), now_s))
            if state != "PENDING":
                self.over[name] = now_s
                if state != "COMPLETED":
                    self.failed.append(f"{name}: {state}")

    def run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.look()
            self.loads.append(os.getloadavg()[0])

    def stop(self) -> None:
        self._stop.set()


def cpu_s() -> tuple[float, float]:
    """Seconds that all processors together were used, and that passed on them, since the machine's start."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / hertz, sum(ticks) / hertz


def replay(
    jobs: Sequence[TraceJob],
    policy: str,
    groups: tuple[int, int],
    *,
    epoch_s: float,
    factor: float,
    settings: Sequence[str] = (),
    keep: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Runs compressed `jobs` out on (nodes, GPUs a node), under `policy`, or PLAIN.

    `factor`: that the figures are scaled with. `keep`: a folder for logs and the daemon's database. Raises RuntimeError: a job
    failed, or nothing has moved for 20 minutes.
    """
    nodes, each = groups
    gpu_type = jobs[0].gpu_type
    cluster = SlurmCluster([NodeGroup(gpu_type, nodes, each)])
    cluster.slurm_conf = (
        "SchedulerParameters=bf_interval=1,bf_resolution=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0",
    )
    if policy != PLAIN:
        cluster.job_submit = hook(cluster.state_dir)
        own = " ".join((f"Epoch={epoch_s:g}", f"Policy={policy}", *settings))
        cluster.slurm_conf += (f"#SYNERGY StateDir={cluster.state_dir} {own}", figures_lines(gpu_type, factor))
    by_name = {job.name: job for job in jobs}
    with cluster, PaceServer(cluster.folder / "paces", by_name, gpu_type) as server, ExitStack() as stack:
        if policy != PLAIN:
            stack.enter_context(synergyd(cluster))
            cluster.wait_for(lambda: (cluster.state_dir / heartbeat.NAME).exists(), 120, "the daemon's first epoch")
        watch = Watch(cluster)
        threading.Thread(target=watch.run, daemon=True).start()
        stack.callback(watch.stop)
        used_s, passed_s = cpu_s()
        began_s = time.time()
        submits = _submit(cluster, jobs, watch, server, began_s, (nodes, each), policy != PLAIN, say)
        _until_over(watch, len(jobs), say)
        if keep is not None:
            for name in ("log", "synergy"):
                shutil.copytree(cluster.folder / name, keep / policy / name, dirs_exist_ok=True)
        if watch.failed or server.wrong:
            raise RuntimeError("; ".join([*watch.failed, *server.wrong][:5]))
        used_s, passed_s = (now - before for now, before in zip(cpu_s(), (used_s, passed_s), strict=True))
        decided = {} if policy == PLAIN else starts_decided(cluster.state_dir / "synergy.db", watch.names)
        return _outcome(by_name, watch, server.said, submits, decided, began_s, used_s / passed_s)


def starts_decided(database: Path, names: Mapping[int, str]) -> dict[str, list[float]]:
    """By job name: when the epochs began that decided to start it, seconds since 1970."""
    found: dict[str, list[float]] = {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        for job_id, at_s in store.execute("SELECT job_id, at_s FROM decisions WHERE action = 'start' ORDER BY at_s"):
            found.setdefault(names[job_id], []).append(at_s)
    return found


def _submit(
    cluster: SlurmCluster, jobs: Sequence[TraceJob], watch: Watch, server: PaceServer, began_s: float,
    groups: tuple[int, int], managed: bool, say: Callable[[str], None],
) -> dict[str, float]:  # fmt: skip
    """When each job was submitted."""
    submits = {}
    for job in jobs:
        shape = requested_shape(job, build_cluster({job.gpu_type: groups}))
        assert shape is not None
        time.sleep(max(0.0, began_s + job.submit_s - time.time()))
        folder = cluster.folder / "jobs" / job.name
        folder.mkdir(parents=True)
        text = script(job, shape, folder, server.path, managed)
        submits[job.name] = time.time()
        job_id = cluster.sbatch(text, f"--job-name={job.name}", f"--output={folder}/output")
        watch.names[job_id] = job.name
        say(f"{time.time() - began_s:7.1f} s: {job.name} submitted")
    return submits


def _until_over(watch: Watch, count: int, say: Callable[[str], None]) -> None:
    moved_s, before = time.monotonic(), (0, 0)
    while len(watch.over) < count and not watch.failed:
        time.sleep(1.0)
        now = len(watch.over), sum(map(len, watch.held.values()))
        if now != before:
            if now[0] != before[0]:
                say(f"{now[0]} of {count} jobs have ended")
            moved_s, before = time.monotonic(), now
        if time.monotonic() > moved_s + 1200:
            raise RuntimeError(f"nothing has moved for 20 minutes: {now[0]} of {count} jobs have ended")


def _outcome(
    jobs: Mapping[str, TraceJob], watch: Watch, said: Mapping[str, Sequence[Said]], submits: Mapping[str, float],
    decided: Mapping[str, Sequence[float]], began_s: float, busy: float,
) -> Outcome:  # fmt: skip
    replayed = tuple(
        Replayed(
            job=job,
            submit_s=submits[name] - began_s,
            start_s=watch.held[name][0].start_s - began_s,
            finish_s=watch.over[name] - began_s,
            restarts=sum(s.what == "trains" for s in said[name]) - 1,
            gpu_s=watch.gpu_s[name],
        )
        for name, job in jobs.items()
    )
    costs, counted = measured(watch.held, said, decided)
    return Outcome(
        jobs=replayed,
        costs=costs,
        counted=counted,
        load=statistics.fmean(watch.loads),
        busy=busy,
        said=said,
    )


def measured(
    held: Mapping[str, Sequence[Held]],
    said: Mapping[str, Sequence[Said]],
    decided: Mapping[str, Sequence[float]] | None = None,
) -> tuple[Costs, dict[str, int]]:
    """(costs, how many of each) of a replay; those of requeues and grants are medians, for some wait for others to leave their nodes."""
    phases = ("first_start", "start", "checkpoint", "requeue", "end", "grant", "live")
    found: dict[str, list[float]] = {phase: [] for phase in phases}
    for name, times in held.items():
        before = [at_s for at_s in (decided or {}).get(name, ()) if at_s <= times[0].start_s]
        if before:
            found["grant"].append(times[0].start_s - before[-1])
        for number, one in enumerate(times):
            mine = [s for s in said[name] if s.restarts == number]
            begun, saved, ended = ([s.time_s for s in mine if s.what == what] for what in ("trains", "saves", "done"))
            if begun:
                found["start" if number else "first_start"].append(begun[0] - one.start_s)
            for before_s, now_s in pairwise(begun):
                found["live"] += [now_s - at_s for at_s in saved if before_s < at_s < now_s][-1:]
            if number:
                found["requeue"].append(one.start_s - times[number - 1].end_s)
            if ended:
                found["end"].append(one.end_s - ended[0])
            elif number + 1 < len(times):
                found["checkpoint"] += [one.end_s - at_s for at_s in saved if at_s > max(begun, default=0.0)][-1:]

    def mean(name: str) -> float:
        return max(0.0, statistics.fmean(found[name])) if found[name] else 0.0

    requeue_s, grant_s = (statistics.median(found[name] or [0.0]) for name in ("requeue", "grant"))
    start_s = mean("start") or mean("first_start")
    # a change without a requeue takes a checkpoint too
    live_s = max(0.0, mean("live") - mean("checkpoint")) if found["live"] else None
    costs = Costs(mean("first_start"), mean("checkpoint"), requeue_s, start_s, mean("end"), grant_s, live_s)
    return costs, {key: len(values) for key, values in found.items()}
