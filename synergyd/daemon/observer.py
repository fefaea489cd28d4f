"""Slurm and the reports' port as an epoch and a tick read them: rows in, the controller's events and records out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from synergy_core.job_report import Report
from synergy_core.records import Cluster, Decision, Job, JobState, Profile, Snapshot
from synergy_core.steering import Steering, steer_job

from synergyd.control.controller import Controller
from synergyd.control.move_limits import with_move_limits
from synergyd.control.resize.events import JobObserved, Observed, QueueRead, ReportsReceived
from synergyd.control.resize.instructions import Update
from synergyd.control.resize.walltime import Walltime
from synergyd.control.state.time_view import Reservation, with_time_left
from synergyd.control.tracked import TrackedJob
from synergyd.control.waiting import is_slurms_to_start
from synergyd.daemon.account_limits import AccountReader, describe_use
from synergyd.daemon.day_time import minute_of_day
from synergyd.daemon.job_registry import JobRegistry
from synergyd.daemon.ports.report_inbox import ReceivedReport
from synergyd.daemon.queue_look import QueueLook
from synergyd.daemon.user_groups import UserGroups
from synergyd.jobmodel.batch_range import with_range
from synergyd.jobmodel.exchange_choice import with_exchange
from synergyd.scheduler.problem.gpu_limits import NO_SLURM_LIMITS, SlurmLimits, find_exceeded_limit
from synergyd.settings import Settings
from synergyd.slurm.client import SlurmError, SlurmReader, SlurmWriter
from synergyd.slurm.parsed.crowded import (
    LOOKED_AT,
    CrowdedPlaces,
    find_crowded,
    find_holders,
    find_waiting_jobs,
    is_filled_now,
    limit_to_requested_size,
    wait_reason,
    who_gives_back,
)
from synergyd.slurm.parsed.expanders import (
    JoinedNodes,
    as_whole_jobs,
    find_expanders,
    find_short_limits,
    find_unclaimed,
    with_expanders,
)
from synergyd.slurm.parsed.het_jobs import avoid_other_components, with_leader
from synergyd.slurm.parsed.hidden_nodes import HiddenNodes
from synergyd.slurm.parsed.job_forms import Forms, sort_by_form
from synergyd.slurm.parsed.needs import open_partitions, placement_obstacle
from synergyd.slurm.parsed.node_states import UNHEARD
from synergyd.slurm.parsed.partition_cpus import cpu_caps, with_caps
from synergyd.slurm.parsed.reservations import Shield, read_reservations, read_shields
from synergyd.slurm.parsed.rows import JobRow, PartitionRow, SlurmNodeRow
from synergyd.slurm.parsed.snapshot import (
    cluster_from_rows,
    drains,
    find_overtaken_jobs,
    gpuless,
    has_launch_failed,
    is_as_submitted,
    is_managed,
    job_from_row,
    leaks,
    node_from_row,
    size_obstacle,
    state_from_row,
    with_leaks,
)
from synergyd.slurm.parsed.switches import Leaves

log = logging.getLogger("synergyd")
NOT_STEERED: Mapping[int, Steering] = {}
NONE_JOINED: Mapping[int, JoinedNodes] = {}
NO_RESERVATIONS = 3  # epochs until a cluster without reservations is asked again: they are made minutes ahead
SINGLE_READS = 4  # up to so many jobs in transit are read one by one in a tick, more in one bulk read
PASSED_EPOCHS = 2  # least epochs that a job waits before it counts as passed by others
LIMITS_EPOCHS = 20  # until the partitions' groups and the cluster's defaults are read again


class Predictor(Protocol):
    """The bare model's prediction of a report's plan, and of one that failed (forecast.py)."""

    def predict(self, report: Report, job: Job | None, profile: Profile) -> tuple[float, int] | None: ...

    def least_memory(self, report: Report, job: Job | None, profile: Profile) -> float | None: ...


@dataclass
class Observer:
    """The daemon's look at Slurm. `rows`: Synergy's jobs in the queue as the last epoch read them, by id; `cluster` likewise."""

    settings: Settings
    reader: SlurmReader
    writer: SlurmWriter
    registry: JobRegistry
    accounts: AccountReader
    slurm_limits: SlurmLimits = NO_SLURM_LIMITS  # as the last epoch read them
    rows: dict[int, JobRow] = field(default_factory=dict)
    everybodys: tuple[JobRow, ...] = ()  # rows of all jobs and of allocations beside them, as the last epoch read them
    cluster: Cluster = field(default_factory=lambda: Cluster(()))
    forms: Forms = field(default_factory=Forms)  # as the last snapshot found them
    shields: tuple[Shield, ...] = ()  # as they were read with the reservations last
    left_to_slurm: frozenset[int] = frozenset()  # waiting jobs that are Slurm's to start, as the last snapshot found
    overtaken: frozenset[int] = frozenset()  # waiting jobs that jobs started by Slurm have passed
    outrun: frozenset[int] = frozenset()  # those that any jobs have passed, after the time that a resize takes
    parked_outside: tuple[
        int | str, ...
    ] = ()  # jobs outside of Partitions that the plugin's grace holds back, by Slurm's names
    _by_slurm: frozenset[int] = frozenset()  # jobs that are or were in `left_to_slurm`
    _here: frozenset[int] = frozenset()
    _nodes: tuple[SlurmNodeRow, ...] = ()  # as the last epoch read them
    _expanders: dict[int, tuple[JobRow, ...]] = field(default_factory=dict)  # allocations beside jobs' own, likewise
    _read_for_reports: set[int] = field(default_factory=set)  # read one by one for the reports of this look
    _unread: set[int] = field(default_factory=set)  # whose first speed since the last epoch is still to be learnt
    _queue: tuple[JobRow, ...] = ()  # as the last epoch read it
    gpu_types: Mapping[str, str] = field(default_factory=dict)  # by node name
    _leaves: dict[str, str] = field(default_factory=dict)  # leaf switch by node name
    limits: dict[str, PartitionRow] = field(default_factory=dict)  # by partition
    _limited_partitions: frozenset[str] = frozenset()  # the partitions that were there then
    _epochs_to_limits: int = 0  # epochs until they are read again
    _by_group: bool = False  # some partition has AllowGroups
    _groups: UserGroups = field(default_factory=UserGroups)
    _cpu_caps: Mapping[str, int] = field(default_factory=dict)  # by node, for its partition's MaxCPUsPerNode
    _leaks: dict[str, int] = field(default_factory=dict)  # by node, as the last epoch saw them
    _hidden_nodes: HiddenNodes = field(default_factory=HiddenNodes)
    _reservations: tuple[Reservation, ...] = ()
    _epochs_to_reservations: int = 0  # epochs until they are read again, where there were none
    # since when Slurm says that a plain job, of this id and submit time, waits for what others hold
    _waiting: dict[tuple[int, float], float] = field(default_factory=dict)
    _nodes_with_switch: frozenset[str] = frozenset()  # the nodes whose leaf switches are known

    def read(
        self, plain: frozenset[tuple[int, float]], now_s: float, joined: Mapping[int, JoinedNodes] = NONE_JOINED
    ) -> set[tuple[int, float]]:
        """Read queue and nodes.

        `plain`: (job id, submit time) known to have no directive. `joined`: nodes beyond jobs' own allocations. Return
        those newly found to have none. Raises SlurmError when Slurm can't be read.
        """
        rows, nodes = self.reader.jobs(), self.reader.nodes()
        self._expanders = find_expanders(rows, joined)
        self.everybodys = rows
        rows = as_whole_jobs(rows, self._expanders)
        self._read_limits(frozenset(p for n in nodes for p in n.partitions))
        nodes = self._hidden_nodes.with_hidden(nodes, self.limits)
        leaves = self._leaf_switches(frozenset(n.name for n in nodes))
        self.registry.topology = bool(leaves)
        self._cpu_caps = cpu_caps(nodes, rows, self.limits)
        self.cluster = cluster_from_rows(
            with_caps(nodes, self._cpu_caps), self.settings.partition_names, leaves, self.limits
        )
        # seen twice: a job may start between the two reads
        leaked, before = leaks(nodes, rows), self._leaks
        self._leaks = leaked
        self.cluster = with_leaks(self.cluster, {n: c for n, c in leaked.items() if before.get(n) == c})
        self.gpu_types = {n.name: node_from_row(n).gpu_type for n in nodes}
        self._read_reservations({n.name: n.cpus for n in nodes}, any(n.reserved for n in self.cluster.nodes))
        self.registry.plain |= plain
        # a job that Slurm has started in another of its partitions is still ours
        ours = [r for r in rows if is_managed(r, self.settings.partitions) or r.job_id in self.registry.submitted]
        self.parked_outside = self.registry.parked_outside(rows, {r.job_id for r in ours}, now_s)
        newly_plain = self.registry.learn(ours, self.gpu_types)
        submitted_jobs = self.registry.submitted
        self._nodes = nodes
        present = [with_leader(r, self.registry.parts) for r in rows if state_from_row(r) is not JobState.DONE]
        self.rows = {r.job_id: r for r in present if r.job_id in submitted_jobs}
        self._unread.clear()  # the running jobs are known again
        # a job whose directive could not be read this time is in the queue all the same
        self._here = frozenset(r.job_id for r in present if (r.job_id, r.submit_s) not in self.registry.plain)
        self._queue = rows
        since_s, shared = now_s - PASSED_EPOCHS * self.settings.epoch_s, {n.name: n.partitions for n in nodes}
        self.overtaken = find_overtaken_jobs(
            rows, submitted_jobs.keys() - self._by_slurm, since_s, self.gpu_types, shared
        )
        since_s -= self.settings.restart_cost_s
        self.outrun = find_overtaken_jobs(rows, submitted_jobs, since_s, self.gpu_types, shared, by_ours=True)
        uses = (
            describe_use(row, submitted_jobs[i], self.gpu_types, now_s, self.limits) for i, row in self.rows.items()
        )
        self.slurm_limits = self.accounts.read().limits(uses, self.cluster)
        return newly_plain

    def unclaimed_allocations(self, at_rest: Collection[int]) -> Iterator[int]:
        """Yield the allocations beside jobs' own that the last read showed and that are no run's (`find_unclaimed`)."""
        return find_unclaimed(self.everybodys, self._expanders, at_rest)

    def short_allocations(self) -> Iterator[tuple[int, str]]:
        """Yield the allocations that would end before their jobs' own, with the TimeLimit that they need (`find_short_limits`)."""
        return find_short_limits(self.everybodys, self._expanders)

    def queue_events(self, moving: Iterable[int] = ()) -> Iterator[JobObserved | QueueRead]:
        """Yield what the last read showed of each job, and which jobs have left: for those `moving`, also how. Raises SlurmError."""
        for job_id, row in self.rows.items():
            yield self._job_event(job_id, row)
        requeued = set()
        for event in self.moving_events([i for i in moving if i not in self._here]):
            yield event
            if event.observation.gpuless or event.observation.failed:
                requeued.add(event.job_id)
        yield QueueRead(self._here | requeued)

    def snapshot(
        self,
        controller: Controller,
        paused: frozenset[int],
        now_s: float,
        steering: Mapping[int, Steering] = NOT_STEERED,
    ) -> Snapshot:
        """Return the cluster and Synergy's jobs as an epoch may decide about them. `steering`: what owners have set, by job id."""
        self.cluster = controller.power_ups.see(self.cluster, now_s)
        # a node is shown to be reserved some seconds longer than it is
        reservation_nodes = frozenset[str]().union(*(r.nodes for r in self._reservations))
        reserved = frozenset(n.name for n in self.cluster.nodes if n.reserved and n.name in reservation_nodes)
        jobs, waits = [], self._job_forms(controller, paused, now_s).waits
        leaves, topology = Leaves(self.cluster), bool(self._leaves)
        minute = minute_of_day(now_s)
        for job_id, row in sorted(self.rows.items()):
            submitted_job = self.registry.submitted[job_id]
            groups = self._groups.groups_of(row.uid) if self._by_group else None
            job = job_from_row(
                row,
                submitted_job,
                self.gpu_types,
                is_paused=job_id in paused,
                partitions=self.limits,
                groups=groups,
                topology=topology,
                qos_flags=self.accounts.qos_flags(row.qos),
            )
            job = leaves.keep_in_one_leaf(job, row.switches) if row.switches else job
            if job.directive is not None and job_id in steering:
                job = steer_job(job, steering[job_id])
            if job.state is JobState.RUNNING and not job.fixed and job_id in self.slurm_limits.restart_obstacles:
                job = replace(job, fixed=self.slurm_limits.restart_obstacles[job_id])
            job = controller.decidable_job(
                avoid_other_components(job, row, self.registry.parts, self.cluster, self._nodes), now_s
            )
            tracked = controller.jobs.get(job_id)
            if job.directive is not None and tracked is not None:
                job = with_range(job, tracked.profile, tracked.lifecycle.batch_cap)
                job = with_exchange(job, tracked.lifecycle.exact_only, self.settings.comm_options)
                if job.directive is not None and job.directive.adapt and job.batches != submitted_job.batches:
                    self.registry.submitted[job_id] = replace(submitted_job, batches=job.batches)
                restart_s = (
                    controller.restart_budgets.expected_cost(tracked, job).mean_s + controller.times.restart_delay_s
                )
                job = with_time_left(
                    job,
                    tracked.lifecycle.walltime,
                    self._reservations,
                    now_s,
                    lead_s=controller.restart_budgets.lead_s(tracked),
                    restart_s=restart_s,
                    least_s=row.min_time_s,
                    reserved=reserved,
                )
            if job.directive is not None and job_id in waits:
                job = replace(job, directive=None, directive_error=waits[job_id])
            if job.directive is not None and (why := self._hidden_nodes.may_need(job, self.cluster, self.limits)):
                job = replace(job, directive=None, directive_error=f"Synergy leaves the job to Slurm: {why}")
            jobs.append(job)
        self.left_to_slurm = frozenset(
            j.job_id for j in jobs if self._is_left_to_slurm(j, controller.jobs.get(j.job_id))
        )
        self._by_slurm = (self._by_slurm & self.rows.keys()) | self.left_to_slurm
        others = self._find_crowding(controller, jobs, now_s)
        for i, job in enumerate(jobs):
            if why := others.why(job):
                job = limit_to_requested_size(
                    job, why, others.keeps.get(job.job_id, ()) if others.is_of_use(job) else None
                )
            tracked = controller.jobs.get(job.job_id)
            moves = None if tracked is None else tracked.lifecycle.moves
            jobs[i] = job if moves is None else with_move_limits(job, moves, self.settings, now_s, minute)
        penalties = controller.faults.nodes.penalties(now_s)
        return Snapshot(now_s, self.cluster, tuple(jobs), controller.profiles, penalties)

    def queue_look(self, jobs: Iterable[Job], decisions: Iterable[Decision], now_s: float) -> QueueLook:
        """Return what the last read showed of the whole queue, with what was decided. `jobs`: Synergy's."""
        decided = (j for j in jobs if j.directive is not None and j.state is JobState.PENDING)
        return QueueLook(
            at_s=now_s,
            rows=self.everybodys,
            nodes=self._nodes,
            partitions=self.limits,
            reservations=self._reservations,
            decided={j.job_id: j for j in decided if j.job_id not in self.left_to_slurm},
            decisions={d.job_id: d for d in decisions},
        )

    def jobs_to_inform_at_start(self) -> frozenset[int]:
        """Return the jobs on several nodes that only the plugin's grace keeps from Slurm's start.

        They are told the address of the link arbiter only at their start.
        """
        submitted_jobs = self.registry.submitted
        return frozenset(
            i for i in self.left_to_slurm if submitted_jobs[i].put_off_s is not None and self.rows[i].num_nodes > 1
        )

    def _is_left_to_slurm(self, job: Job, tracked: TrackedJob | None) -> bool:
        as_submitted = is_as_submitted(self.rows[job.job_id], self.registry.submitted[job.job_id])
        return tracked is not None and as_submitted and is_slurms_to_start(tracked, job)

    def _find_crowding(self, controller: Controller, jobs: list[Job], now_s: float) -> CrowdedPlaces:
        """Return where jobs that Synergy does not decide about wait, and which jobs give GPUs back for them.

        It counts them once Slurm has said for an epoch that they wait for what others hold.
        """
        ids_left_to_slurm = {i for i, tracked in controller.jobs.items() if tracked.lifecycle.left_to_slurm_reason}
        decided = (
            {i for i in self.rows if self.registry.submitted[i].directive is not None}
            - ids_left_to_slurm
            - self.left_to_slurm
        )
        waiting = find_waiting_jobs(self._queue, decided)
        candidates = {r.job_id: r for r in waiting if wait_reason(r) in LOOKED_AT or is_filled_now(wait_reason(r))}
        still = {(r.job_id, r.submit_s) for r in waiting}
        self._waiting = {key: at_s for key, at_s in self._waiting.items() if key in still}
        for row in candidates.values():
            self._waiting.setdefault((row.job_id, row.submit_s), now_s)
        long = {i for i, r in candidates.items() if self._waiting[i, r.submit_s] <= now_s - self.settings.epoch_s}
        others = find_crowded(waiting, self.cluster.nodes, long)
        holders = find_holders(j for j in jobs if others.why(j))
        ready = [r for r in waiting if r.job_id in long and wait_reason(r) in LOOKED_AT]
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

    def exceeded_limit(self, update: Update) -> str:
        """Return which limit of Slurm the job would exceed with this size, as things are now, or "" for none.

        Only for a daemon that writes in its own name, where Slurm would take the limit as lifted.
        """
        row = self.rows.get(update.job_id)
        if row is None or self.writer.acts_as_owner or not self.accounts.has_limits:
            return ""
        use = replace(
            describe_use(row, self.registry.submitted[row.job_id], self.gpu_types, 0.0, self.limits), holds=None
        )
        return find_exceeded_limit(self.accounts.read().limits([use], self.cluster), row.job_id, update.target.shape)

    def _job_forms(self, controller: Controller, paused: frozenset[int], now_s: float) -> Forms:
        submitted_jobs = self.registry.submitted
        jobs = {i: d for i in self.rows if (d := submitted_jobs[i].directive) is not None}
        begin_s = {i: t.begin_s or 0.0 for i, t in controller.jobs.items()}
        untouched = {i for i in self.rows if i in paused or i not in jobs or begin_s.get(i, 0.0) > now_s}
        untouched |= {i for i, r in self.rows.items() if r.priority == 0 or placement_obstacle(r, bool(self._leaves))}
        untouched |= {i for i, t in controller.jobs.items() if t.lifecycle.left_to_slurm_reason}
        fixed = {i for i in jobs if size_obstacle(self.rows[i], submitted_jobs[i])}
        self.forms = sort_by_form(
            self.rows.values(), self.registry.throttles, frozenset(controller.in_transit), untouched, fixed
        )
        return self.forms

    def moving_events(self, moving: list[int]) -> Iterator[JobObserved]:
        """Yield Slurm's present state of jobs that are being resized. Raises SlurmError when Slurm can't be read."""
        moving = [i for i in moving if i in self.registry.submitted]
        if len(moving) <= SINGLE_READS:
            now = {i: self.writer.job(i, ended=True) for i in moving}
        else:
            everything = {r.job_id: r for r in self.reader.jobs()}
            now = {i: everything.get(i) for i in moving}
        for job_id, row in now.items():
            yield self._job_event(job_id, row)

    @property
    def unheard_nodes(self) -> frozenset[str]:
        """Return the nodes that slurmctld, which has just started, waits to hear of, as they were read last."""
        return frozenset(n.name for n in self._nodes if n.state == UNHEARD)

    def partition_obstacle(self, row: JobRow) -> str:
        """Return why this running job's partition would not start it again, as partitions were read last, or "" if it would."""
        submitted_job, groups = (
            self.registry.submitted[row.job_id],
            self._groups.groups_of(row.uid) if self._by_group else None,
        )
        flags = self.accounts.qos_flags(row.qos)
        return open_partitions(row, submitted_job.requested_shape.nodes, self.limits, groups, flags)[1] or drains(
            row, self.limits
        )

    def read_nodes(self) -> Cluster:
        """Read the nodes as they are now, between two epochs. Raises SlurmError."""
        self._nodes = self._hidden_nodes.with_hidden(self.reader.nodes(), self.limits)
        return cluster_from_rows(
            with_caps(self._nodes, self._cpu_caps), self.settings.partition_names, self._leaves, self.limits
        )

    @property
    def waits_for_nodes(self) -> bool:
        """Return whether slurmctld, which has just started, waits to hear of nodes that a job may get."""
        return bool(self.unheard_nodes)

    @property
    def may_take_jobs(self) -> frozenset[str]:
        """Return the nodes that a job on its way to them may still get.

        These are the nodes that are up, and those that slurmctld, which has just started, waits to hear of. It does so
        for a few seconds, and a job that was sent elsewhere then would be restarted once more.
        """
        unheard = self.unheard_nodes
        return frozenset(n.name for n in self.cluster.nodes if n.up or n.name in unheard)

    def is_unchanged(self, job_id: int) -> bool:
        """Return whether the job is as the last epoch read it, as far as a decision about it goes. Raises SlurmError."""
        now, then = self.writer.job(job_id), self.rows.get(job_id)
        if now is None or then is None:
            return False
        now = with_expanders(now, self._expanders.get(job_id, ()))
        same = all(getattr(now, n) == getattr(then, n) for n in ("state", "restarts", "node_names", "tres_per_node"))
        return same and bool(now.priority) == bool(then.priority)

    def prepare_for_reports(self) -> None:
        """Prepare for reports: each look reads few single jobs for them."""
        self._read_for_reports.clear()

    def report_events(
        self, received: ReceivedReport, controller: Controller, model: Predictor
    ) -> Iterator[ReportsReceived]:
        """Yield the event of a report of a job in the queue by its owner.

        Yield nothing for any other: if it was too early, the next one comes soon.
        """
        report, row = received.report, self.rows.get(received.report.job_id)
        tracked = controller.jobs.get(report.job_id)
        if row is None or tracked is None or row.uid != received.uid:
            return
        if report.restarts != max(tracked.lifecycle.incarnation, row.restarts):
            return
        job = tracked.job
        running = job if job and job.restarts == report.restarts and job.state is JobState.RUNNING else None
        speed = running is None and (_has_first_step_time(report, tracked.report) or report.job_id in self._unread)
        fresh = self._read_job(report.job_id) if running is None and (speed or report.failure is not None) else None
        if speed:
            (self._unread.add if fresh is None else self._unread.discard)(report.job_id)
            if fresh is not None and fresh.restarts == report.restarts and fresh.state is JobState.RUNNING:
                running = fresh
        fresh = fresh if report.failure is not None else None
        model_inputs = report, running or fresh, tracked.profile or Profile()
        shape = running.shape if running else None
        yield ReportsReceived(
            (report,), row.restarts, model.predict(*model_inputs), shape, model.least_memory(*model_inputs), fresh
        )

    def _read_job(self, job_id: int) -> Job | None:
        """Return the job as Slurm shows it now, or None if Slurm can't be read or many jobs were read since the last look."""
        if job_id in self._read_for_reports or len(self._read_for_reports) >= SINGLE_READS:
            return None  # its launcher says it again, and its agent reports again
        self._read_for_reports.add(job_id)
        try:
            row = self.writer.job(job_id)
        except SlurmError:
            return None
        submitted_job = self.registry.submitted.get(job_id)
        if row is None or submitted_job is None:
            return None
        return job_from_row(
            with_expanders(row, self._expanders.get(job_id, ())), submitted_job, self.gpu_types, is_paused=False
        )

    def _job_event(self, job_id: int, row: JobRow | None) -> JobObserved:
        if row is None or (state := state_from_row(row)) is JobState.DONE:
            without = row is not None and gpuless(row, self.limits)
            failed = row is not None and row.state == "FAILED"
            end = Observed("GONE", row.restarts if row else 0, gpuless=without, failed=failed)
            return JobObserved(job_id, row.submit_s if row else 0.0, end)
        pending = state is JobState.PENDING
        observed = Observed(state.value, row.restarts, limit_s=row.time_limit_s, nice=row.nice)
        if pending:
            failed = has_launch_failed(row)
            observed = replace(
                observed, eligible_s=row.eligible_s, launch_failed=failed, reason=row.reason, queued_s=row.submit_s
            )
        elif state in (JobState.RUNNING, JobState.SUSPENDED):
            ends_s = None if row.time_limit_s is None else row.end_s
            observed = replace(observed, ends_s=ends_s, started_s=row.start_s, gpuless=gpuless(row, self.limits))
        submitted_job = self.registry.submitted[job_id]
        continues = submitted_job.directive.continues if submitted_job.directive else 0
        walltime = Walltime(
            asked_s=submitted_job.time_limit_s, continues=continues, continuations=submitted_job.continuations
        )
        requeuing = pending and row.state != "PENDING"
        return JobObserved(job_id, row.submit_s, observed, requeuing, self.registry.begin_s(row), walltime)

    def _read_limits(self, names: frozenset[str]) -> None:
        """Read partitions' states and limits.

        The cluster's own defaults and users' groups are read again when partitions have come or gone and each
        LIMITS_EPOCHS.
        """
        again = self._epochs_to_limits <= 1 or names != self._limited_partitions
        try:
            self.read_partitions(again=again)
        except SlurmError as problem:
            log.warning("partitions' limits: %s", problem)
            return
        self._epochs_to_limits, self._limited_partitions = LIMITS_EPOCHS if again else self._epochs_to_limits - 1, names
        if again:
            self._groups.forget()

    def read_partitions(self, *, again: bool = False) -> None:
        """Read the partitions as they are now; with `again` the cluster's own defaults too. Raises SlurmError."""
        self.limits = {p.name: p for p in self.writer.partitions(again=again)}
        self._by_group = any(p.allow_groups for p in self.limits.values())

    def _read_reservations(self, cpus: Mapping[str, int], is_any_reserved: bool) -> None:
        """Read the reservations each epoch while there are any or `is_any_reserved` (of the nodes); else each NO_RESERVATIONS."""
        if self._epochs_to_reservations > 0 and not is_any_reserved:
            self._epochs_to_reservations -= 1
            return
        try:
            text = self.writer.reservations()
            self._reservations, self.shields = read_reservations(text, cpus), read_shields(text)
        except SlurmError as problem:
            log.warning("reservations: %s", problem)
            self._epochs_to_reservations = 0
            return
        self._epochs_to_reservations = 0 if self._reservations else NO_RESERVATIONS

    def _leaf_switches(self, names: frozenset[str]) -> dict[str, str]:
        """Read again when nodes have come or gone: Slurm itself reads a new topology only when it starts again."""
        if names != self._nodes_with_switch:
            try:
                self._leaves, self._nodes_with_switch = self.writer.leaf_switches(), names
            except SlurmError as problem:
                log.warning("topology: %s", problem)
        return self._leaves


def _has_first_step_time(report: Report, before: Report | None) -> bool:
    """Return whether the report says how long a step takes, as the first of its incarnation."""
    is_known = before is not None and before.restarts == report.restarts and before.step_s is not None
    return report.step_s is not None and not is_known
