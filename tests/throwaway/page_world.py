"""A day of a made-up cluster, as a daemon would have stored it: nodes, jobs that come, are resized and go, their reports."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from synergy_core.job_report import Report
from synergy_core.reasons import Reason, text_reason
from synergy_core.records import (
    Action,
    Alternative,
    Cell,
    Cluster,
    Decision,
    Job,
    JobState,
    Node,
    Plan,
    Shape,
    Snapshot,
)
from synergy_core.usage import Usage

from synergyd.control.decision_log import JobStatus
from synergyd.control.queue_history import QueueHistory
from synergyd.store.months import last_midnights
from synergyd.store.records import EpochRecord, StoredEvent, StoredLifecycle, StoredReport
from synergyd.store.store import Store

USERS = (("mina", "vision"), ("joao", "language"), ("wei", "language"), ("root", "ops"))
NAMES = ("llama-7b", "mixtral-ft", "vit-sweep", "whisper-l", "gpt-neo-x", "diffusion-xl", "bert-distil", "t5-summ")


@dataclass
class Running:
    """A job of the world."""

    job_id: int
    asked: int
    gpus: int = 0
    nodes: tuple[str, ...] = ()
    each: int = 0
    restarts: int = 0
    step: int = 0
    left: int = 0  # epochs
    noise: float = 3000.0
    batch: int = 64
    cell: Cell | None = field(default=None)

    @property
    def name(self) -> str:
        return f"{NAMES[self.job_id % len(NAMES)]}-{self.job_id % 7}"

    @property
    def owner(self) -> tuple[str, str]:
        return USERS[self.job_id % len(USERS)]


class World:
    """`jobs` at a time on `nodes` nodes of 8 GPUs; every epoch some go, come and are resized."""

    def __init__(self, nodes: int, jobs: int, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.names = [f"gpu{n:03d}" for n in range(1, nodes + 1)]
        self.most, self.next_id = jobs, 4700
        self.free = dict.fromkeys(self.names, 8)
        self.down = {self.names[-1]} if nodes > 8 else set()
        self.others = {name: 4 for name in self.names[2 : nodes // 6]}
        for name in self.down:
            self.free[name] = 0
        for name, gpus in self.others.items():
            self.free[name] -= gpus
        self.jobs: dict[int, Running] = {}
        self.history = QueueHistory()

    def turn(self) -> None:
        """What an epoch changes."""
        pick = self.random
        for job in list(self.jobs.values()):
            if not job.gpus:
                continue
            job.left -= 1
            job.step += round(60 * math.sqrt(job.gpus) / 4)
            job.noise *= 1.0015
            if job.left <= 0:
                self.give_back(job)
                del self.jobs[job.job_id]
            elif pick.random() < 0.012:
                self.give_back(job)
                job.restarts += 1
                self.place(job, max(1, min(32, job.asked * pick.choice((1, 2, 2, 4)))))
        while len(self.jobs) < self.most:
            self.next_id += 1
            asked = pick.choice((1, 1, 2, 4, 4, 8, 8, 16))
            self.jobs[self.next_id] = Running(self.next_id, asked, left=pick.randint(40, 500))
        for job in self.jobs.values():
            if not job.gpus:
                self.place(job, job.asked)

    def place(self, job: Running, gpus: int) -> None:
        each = min(8, gpus)
        fits = sorted((n for n in self.names if self.free[n] >= each), key=lambda n: self.free[n])[: gpus // each]
        if len(fits) < gpus // each:
            return
        job.gpus, job.nodes, job.each = gpus, tuple(fits), each
        job.batch = 32 * gpus
        for name in fits:
            self.free[name] -= each

    def give_back(self, job: Running) -> None:
        for name in job.nodes:
            self.free[name] += job.each
        job.gpus, job.nodes = 0, ()

    def save(self, store: Store, at_s: float, *, last: bool) -> None:
        """Stores the epoch; the last one with each job as it stands."""
        jobs = tuple(self._job(job, at_s) for job in self.jobs.values())
        cluster = Cluster(
            tuple(
                Node(name, "a100", 8, 8 - self.free[name] if name not in self.down else 0, up=name not in self.down,
                     partitions=("gpu" if int(name[3:]) % 4 else "gpu-long",),
                     reason="Not responding" if name in self.down else "")
                for name in self.names
            )
        )  # fmt: skip
        decisions = tuple(self._decision(job) for job in self.jobs.values())
        reports = {job.job_id: self._report(job) for job in self.jobs.values() if job.step}
        summary = self.history.epoch(Snapshot(at_s, cluster, jobs), decisions, reports, at_s)
        told = {"jobs": len(jobs), "nodes": len(self.names), "gpus": 8 * (len(self.names) - len(self.down))}
        present = tuple(self._status(job) for job in self.jobs.values()) if last else ()
        news = decisions if last else ()
        store.save_epoch(EpochRecord(at_s, 0.4, False, news, {**told, **summary}, present=present))
        if last:
            store.put_lifecycles(
                StoredLifecycle(j.job_id, at_s, "RUNNING" if j.gpus else "QUEUED", {}, at_s) for j in self.jobs.values()
            )
            store.put_reports(StoredReport(report, at_s) for report in reports.values())
            store.append_events([event for job in self.jobs.values() for event in self._story(job, at_s)])

    def _job(self, job: Running, at_s: float) -> Job:
        asked = Shape("a100", max(1, job.asked // 8), min(8, job.asked))
        shape = Shape("a100", len(job.nodes), job.each) if job.gpus else asked
        state = JobState.RUNNING if job.gpus else JobState.PENDING
        user, account = job.owner
        made = Job(job.job_id, job.name, user, 0, "gpu", state, "", at_s, None, None, job.restarts, shape, asked)
        return replace(made, node_names=job.nodes, account=account)

    def _cell(self, gpus: int, job: Running) -> Cell:
        shape = Shape("a100", max(1, gpus // 8), min(8, gpus))
        speed = 3.1 * gpus**0.86
        batch = 32 * gpus
        efficiency = (job.noise + 32) / (job.noise + batch)
        plan = Plan(dp=gpus, micro_batch=4, global_batch=batch)
        return Cell(shape, plan, speed, efficiency, speed * efficiency, batch / speed, 30 * 2**30, 0.06)

    def _decision(self, job: Running) -> Decision:
        asked = self._cell(job.asked, job)
        if not job.gpus:
            why = f"It waits: its {job.asked} GPUs would gain less there than with the {len(self.jobs) // 3} jobs that hold them."
            return Decision(job.job_id, Action.WAIT, None, (), text_reason(why))
        cell = self._cell(job.gpus, job)
        sizes = [g for g in (1, 2, 4, 8, 16, 32, 64) if g != job.gpus and job.asked / 2 <= g <= 8 * job.asked][:5]
        whys = ("uses fewer GPUs than are free", "needs more nodes than are free", "gains less than others would lose")
        others = tuple(
            Alternative(self._cell(g, job), Reason("text", {"text": whys[n % 3]})) for n, g in enumerate(sizes)
        )
        gain = cell.goodput / asked.goodput
        why = f"{job.gpus} GPUs in place of {job.asked} train {gain:.2f} times as much; no other job gains more from them."
        worth = (("goodput", math.log(gain)), ("need", 0.4), ("restart", -0.02))
        return Decision(job.job_id, Action.KEEP, cell, job.nodes, text_reason(why), gain, others, worth, 0.93)

    def _report(self, job: Running) -> Report:
        gpus = job.gpus or job.asked
        plan = Plan(dp=gpus, micro_batch=4, global_batch=job.batch)
        loss = 1.9 + 6 / (1 + job.step / 400) + self.random.uniform(-0.03, 0.03)
        step_s = job.batch / (3.1 * gpus**0.86) * self.random.uniform(0.97, 1.03)
        noise = job.noise * self.random.uniform(0.9, 1.1)
        return Report(job.job_id, job.restarts, job.step, step_s, loss, job.step * 65536, noise, 30 * 2**30, plan=plan)

    def _status(self, job: Running) -> JobStatus:
        decision, report = self._decision(job), self._report(job)
        user, account = job.owner
        return JobStatus(
            job_id=job.job_id, name=job.name, user=user, state="RUNNING" if job.gpus else "PENDING",
            lifecycle="RUNNING" if job.gpus else "QUEUED", gpus=job.gpus, asked_gpus=job.asked,
            wanted_gpus=decision.cell.shape.gpus if decision.cell else 0, wanted_nodes=decision.node_names, action=decision.action.value,
            why=decision.why, relative_goodput=decision.relative_goodput, plan=report.plan if job.gpus else None,
            global_batch=job.batch if job.gpus else None, restarts=job.restarts, step=job.step or None,
            loss=report.loss if job.step else None, account=account, partition="gpu" if job.job_id % 3 else "gpu-long",
        )  # fmt: skip

    def _story(self, job: Running, at_s: float) -> list[StoredEvent]:
        begin = [StoredEvent(job.job_id, at_s - 9000, "QUEUED", "Observed", "it came into the queue")]
        if job.restarts:
            begin.append(StoredEvent(job.job_id, at_s - 900, "RUNNING", "Observed", f"it runs on {job.gpus} GPUs"))
        return begin


def fill(store: Store, *, nodes: int, jobs: int, now_s: float, epochs: int = 480, every_s: float = 180.0) -> World:
    """A day of epochs up to now."""
    world = World(nodes, jobs)
    for n in range(epochs):
        world.turn()
        last = n == epochs - 1
        world.save(store, now_s - (epochs - 1 - n) * every_s, last=last)
    store.put_usage(month(nodes, now_s))
    return world


def month(nodes: int, now_s: float) -> Iterator[Usage]:
    """What jobs made of their GPUs on each of the last 31 days."""
    rng = random.Random(1)
    for day, (begin_s, end_s) in enumerate(pairwise(last_midnights(31))):
        busy = 0.5 + 0.3 * math.sin(day / 5) - 0.2 * (day % 7 in (0, 6))
        for n in range(max(1, int(nodes * busy))):
            held_s = (min(end_s, now_s) - begin_s) * rng.uniform(0.85, 1.0)
            restart_s, gpus = rng.choice((0.0, 60.0, 400.0)), 8
            trained_s = (held_s - restart_s) * rng.uniform(0.8, 0.97)
            user, account = USERS[n % len(USERS)]
            yield Usage(
                job_id=90_000 + 1000 * day + n, user=user, account=account, start_s=begin_s, from_s=begin_s,
                to_s=begin_s + held_s, gpus=gpus, asked_gpus=gpus, trained_s=trained_s, restart_s=restart_s,
                useful_gpu_s=gpus * trained_s * rng.uniform(1.0, 1.4), slow_s=0.05 * trained_s * (n % 9 == 0),
                predicted_ratio=1.3 if n % 3 else None, checkpoint_s=restart_s / 4, idle_s=0.6 * (held_s - trained_s) * (n % 4 == 0),
                waited_s=rng.expovariate(1 / 3000), state="COMPLETED",
            )  # fmt: skip
