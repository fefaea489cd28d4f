"""Slurm and the reports' port as an epoch and a tick read them: rows in, the controller's events and records out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from synergyd.control.controller import Controller
from synergyd.control.known.time_view import Reservation, in_time
from synergyd.control.move_limits import settled
from synergyd.control.resize.events import JobObserved, Observed, QueueRead, Reported
from synergyd.control.resize.instructions import Update
from synergyd.control.resize.walltime import Walltime
from synergyd.control.tracked import Tracked
from synergyd.control.waiting import is_slurms_to_start
from synergyd.daemon.account_limits import AccountReader, use_of
from synergyd.daemon.day_time import minute_of_day
from synergyd.daemon.job_registry import JobRegistry
from synergyd.daemon.ports.report_inbox import ReceivedReport
from synergyd.daemon.user_groups import UserGroups
from synergyd.job_report import Report
from synergyd.records import Cluster, Job, JobState, Profile, Snapshot
from synergyd.scheduler.problem.gpu_limits import NO_SLURM_LIMITS, SlurmLimits, beyond
from synergyd.settings import Settings
from synergyd.slurm.client import SlurmError, SlurmReader, SlurmWriter
from synergyd.slurm.parsed.crowded import (
    LOOKED_AT,
    Crowded,
    crowded,
    held_to_asked,
    holders_of,
    is_filled_now,
    reason_of,
    waiting_of,
    who_gives_back,
)
from synergyd.slurm.parsed.het_jobs import apart, with_leader
from synergyd.slurm.parsed.hidden_nodes import HiddenNodes
from synergyd.slurm.parsed.job_forms import Forms, forms_of
from synergyd.slurm.parsed.needs import beyond_placing, open_partitions
from synergyd.slurm.parsed.node_states import UNHEARD
from synergyd.slurm.parsed.partition_cpus import capped, cpu_caps
from synergyd.slurm.parsed.reservations import Shield, read_reservations, read_shields
from synergyd.slurm.parsed.rows import JobRow, NodeRow, PartitionRow
from synergyd.slurm.parsed.snapshot import (
    cluster_of,
    drains,
    gpuless,
    is_as_submitted,
    is_in,
    job_of,
    launch_failed,
    leaks,
    node_of,
    not_resizable,
    passed_over,
    state_of,
    with_leaks,
)
from synergyd.slurm.parsed.switches import Leaves
from synergyd.steering import Steering, as_steered
from synergyd.task.batch_range import with_range
from synergyd.task.exchange_choice import with_exchange

log = logging.getLogger("synergyd")
NOT_STEERED: Mapping[int, Steering] = {}
NO_RESERVATIONS = 3  # epochs until a cluster without reservations is asked again: they are made minutes ahead
SINGLE_READS = 4  # up to so many jobs in transit are read one by one in a tick, more in one bulk read
PASSED_EPOCHS = 2  # that a job waits at the least before it counts as passed by others
LIMITS_EPOCHS = 20  # until the partitions' groups and the cluster's defaults are read again


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
    accounts: AccountReader
    slurm_limits: SlurmLimits = NO_SLURM_LIMITS  # as the last epoch read them
    rows: dict[int, JobRow] = field(default_factory=dict)
    everybodys: tuple[JobRow, ...] = ()  # of all jobs, Synergy's or not, as the last epoch read them
    cluster: Cluster = field(default_factory=lambda: Cluster(()))
    forms: Forms = field(default_factory=Forms)  # as the last snapshot found them
    shields: tuple[Shield, ...] = ()  # as they were read with the reservations last
    slurms: frozenset[int] = frozenset()  # that wait and are Slurm's to start, as the last snapshot found
    passed: frozenset[int] = frozenset()  # that wait, and that jobs which Slurm starts have passed
    _by_slurm: frozenset[int] = frozenset()  # that are or were in `slurms`
    _here: frozenset[int] = frozenset()
    _nodes: tuple[NodeRow, ...] = ()  # as the last epoch read them
    _looked: set[int] = field(default_factory=set)  # read one by one for the reports of this look
    _unread: set[int] = field(default_factory=set)  # whose first speed since the last epoch is still to be learnt
    _queue: tuple[JobRow, ...] = ()  # as the last epoch read it
    gpu_types: Mapping[str, str] = field(default_factory=dict)  # by node name
    _leaves: dict[str, str] = field(default_factory=dict)  # leaf switch by node name
    limits: dict[str, PartitionRow] = field(default_factory=dict)  # by partition
    _limited: frozenset[str] = frozenset()  # the partitions that were there then
    _limits_left: int = 0  # epochs until they are read again
    _by_group: bool = False  # some partition has AllowGroups
    _groups: UserGroups = field(default_factory=UserGroups)
    _cpu_caps: Mapping[str, int] = field(default_factory=dict)  # by node, for its partition's MaxCPUsPerNode
    _leaks: dict[str, int] = field(default_factory=dict)  # by node, as the last epoch saw them
    _hidden: HiddenNodes = field(default_factory=HiddenNodes)
    _reservations: tuple[Reservation, ...] = ()
    _reserved_left: int = 0  # epochs until they are read again, where there were none
    # since when Slurm says that a plain job, of this id and submit time, waits for what others hold
    _waiting: dict[tuple[int, float], float] = field(default_factory=dict)
    _switched: frozenset[str] = frozenset()  # the nodes whose leaf switches are known

    def read(self, plain: frozenset[tuple[int, float]], now_s: float) -> set[tuple[int, float]]:
        """Reads queue and nodes. `plain`: (job id, submit time) known to have no directive; returns those newly found to have
        none. Raises SlurmError when Slurm can't be read."""
        rows, nodes = self.reader.jobs(), self.reader.nodes()
        self._read_limits(frozenset(p for n in nodes for p in n.partitions))
        nodes = self._hidden.shown(nodes, self.limits)
        leaves = self._leaf_switches(frozenset(n.name for n in nodes))
        self.registry.topology = bool(leaves)
        self._cpu_caps = cpu_caps(nodes, rows, self.limits)
        self.cluster = cluster_of(capped(nodes, self._cpu_caps), self.settings.partitions, leaves, self.limits)
        # seen twice: a job may start between the two reads
        leaked, before = leaks(nodes, rows), self._leaks
        self._leaks = leaked
        self.cluster = with_leaks(self.cluster, {n: c for n, c in leaked.items() if before.get(n) == c})
        self.gpu_types = {n.name: node_of(n).gpu_type for n in nodes}
        self._read_reservations({n.name: n.cpus for n in nodes}, any(n.reserved for n in self.cluster.nodes))
        self.registry.plain |= plain
        # one that Slurm has started in another of its partitions is still ours
        ours = [r for r in rows if is_in(r, self.settings.partitions) or r.job_id in self.registry.known]
        newly_plain = self.registry.learn(ours, self.gpu_types)
        known = self.registry.known
        self._nodes, self.everybodys = nodes, rows
        present = [with_leader(r, self.registry.parts) for r in rows if state_of(r) is not JobState.DONE]
        self.rows = {r.job_id: r for r in present if r.job_id in known}
        self._unread.clear()  # who runs is known again
        # a job whose directive could not be read this time is in the queue all the same
        self._here = frozenset(r.job_id for r in present if (r.job_id, r.submit_s) not in self.registry.plain)
        self._queue = rows
        since_s, shared = now_s - PASSED_EPOCHS * self.settings.epoch_s, {n.name: n.partitions for n in nodes}
        self.passed = passed_over(rows, known.keys() - self._by_slurm, since_s, self.gpu_types, shared)
        uses = (use_of(row, known[i], self.gpu_types, now_s, self.limits) for i, row in self.rows.items())
        self.slurm_limits = self.accounts.read().limits(uses, self.cluster)
        return newly_plain

    def queue_events(self, moving: Iterable[int] = ()) -> Iterator[JobObserved | QueueRead]:
        """What the last read showed of each job, and who has left: of those `moving`, how. Raises SlurmError."""
        for job_id, row in self.rows.items():
            yield self._seen(job_id, row)
        requeued = set()
        for event in self.moving_events([i for i in moving if i not in self._here]):
            yield event
            if event.observed.gpuless or event.observed.failed:
                requeued.add(event.job_id)
        yield QueueRead(self._here | requeued)

    def snapshot(
        self,
        controller: Controller,
        paused: frozenset[int],
        now_s: float,
        steering: Mapping[int, Steering] = NOT_STEERED,
    ) -> Snapshot:
        """The cluster and Synergy's jobs as an epoch may decide about them. `steering`: what owners have set, by job id."""
        self.cluster = controller.power_ups.see(self.cluster, now_s)
        # a node is shown to be reserved some seconds longer than it is
        held = frozenset[str]().union(*(r.nodes for r in self._reservations))
        reserved = frozenset(n.name for n in self.cluster.nodes if n.reserved and n.name in held)
        jobs, waits = [], self._job_forms(controller, paused, now_s).waits
        leaves, topology = Leaves(self.cluster), bool(self._leaves)
        minute = minute_of_day(now_s)
        for job_id, row in sorted(self.rows.items()):
            known = self.registry.known[job_id]
            groups = self._groups.of(row.uid) if self._by_group else None
            job = job_of(
                row,
                known,
                self.gpu_types,
                paused=job_id in paused,
                partitions=self.limits,
                groups=groups,
                topology=topology,
                qos_flags=self.accounts.qos_flags(row.qos),
            )
            job = leaves.within(job, row.switches) if row.switches else job
            if job.directive is not None and job_id in steering:
                job = as_steered(job, steering[job_id])
            if job.state is JobState.RUNNING and not job.fixed and job_id in self.slurm_limits.stuck:
                job = replace(job, fixed=self.slurm_limits.stuck[job_id])
            job = controller.as_decided_about(apart(job, row, self.registry.parts, self.cluster, self._nodes), now_s)
            tracked = controller.jobs.get(job_id)
            if job.directive is not None and tracked is not None:
                job = with_range(job, tracked.profile, tracked.lifecycle.batch_cap, self.settings.adapt_batch)
                job = with_exchange(job, tracked.lifecycle.exact_only, self.settings.comm_options)
                if job.directive is not None and job.directive.adapt and job.batches != known.batches:
                    self.registry.known[job_id] = replace(known, batches=job.batches)
                restart_s = controller.restarts.cost(tracked, job).mean_s + controller.times.restart_delay_s
                job = in_time(
                    job,
                    tracked.lifecycle.walltime,
                    self._reservations,
                    now_s,
                    lead_s=controller.restarts.lead_s(tracked),
                    restart_s=restart_s,
                    least_s=row.min_time_s,
                    reserved=reserved,
                )
            if job.directive is not None and job_id in waits:
                job = replace(job, directive=None, directive_error=waits[job_id])
            if job.directive is not None and (why := self._hidden.may_need(job, self.cluster, self.limits)):
                job = replace(job, directive=None, directive_error=f"Synergy leaves the job to Slurm: {why}")
            jobs.append(job)
        self.slurms = frozenset(j.job_id for j in jobs if self._is_slurms(j, controller.jobs.get(j.job_id)))
        self._by_slurm = (self._by_slurm & self.rows.keys()) | self.slurms
        others = self._crowded(controller, jobs, now_s)
        for i, job in enumerate(jobs):
            if why := others.why(job):
                job = held_to_asked(job, why, others.keeps.get(job.job_id, ()) if others.is_of_use(job) else None)
            tracked = controller.jobs.get(job.job_id)
            moves = None if tracked is None else tracked.lifecycle.moves
            jobs[i] = job if moves is None else settled(job, moves, self.settings, now_s, minute)
        penalties = controller.watch.nodes.penalties(now_s)
        return Snapshot(now_s, self.cluster, tuple(jobs), controller.profiles, penalties)

    def start_informed(self) -> frozenset[int]:
        """Return the jobs that the plugin's grace alone keeps from Slurm's start, on several nodes: where the links' arbiter is they are
        told at their start alone."""
        known = self.registry.known
        return frozenset(i for i in self.slurms if known[i].put_off_s is not None and self.rows[i].num_nodes > 1)

    def _is_slurms(self, job: Job, tracked: Tracked | None) -> bool:
        as_submitted = is_as_submitted(self.rows[job.job_id], self.registry.known[job.job_id])
        return tracked is not None and as_submitted and is_slurms_to_start(tracked, job)

    def _crowded(self, controller: Controller, jobs: list[Job], now_s: float) -> Crowded:
        """Where jobs that Synergy does not decide about wait, and who gives GPUs back for them: once Slurm has said for an epoch that
        they wait for what others hold."""
        left = {i for i, tracked in controller.jobs.items() if tracked.lifecycle.left}
        decided = {i for i in self.rows if self.registry.known[i].directive is not None} - left - self.slurms
        waiting = waiting_of(self._queue, decided)
        named = {r.job_id: r for r in waiting if reason_of(r) in LOOKED_AT or is_filled_now(reason_of(r))}
        still = {(r.job_id, r.submit_s) for r in waiting}
        self._waiting = {key: at_s for key, at_s in self._waiting.items() if key in still}
        for row in named.values():
            self._waiting.setdefault((row.job_id, row.submit_s), now_s)
        long = {i for i, r in named.items() if self._waiting[i, r.submit_s] <= now_s - self.settings.epoch_s}
        others = crowded(waiting, self.cluster.nodes, long)
        holders = holders_of(j for j in jobs if others.why(j))
        ready = [r for r in waiting if r.job_id in long and reason_of(r) in LOOKED_AT]
        if not (holders and ready):
            return others
        try:
            lists = self.writer.node_lists([r.job_id for r in ready])
        except SlurmError as problem:
            log.warning("nodes that waiting jobs ask for: %s", problem)
            return others
        barred = frozenset[str]().union(
            *(r.nodes for r in self._reservations if r.bars and r.start_s <= now_s < r.end_s)
        )
        keeps = who_gives_back(ready, holders, self.cluster.nodes, lists, self.limits, now_s, barred)
        return replace(others, keeps=keeps)

    def beyond_limits(self, update: Update) -> str:
        """Which limit of Slurm the job would be beyond with this size, as things are now: of a daemon that writes in its own name,
        where Slurm would take it as lifted. "" for none."""
        row = self.rows.get(update.job_id)
        if row is None or self.writer.acts_as_owner or not self.accounts.limited:
            return ""
        use = replace(use_of(row, self.registry.known[row.job_id], self.gpu_types, 0.0, self.limits), holds=None)
        return beyond(self.accounts.read().limits([use], self.cluster), row.job_id, update.target.shape)

    def _job_forms(self, controller: Controller, paused: frozenset[int], now_s: float) -> Forms:
        known = self.registry.known
        jobs = {i: d for i in self.rows if (d := known[i].directive) is not None}
        begin_s = {i: t.begin_s or 0.0 for i, t in controller.jobs.items()}
        untouched = {i for i in self.rows if i in paused or i not in jobs or begin_s.get(i, 0.0) > now_s}
        untouched |= {i for i, r in self.rows.items() if r.priority == 0 or beyond_placing(r, bool(self._leaves))}
        untouched |= {i for i, t in controller.jobs.items() if t.lifecycle.left}
        fixed = {i for i, d in jobs.items() if not_resizable(self.rows[i], d)}
        self.forms = forms_of(
            self.rows.values(), self.registry.throttles, frozenset(controller.in_transit), untouched, fixed
        )
        return self.forms

    def moving_events(self, moving: list[int]) -> Iterator[JobObserved]:
        """Slurm's present state of jobs that are being resized. Raises SlurmError when Slurm can't be read."""
        moving = [i for i in moving if i in self.registry.known]
        if len(moving) <= SINGLE_READS:
            now = {i: self.writer.job(i, ended=True) for i in moving}
        else:
            everything = {r.job_id: r for r in self.reader.jobs()}
            now = {i: everything.get(i) for i in moving}
        for job_id, row in now.items():
            yield self._seen(job_id, row)

    @property
    def unheard(self) -> frozenset[str]:
        """Nodes that slurmctld, which has just started, waits to hear of, as they were read last."""
        return frozenset(n.name for n in self._nodes if n.state == UNHEARD)

    def shut(self, row: JobRow) -> str:
        """Why this running job's partition would not start it again, as partitions were read last; "" where it would."""
        known, groups = self.registry.known[row.job_id], self._groups.of(row.uid) if self._by_group else None
        flags = self.accounts.qos_flags(row.qos)
        return open_partitions(row, known.asked.nodes, self.limits, groups, flags)[1] or drains(row, self.limits)

    def read_nodes(self) -> Cluster:
        """The nodes as they are now, between two epochs. Raises SlurmError."""
        self._nodes = self._hidden.shown(self.reader.nodes(), self.limits)
        return cluster_of(capped(self._nodes, self._cpu_caps), self.settings.partitions, self._leaves, self.limits)

    @property
    def waits_for_nodes(self) -> bool:
        """slurmctld, which has just started, waits to hear of nodes that a job may get."""
        return bool(self.unheard)

    @property
    def may_take_jobs(self) -> frozenset[str]:
        """Nodes that a job on its way to them may still get: those that are up, and those that slurmctld, which has just started, waits
        to hear of. It does so for a few seconds, and a job that were sent elsewhere then would be restarted once more."""
        unheard = self.unheard
        return frozenset(n.name for n in self.cluster.nodes if n.up or n.name in unheard)

    def unchanged(self, job_id: int) -> bool:
        """Is the job as the last epoch read it, as far as a decision about it goes? Raises SlurmError."""
        now, then = self.writer.job(job_id), self.rows.get(job_id)
        if now is None or then is None:
            return False
        same = all(getattr(now, n) == getattr(then, n) for n in ("state", "restarts", "node_names", "tres_per_node"))
        return same and bool(now.priority) == bool(then.priority)

    def hear(self) -> None:
        """Reports follow: each look reads few single jobs for them."""
        self._looked.clear()

    def report_events(self, received: ReceivedReport, controller: Controller, model: Predictor) -> Iterator[Reported]:
        """A report of a job in the queue by its owner; nothing of any other, whose next one comes soon where it was too early."""
        report, row = received.report, self.rows.get(received.report.job_id)
        tracked = controller.jobs.get(report.job_id)
        if row is None or tracked is None or row.uid != received.uid:
            return
        if report.restarts != max(tracked.lifecycle.restarts, row.restarts):
            return
        job = tracked.job
        running = job if job and job.restarts == report.restarts and job.state is JobState.RUNNING else None
        speed = running is None and (_first_speed(report, tracked.report) or report.job_id in self._unread)
        fresh = self._now(report.job_id) if running is None and (speed or report.failure is not None) else None
        if speed:
            (self._unread.add if fresh is None else self._unread.discard)(report.job_id)
            if fresh is not None and fresh.restarts == report.restarts and fresh.state is JobState.RUNNING:
                running = fresh
        fresh = fresh if report.failure is not None else None
        known = report, running or fresh, tracked.profile or Profile()
        shape = running.shape if running else None
        yield Reported((report,), row.restarts, model.predicted(*known), shape, model.least_memory(*known), fresh)

    def _now(self, job_id: int) -> Job | None:
        """The job as Slurm shows it now; None where Slurm can't be read, or where many were read since the last look."""
        if job_id in self._looked or len(self._looked) >= SINGLE_READS:
            return None  # its launcher says it again, and its agent reports again
        self._looked.add(job_id)
        try:
            row = self.writer.job(job_id)
        except SlurmError:
            return None
        known = self.registry.known.get(job_id)
        return job_of(row, known, self.gpu_types, paused=False) if row is not None and known is not None else None

    def _seen(self, job_id: int, row: JobRow | None) -> JobObserved:
        if row is None or (state := state_of(row)) is JobState.DONE:
            without = row is not None and gpuless(row, self.limits)
            failed = row is not None and row.state == "FAILED"
            gone = Observed("GONE", row.restarts if row else 0, gpuless=without, failed=failed)
            return JobObserved(job_id, row.submit_s if row else 0.0, gone)
        pending = state is JobState.PENDING
        observed = Observed(state.value, row.restarts, limit_s=row.time_limit_s, nice=row.nice)
        if pending:
            failed = launch_failed(row)
            observed = replace(
                observed, eligible_s=row.eligible_s, launch_failed=failed, reason=row.reason, queued_s=row.submit_s
            )
        elif state in (JobState.RUNNING, JobState.SUSPENDED):
            ends_s = None if row.time_limit_s is None else row.end_s
            observed = replace(observed, ends_s=ends_s, started_s=row.start_s, gpuless=gpuless(row, self.limits))
        known = self.registry.known[job_id]
        continues = known.directive.continues if known.directive else 0
        walltime = Walltime(asked_s=known.time_limit_s, continues=continues, continued=known.continued)
        requeuing = pending and row.state != "PENDING"
        return JobObserved(job_id, row.submit_s, observed, requeuing, self.registry.begin_s(row), walltime)

    def _read_limits(self, names: frozenset[str]) -> None:
        """Partitions' states and limits. The cluster's own defaults and users' groups are read again when partitions have come or gone
        and each LIMITS_EPOCHS."""
        again = self._limits_left <= 1 or names != self._limited
        try:
            self.read_partitions(again=again)
        except SlurmError as problem:
            log.warning("partitions' limits: %s", problem)
            return
        self._limits_left, self._limited = LIMITS_EPOCHS if again else self._limits_left - 1, names
        if again:
            self._groups.forget()

    def read_partitions(self, *, again: bool = False) -> None:
        """The partitions as they are now; with `again` the cluster's own defaults too. Raises SlurmError."""
        self.limits = {p.name: p for p in self.writer.partitions(again=again)}
        self._by_group = any(p.allow_groups for p in self.limits.values())

    def _read_reservations(self, cpus: Mapping[str, int], shown: bool) -> None:
        """Each epoch while there are any, or nodes are `shown` to be in one; else each NO_RESERVATIONS."""
        if self._reserved_left > 0 and not shown:
            self._reserved_left -= 1
            return
        try:
            text = self.writer.reservations()
            self._reservations, self.shields = read_reservations(text, cpus), read_shields(text)
        except SlurmError as problem:
            log.warning("reservations: %s", problem)
            self._reserved_left = 0
            return
        self._reserved_left = 0 if self._reservations else NO_RESERVATIONS

    def _leaf_switches(self, names: frozenset[str]) -> dict[str, str]:
        """Read again when nodes have come or gone: Slurm itself reads a new topology only when it starts again."""
        if names != self._switched:
            try:
                self._leaves, self._switched = self.writer.leaf_switches(), names
            except SlurmError as problem:
                log.warning("topology: %s", problem)
        return self._leaves


def _first_speed(report: Report, before: Report | None) -> bool:
    """Does it say how long a step takes, as the first of its incarnation?"""
    known = before is not None and before.restarts == report.restarts and before.step_s is not None
    return report.step_s is not None and not known
