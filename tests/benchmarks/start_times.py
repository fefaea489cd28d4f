"""How good are the forecasts of starts and ends?

    python -m tests.benchmarks.start_times [--queues 4] [--first-seed 100] [--jobs 2500] [--philly FILE.csv] [--looks 120] [--json FILE]
    python -m tests.benchmarks.start_times --cost 1000   # CPU seconds of one forecast of so many waiting jobs

start_times_slurm.py compares with `squeue --start` on a real throwaway cluster.

Generated queues: 12 nodes of 8 GPUs, 16 users with 1 to 5 programs each; a program has a median length (log-uniform, 5 minutes to 8 hours),
a spread (sigma 0.2 to 1.2), a size and a time limit that its user rounds up; one run in eight fails within minutes. --philly: submission,
length and size of every job of one virtual cluster of Microsoft's trace (philly.csv; users and limits are not in it: drawn, as above).

The truth is Slurm's backfill, in code of its own: every waiting job plans its start on whole nodes by time limits (the forecast's
simulation lets three do so). A part of the jobs (--pass) passes all others, as those of a better QOS do; forecasts see a priority only
once the job is there. The forecaster sees
what Slurm would show at each look: what waits, what runs, limits, and what has ended before. Nothing in it was fitted on these
queues: it starts knowing nothing, and learns as the queue goes on. Counted is every waiting job of every look.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import math
import random
import statistics
import time
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from synergy_core.expected import Expected

from synergyd.start_times.forecast import StartForecaster
from synergyd.start_times.records import Amounts, PendingJob, Program, Queue, QueueNode, RunningJob
from synergyd.start_times.run_lengths import EndedRun
from synergyd.start_times.why import Waits

LIMITS_H = (1, 2, 4, 8, 12, 24, 48, 96, 168)
NODE_GPUS = 8
SEES_S = 300.0
BACKFILL_DEPTH = 100  # bf_max_job_test is 500; jobs alike count once here


@dataclass(frozen=True, kw_only=True)
class TrueJob:
    """A job as it truly is. `passes`: it comes before all that do not."""

    submit_s: float
    seconds: float
    nodes: int
    each: int
    program: Program
    passes: bool = False

    @property
    def limit_s(self) -> float:
        assert self.program.limit_s is not None
        return self.program.limit_s


@dataclass(frozen=True)
class Said:
    """A forecast, and what came of it, in seconds after the look."""

    low_s: float
    middle_s: float
    high_s: float
    true_s: float

    @property
    def holds(self) -> bool:
        return self.low_s <= self.true_s <= self.high_s


def generated(seed: int, count: int, load: float, share_passing: float) -> tuple[list[TrueJob], int]:
    """Return the jobs of one generated queue, and the number of nodes."""
    draw, nodes = random.Random(seed), 12
    programs = []
    for user in range(16):
        for number in range(draw.randint(1, 5)):
            median_s = math.exp(draw.uniform(math.log(300), math.log(8 * 3600)))
            sigma = draw.uniform(0.2, 1.2)
            size = draw.choices((1, 2, 4, 8, 16, 32), (0.4, 0.15, 0.17, 0.16, 0.08, 0.04))[0]
            limit_s = _limit_s(median_s * math.exp(sigma) * draw.choice((1.0, 2.0, 4.0)))
            named = Program(f"user{user}", f"account{user % 4}", f"program{number}", limit_s)
            programs.append((named, median_s, sigma, size, math.exp(draw.gauss(0, 1))))
    weights = [weight for *_, weight in programs]
    jobs = []
    for _ in range(count):
        named, median_s, sigma, size, _ = draw.choices(programs, weights)[0]
        seconds = min(median_s * math.exp(draw.gauss(0, sigma)), named.limit_s or 0.0)
        if draw.random() < 1 / 8:
            seconds = min(seconds, draw.uniform(20, 300))
        each = min(size, NODE_GPUS)
        passes = draw.random() < share_passing
        jobs.append(
            TrueJob(
                submit_s=0.0, seconds=max(10.0, seconds), nodes=size // each, each=each, program=named, passes=passes
            )
        )
    span_s = sum(j.seconds * j.nodes * j.each for j in jobs) / (nodes * NODE_GPUS * load)
    times = sorted(_day_time(draw, span_s) for _ in jobs)
    return [replace(job, submit_s=at_s) for job, at_s in zip(jobs, times, strict=True)], nodes


def _day_time(draw: random.Random, span_s: float) -> float:
    while True:
        at_s = draw.uniform(0, span_s)
        if draw.random() * 1.8 <= 1 + 0.8 * math.sin(2 * math.pi * (at_s / 86400 - 0.25)):
            return at_s


def _limit_s(seconds: float) -> float:
    return 3600.0 * next((h for h in LIMITS_H if h * 3600 >= seconds), LIMITS_H[-1])


def philly(path: Path, cluster: str, count: int, load: float, share_passing: float) -> tuple[list[TrueJob], int]:
    """Return the first `count` jobs of one virtual cluster, and as many nodes as they load to `load`."""
    draw, rows = random.Random(cluster), []
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["cluster"] == cluster and float(row["duration"] or 0) > 0:
                at_s = datetime.fromisoformat(row["timestamp"]).timestamp()
                rows.append((at_s, float(row["duration"]), int(row["num_gpus"])))
    rows = sorted(rows)[:count]
    first_s, last_s = rows[0][0], rows[-1][0]
    nodes = max(4, round(sum(s * g for _, s, g in rows) / (last_s - first_s) / NODE_GPUS / load))
    jobs = []
    for at_s, seconds, gpus in rows:
        each = min(NODE_GPUS, gpus)
        user = f"user{draw.randrange(30)}"
        limit_s = _limit_s(seconds * draw.choice((1.0, 2.0, 4.0)))
        jobs.append(
            TrueJob(
                submit_s=at_s - first_s,
                seconds=min(seconds, limit_s),
                nodes=min(nodes, math.ceil(gpus / each)),
                each=each,
                program=Program(user, cluster, "train", limit_s),
                passes=draw.random() < share_passing,
            )
        )
    return jobs, nodes


class BackfilledQueue:
    """Slurm's queue: by priority, and each of the first jobs that can't start plans its earliest start on whole nodes (sched/backfill).

    What runs counts by its time limit. Jobs that `passes` come before all others.
    """

    def __init__(self, jobs: Sequence[TrueJob], nodes: int) -> None:
        self._jobs = jobs
        self.waiting: list[tuple[bool, int]] = []
        self.free = [NODE_GPUS] * nodes
        self.running: dict[int, tuple[float, Sequence[int]]] = {}  # end of the limit, nodes

    def add(self, key: int) -> None:
        insort(self.waiting, (not self._jobs[key].passes, key))

    def end(self, key: int) -> None:
        for node in self.running.pop(key)[1]:
            self.free[node] += self._jobs[key].each

    def start(self, now_s: float) -> Iterator[int]:
        """Start what can start, and yield it."""
        frees: list[list[tuple[float, int]]] = [[] for _ in self.free]
        for key, (end_s, nodes) in sorted(self.running.items(), key=lambda one: one[1][0]):
            for node in nodes:
                frees[node].append((max(now_s, end_s), self._jobs[key].each))
        plans: list[list[tuple[float, float]]] = [[] for _ in self.free]
        blocked: set[tuple[int, int, float]] = set()
        for place in list(self.waiting)[:BACKFILL_DEPTH]:
            job = self._jobs[place[1]]
            form = (job.nodes, job.each, job.limit_s)
            if form in blocked:
                continue  # one that is alike comes before, and can't start
            at_s, nodes = self._earliest(job, now_s, frees, plans)
            if at_s > now_s:
                blocked.add(form)
                for node in nodes:
                    plans[node].append((at_s, at_s + job.limit_s))
                continue
            self.waiting.remove(place)
            self.running[place[1]] = now_s + job.limit_s, tuple(nodes)
            for node in nodes:
                self.free[node] -= job.each
                insort(frees[node], (now_s + job.limit_s, job.each))
            yield place[1]

    def _earliest(
        self, job: TrueJob, now_s: float, frees: list[list[tuple[float, int]]], plans: list[list[tuple[float, float]]]
    ) -> tuple[float, list[int]]:
        at_s = now_s
        while True:
            times = sorted(
                (self._node_s(node, job, at_s, frees[node], plans[node]), self.free[node], node)
                for node in range(len(self.free))
            )
            if times[job.nodes - 1][0] <= at_s:
                return at_s, [node for _, _, node in times[: job.nodes]]
            at_s = times[job.nodes - 1][0]

    def _node_s(
        self, node: int, job: TrueJob, from_s: float, frees: list[tuple[float, int]], plans: list[tuple[float, float]]
    ) -> float:
        free, at_s = self.free[node], from_s
        for end_s, gpus in frees:
            if free >= job.each and end_s > from_s:
                break
            free += gpus
            at_s = max(at_s, end_s) if free >= job.each else at_s
        for begin_s, end_s in sorted(plans):
            if begin_s < at_s + job.limit_s and at_s < end_s:
                at_s = end_s
        return at_s


@dataclass
class Play:
    """One run of the truth, with looks at it."""

    jobs: Sequence[TrueJob]
    nodes: int
    looks: int

    def __post_init__(self) -> None:
        self.starts: dict[int, float] = {}
        self.forecaster = StartForecaster()
        self.said: list[tuple[int, str, float, Expected]] = []
        self.took_s: list[float] = []
        self.deepest = 0

    def run(self) -> tuple[list[Said], list[Said]]:
        """Return the forecasts of starts and of ends."""
        queue, events = (
            BackfilledQueue(self.jobs, self.nodes),
            [(job.submit_s, 1, i) for i, job in enumerate(self.jobs)],
        )
        span_s = self.jobs[-1].submit_s
        # the first tenth fills the cluster
        events += [(span_s * (0.1 + 0.9 * k / self.looks), 3, k) for k in range(self.looks)]
        # in between the daemon looks each minute; here often enough to see most jobs come
        events += [(k * SEES_S, 2, k) for k in range(int(span_s / SEES_S))]
        heapq.heapify(events)
        while events:
            now_s, kind, key = heapq.heappop(events)
            if kind > 1:
                self._look(now_s, queue, kind == 3)
                continue
            if kind == 0:
                queue.end(key)
                self._learn_end(key, now_s)
            else:
                queue.add(key)
            for started in list(queue.start(now_s)):
                self.starts[started] = now_s
                self.forecaster.note_started(started, now_s)
                heapq.heappush(events, (now_s + self.jobs[started].seconds, 0, started))
        return self._outcomes("start"), self._outcomes("end")

    def _learn_end(self, key: int, now_s: float) -> None:
        job = self.jobs[key]
        self.forecaster.learn([EndedRun(job.program, job.seconds, now_s)])
        self.forecaster.note_ended(key, now_s)

    def _look(self, now_s: float, true: BackfilledQueue, with_forecast: bool) -> None:
        runs = [
            RunningJob(
                job_id=key,
                program=self.jobs[key].program,
                start_s=self.starts[key],
                limit_end_s=limit_end_s,
                nodes=tuple(f"n{node}" for node in nodes),
                need=Amounts(self.jobs[key].each),
                asked=self._pending(key),
            )
            for key, (limit_end_s, nodes) in true.running.items()
        ]
        waiting = [key for _, key in true.waiting]
        queue = Queue(
            now_s=now_s,
            nodes=tuple(
                QueueNode(name=f"n{i}", total=Amounts(NODE_GPUS), free=Amounts(gpus), partitions=frozenset("p"))
                for i, gpus in enumerate(true.free)
            ),
            running=tuple(runs),
            pending=tuple(self._pending(key) for key in waiting),
        )
        self.forecaster.see(queue)
        if not with_forecast:
            return
        began = time.perf_counter()
        told = self.forecaster.forecast(queue)
        self.took_s.append(time.perf_counter() - began)
        self.deepest = max(self.deepest, len(waiting))
        for key in waiting:
            for what, said in (("start", told[key].start), ("end", told[key].end)):
                if said is not None:
                    self.said.append((key, what, now_s, said))

    def _pending(self, key: int) -> PendingJob:
        job = self.jobs[key]
        return PendingJob(
            job_id=key,
            program=job.program,
            nodes=job.nodes,
            need=Amounts(job.each),
            partitions=frozenset("p"),
            submit_s=job.submit_s,
        )

    def _outcomes(self, what: str) -> list[Said]:
        outcomes = []
        for key, kind, now_s, said in self.said:
            true_s = self.starts[key] + (self.jobs[key].seconds if what == "end" else 0.0)
            if kind == what:
                outcomes.append(Said(said.low_s - now_s, said.middle_s - now_s, said.high_s - now_s, true_s - now_s))
        return outcomes


def summary(said: Sequence[Said]) -> dict[str, float]:
    """Return coverage, median error and median width, all in seconds but the share."""
    if not said:
        return {}
    return {
        "forecasts": len(said),
        "held": round(sum(s.holds for s in said) / len(said), 3),
        "median_wait_s": round(statistics.median(s.true_s for s in said)),
        "median_error_s": round(statistics.median(abs(s.middle_s - s.true_s) for s in said)),
        "median_width_s": round(statistics.median(s.high_s - s.low_s for s in said)),
    }


def measure(
    name: str, jobs: Sequence[TrueJob], nodes: int, looks: int
) -> tuple[dict[str, object], list[Said], list[Said]]:
    """Play one queue and print how its forecasts came out."""
    play = Play(jobs, nodes, looks)
    starts, ends = play.run()
    row: dict[str, object] = {
        "queue": name,
        "jobs": len(jobs),
        "nodes": nodes,
        "deepest": play.deepest,
        "start": summary(starts),
        "end": summary(ends),
        "forecast_s": round(statistics.fmean(play.took_s), 3),
        "longest_s": round(max(play.took_s), 3),
    }
    print(json.dumps(row), flush=True)
    return row, starts, ends


def cost(count: int) -> dict[str, float]:
    """Return CPU seconds of a forecast of `count` waiting jobs on 100 full nodes, with the least number of draws, and of their reasons."""
    draw, now_s = random.Random(1), 1e6
    programs = [
        Program(f"u{i % 40}", f"a{i % 5}", f"p{i % 4}", 3600.0 * draw.choice((1, 4, 12, 24, 48))) for i in range(160)
    ]
    runs: list[RunningJob] = []
    for node in range(100):
        free = NODE_GPUS
        while free:
            each, program = min(free, draw.choice((1, 2, 4, 8))), draw.choice(programs)
            had_s = draw.uniform(0, 0.7) * (program.limit_s or 0.0)
            start_s, end_s = now_s - had_s, now_s - had_s + (program.limit_s or 0.0)
            key, names, need = len(runs), (f"n{node}",), Amounts(each, 8 * each)
            runs.append(
                RunningJob(job_id=key, program=program, start_s=start_s, limit_end_s=end_s, nodes=names, need=need)
            )
            free -= each
    waits = []
    for number in range(count):
        size = draw.choices((1, 2, 4, 8, 16, 32), (0.4, 0.15, 0.17, 0.16, 0.08, 0.04))[0]
        each, program = min(NODE_GPUS, size), draw.choice(programs)
        told = PendingJob(
            job_id=10_000 + number, program=program, nodes=size // each, need=Amounts(each, 8 * each), partitions=frozenset("p"),
            submit_s=now_s - 5000 + number, slurm_reason="Priority",
        )  # fmt: skip
        waits.append(told)
    total = Amounts(NODE_GPUS, 8 * NODE_GPUS)
    nodes = tuple(QueueNode(name=f"n{i}", total=total, free=Amounts(), partitions=frozenset("p")) for i in range(100))
    queue = Queue(now_s=now_s, nodes=nodes, running=tuple(runs), pending=tuple(waits))
    forecaster = StartForecaster()
    forecaster.learn(EndedRun(p, draw.random() * (p.limit_s or 0.0)) for p in programs * 10)
    began = time.process_time()
    forecasts = forecaster.forecast(queue, lambda: True)
    forecast_s = time.process_time() - began
    began = time.process_time()
    reasons = Waits(queue, forecasts)
    for job in waits:
        reasons.reasons(job)
    return {
        "waiting": count,
        "running": len(runs),
        "forecast_cpu_s": round(forecast_s, 2),
        "reasons_cpu_s": round(time.process_time() - began, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2500)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--pass", dest="passing", type=float, default=0.05)
    parser.add_argument("--looks", type=int, default=120)
    parser.add_argument("--philly", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cost", type=int)
    options = parser.parse_args()
    if options.cost:
        print(json.dumps(cost(options.cost)))
        return
    rows, starts, ends = [], list[Said](), list[Said]()
    cases = [
        (f"generated {seed}", *generated(seed, options.jobs, options.load, options.passing))
        for seed in range(options.first_seed, options.first_seed + options.queues)
    ]
    if options.philly:
        clusters = ("11cb48", "6c71a0", "b436b2")
        cases = [
            (f"philly {name}", *philly(options.philly, name, options.jobs, options.load, options.passing))
            for name in clusters
        ]
    for name, jobs, nodes in cases:
        row, some_starts, some_ends = measure(name, jobs, nodes, options.looks)
        rows.append(row)
        starts += some_starts
        ends += some_ends
    whole = {"all": {"start": summary(starts), "end": summary(ends)}}
    print(json.dumps(whole))
    if options.json:
        options.json.write_text(json.dumps([*rows, whole], indent=1))


if __name__ == "__main__":
    main()
