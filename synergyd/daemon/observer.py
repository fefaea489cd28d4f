"""Slurm and the reports' port as an epoch and a tick read them: rows in, the controller's events and records out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from synergyd.control.controller import Controller
from synergyd.control.events import JobObserved, Observed, QueueRead, Reported
from synergyd.daemon.job_registry import JobRegistry
from synergyd.daemon.report_inbox import ReceivedReport
from synergyd.records import Cluster, Job, JobState, Profile, Report, Snapshot
from synergyd.settings import Settings
from synergyd.slurm.client import SlurmError, SlurmReader, SlurmWriter
from synergyd.slurm.observe import cluster_of, crowded_partitions, held_to_asked, job_of, node_of, state_of
from synergyd.slurm.rows import JobRow

log = logging.getLogger("synergyd")
SINGLE_READS = 4  # up to so many jobs in transit are read one by one in a tick, more in one bulk read


class Predictor(Protocol):
    """What the bare model says of a report's plan, and of one that failed (forecast.py)."""

    def predicted(self, report: Report, job: Job | None, profile: Profile) -> tuple[float, int] | None: ...

    def least_memory(self, report: Report, job: Job | None, profile: Profile) -> float | None: ...


@dataclass
class Observer:
    """`rows`: Synergy's jobs in the queue as the last epoch read them, by id; `cluster` likewise."""

    settings: Settings
    reader: SlurmReader
    writer: SlurmWriter
    registry: JobRegistry
    rows: dict[int, JobRow] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=lambda: Cluster(()))
    _here: frozenset[int] = frozenset()
    _crowded: frozenset[str] = frozenset()
    _gpu_types: Mapping[str, str] = field(default_factory=dict)  # by node name
    _leaves: dict[str, str] = field(default_factory=dict)  # leaf switch by node name
    _switched: frozenset[str] = frozenset()  # the nodes whose leaf switches are known

    def read(self, plain: frozenset[tuple[int, float]]) -> set[tuple[int, float]]:
        """Reads queue and nodes. `plain`: (job id, submit time) known to have no directive; returns those newly found to have
        none. Raises SlurmError when Slurm can't be read."""
        rows, nodes = self.reader.jobs(), self.reader.nodes()
        self.cluster = cluster_of(
            nodes, self.settings.partitions, self._leaf_switches(frozenset(n.name for n in nodes))
        )
        self._gpu_types = {n.name: node_of(n).gpu_type for n in nodes}
        self.registry.plain |= plain
        ours = [r for r in rows if not self.settings.partitions or r.partition in self.settings.partitions]
        newly_plain = self.registry.learn(ours, self._gpu_types)
        known = self.registry.known
        present = [r for r in rows if state_of(r) is not JobState.DONE]
        self.rows = {r.job_id: r for r in present if r.job_id in known}
        # a job whose directive could not be read this time is in the queue all the same
        self._here = frozenset(r.job_id for r in present if (r.job_id, r.submit_s) not in self.registry.plain)
        self._crowded = crowded_partitions(rows, known)
        return newly_plain

    def queue_events(self) -> Iterator[JobObserved | QueueRead]:
        """What the last read showed of each job, and who has left."""
        for job_id, row in self.rows.items():
            yield _seen(job_id, row)
        yield QueueRead(self._here)

    def snapshot(self, controller: Controller, paused: frozenset[int], now_s: float) -> Snapshot:
        """The cluster and Synergy's jobs as an epoch may decide about them."""
        jobs = []
        for job_id, row in sorted(self.rows.items()):
            job = job_of(row, self.registry.known[job_id], self._gpu_types, paused=job_id in paused)
            begin_s = self.registry.begin_s.get(job_id)
            job = replace(job, begin_s=begin_s if begin_s is not None and begin_s > now_s else None)
            job = controller.as_decided_about(job, now_s)
            jobs.append(held_to_asked(job) if self._crowded & set(job.partition.split(",")) else job)
        return Snapshot(now_s, self.cluster, tuple(jobs), controller.profiles)

    def moving_events(self, moving: list[int]) -> Iterator[JobObserved]:
        """Slurm's present state of jobs that are being resized. Raises SlurmError when Slurm can't be read."""
        moving = [i for i in moving if i in self.registry.known]
        if len(moving) <= SINGLE_READS:
            now = {i: self.writer.job(i) for i in moving}
        else:
            everything = {r.job_id: r for r in self.reader.jobs()}
            now = {i: everything.get(i) for i in moving}
        for job_id, row in now.items():
            yield _seen(job_id, row)

    def read_nodes(self) -> Cluster:
        """The nodes as they are now, between two epochs. Raises SlurmError."""
        return cluster_of(self.reader.nodes(), self.settings.partitions, self._leaves)

    def unchanged(self, job_id: int) -> bool:
        """Is the job as the last epoch read it, as far as a decision about it goes? Raises SlurmError."""
        now, then = self.writer.job(job_id), self.rows.get(job_id)
        if now is None or then is None:
            return False
        same = all(getattr(now, n) == getattr(then, n) for n in ("state", "restarts", "node_names", "tres_per_node"))
        return same and bool(now.priority) == bool(then.priority)

    def report_events(self, received: ReceivedReport, controller: Controller, model: Predictor) -> Iterator[Reported]:
        """A report of a job in the queue by its owner; nothing of any other, whose next one comes soon where it was too early."""
        report, row = received.report, self.rows.get(received.report.job_id)
        tracked = controller.jobs.get(report.job_id)
        if row is None or tracked is None:
            return
        if row.uid != received.uid:
            log.warning("report for job %d by uid %d refused: not its owner's", report.job_id, received.uid)
            return
        if report.restarts != max(tracked.lifecycle.restarts, row.restarts):
            return
        job = tracked.job
        running = job if job and job.restarts == report.restarts and job.state is JobState.RUNNING else None
        fresh = self._now(report.job_id) if report.failure is not None and running is None else None
        known = report, running or fresh, tracked.profile or Profile()
        shape = running.shape if running else None
        yield Reported((report,), row.restarts, model.predicted(*known), shape, model.least_memory(*known), fresh)

    def _now(self, job_id: int) -> Job | None:
        """The job as Slurm shows it now; None where Slurm can't be read."""
        try:
            row = self.writer.job(job_id)
        except SlurmError:
            return None
        known = self.registry.known.get(job_id)
        return job_of(row, known, self._gpu_types, paused=False) if row is not None and known is not None else None

    def _leaf_switches(self, names: frozenset[str]) -> dict[str, str]:
        """Read again when nodes have come or gone: Slurm itself reads a new topology only when it starts again."""
        if names != self._switched:
            try:
                self._leaves, self._switched = self.writer.leaf_switches(), names
            except SlurmError as problem:
                log.warning("topology: %s", problem)
        return self._leaves


def _seen(job_id: int, row: JobRow | None) -> JobObserved:
    if row is None or (state := state_of(row)) is JobState.DONE:
        return JobObserved(job_id, row.submit_s if row else 0.0, Observed("GONE"))
    pending = state is JobState.PENDING
    observed = Observed(state.value, row.restarts, row.eligible_s if pending else None, row.reason if pending else "")
    return JobObserved(job_id, row.submit_s, observed, requeuing=pending and row.state != "PENDING")
