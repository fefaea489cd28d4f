"""The daemon's loop: a shell over the controller. observe -> model -> allocate -> plan -> act, and ticks between two epochs.

The controller says what happens to a job; formulas live in task/ and scheduler/. This module says which part is asked for what, and
in which order.
"""

from __future__ import annotations

import logging
import math
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from synergy_core.achieved import Achieved
from synergy_core.reasons import Reason, Reasons, text_reason
from synergy_core.records import Action, Decision, Job, JobState, Profile, Snapshot

from synergyd.control.arrivals import Arrivals, JobCounts, should_come_early
from synergyd.control.checkpoint_request import current_request_number
from synergyd.control.controller import Controller
from synergyd.control.decision_log import DecisionLog, JobStatus, job_statuses
from synergyd.control.epoch import collect_inputs, pump
from synergyd.control.fault_monitor import smallest_target
from synergyd.control.notices import late_deadlines
from synergyd.control.queue_history import QueueHistory
from synergyd.control.resize.events import (
    BatchReviewed,
    ClockSet,
    ControlEvent,
    DecisionUnblocked,
    EpochDecided,
    HealthReviewed,
    JobDecided,
    NodesRead,
    SnapshotTaken,
    TimePassed,
)
from synergyd.control.resize.lifecycle import ResizeState, ResizeTimes, jobs_with_awaited_end, make_resize_times
from synergyd.control.tracked import Output, Remember
from synergyd.control.waiting import is_put_off
from synergyd.daemon import heartbeat
from synergyd.daemon.account_limits import AccountReader
from synergyd.daemon.adoption import Adoption
from synergyd.daemon.day_time import DayTime
from synergyd.daemon.dependencies import DaemonDependencies
from synergyd.daemon.dry_run import DryRun
from synergyd.daemon.executor import Executor
from synergyd.daemon.forecast import Forecast
from synergyd.daemon.heartbeat import Heartbeat, compute_grace_s
from synergyd.daemon.job_keys import JobKeys
from synergyd.daemon.job_registry import JobRegistry
from synergyd.daemon.joined_allocations import JoinedAllocations
from synergyd.daemon.links.process import find_members
from synergyd.daemon.observer import Observer
from synergyd.daemon.plain_jobs import held_gpus, hypothetical_jobs, plain_rows
from synergyd.daemon.restart_place import RestartPlace
from synergyd.daemon.restore import restore
from synergyd.daemon.usage_look import holdings
from synergyd.jobmodel.cell_search import CellSearchResult
from synergyd.scheduler.decide import STAGES
from synergyd.scheduler.epoch import EpochInputs, begin, run
from synergyd.scheduler.policies import load_policy
from synergyd.scheduler.problem.delays import NO_DELAYS, clock_set
from synergyd.scheduler.problem.rules import make_decision_rules
from synergyd.settings import Settings
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.expanders import JoinedNodes
from synergyd.slurm.parsed.rows import JobRow
from synergyd.slurm.parsed.snapshot import state_from_row
from synergyd.store.records import EpochRecord, epoch_record

log = logging.getLogger("synergyd")
LOSSES_EVERY_S = 2.0
RESTORE_S = 30 * 86400.0  # a dry run goes on with the accounts of jobs that were seen since
_WITHOUT_KEY = (ResizeState.QUEUED, ResizeState.GONE)


class Daemon:
    """The daemon: one instance, one thread. `epoch` decides and starts what was decided; `tick` carries resizes on in between."""

    def __init__(self, settings: Settings, dependencies: DaemonDependencies, times: ResizeTimes | None = None) -> None:
        self.settings, self.dependencies = settings, dependencies
        # longest that a new job waits for a daemon that has stopped deciding
        self.grace_s = compute_grace_s(settings.epoch_s)
        self.registry = JobRegistry(dependencies.writer, self.grace_s)
        accounts = AccountReader(
            dependencies.writer,
            fair_share=settings.fair_share_weight,
            clock=dependencies.monotonic or dependencies.clock,
        )
        self.observer = Observer(settings, dependencies.reader, dependencies.writer, self.registry, accounts)
        self.speeds: dict[int, Achieved] = {}  # of running jobs in the last epoch, by job id
        self.controller = Controller(times or make_resize_times(settings), settings.epoch_s, live=settings.live)
        addresses = dependencies.report_address, dependencies.links_address
        self.actuator = Actuator(
            dependencies.writer,
            settings.state_dir,
            addresses[0],
            self.registry.submitted,
            addresses[1],
            self._is_start_postponed,
            self._checkpoint_request,
            names=self.registry.names,
            check=RestartPlace(self.observer, self.controller, dependencies.clock),
            only_reports=settings.dry_run,
        )
        self.keys = JobKeys(settings.state_dir, dependencies.secret) if dependencies.secret else None
        self.adoption = Adoption(self.actuator, settings.state_dir, *addresses)
        self.executor = Executor(
            dependencies.store, self.actuator, settings.state_dir, dependencies.clock, self.observer.exceeded_limit
        )
        self.forecast = Forecast(settings)
        self.joined_allocations = JoinedAllocations(dependencies.writer)
        self.heartbeat = Heartbeat(settings.state_dir, self.grace_s, dependencies.paced_s)
        self.executor.job = lambda i: self.controller.jobs[i].job if i in self.controller.jobs else None
        self.executor.notifies = bool(settings.notice_url or settings.mail_prog)
        self.decisions: tuple[Decision, ...] = ()  # all decisions of the last epoch, changed or not
        self._decision_log, self._history = DecisionLog(), QueueHistory()
        self._delays = NO_DELAYS  # in memory alone: after a start of the daemon waits count anew
        self._loaded = False
        self._acted: int | None = None  # the term in which the last epoch acted
        self._cleared = False  # whether what an earlier daemon left in Slurm is cleared
        self._monotonic = dependencies.monotonic or dependencies.clock
        self._day_time = DayTime(dependencies.clock, self._monotonic)
        self._looked_s: float | None = None  # by the monotonic clock
        self._losses_looked_s = -math.inf  # likewise
        self.needs_early_epoch = False  # a job has lost a node, or was submitted: the next epoch should not wait
        self._arrivals = Arrivals(settings.epoch_s)
        self._count_denied = False
        self._policy, self._rules = load_policy(settings.policy), make_decision_rules(settings)
        self._comes_early = should_come_early(settings, self._policy)
        self.plain_jobs = self.plain_held_gpus = 0  # jobs with GPUs and without a line, as the last epoch saw them
        self._inputs = EpochInputs(snapshot=Snapshot(0.0, self.observer.cluster, ()))  # of the last epoch
        self._dry_run_problem = ""
        self.dry_run = DryRun(
            settings.epoch_s,
            settings.restart_cost_s,
            lambda inputs: run(STAGES, begin(inputs, self._rules, self._policy)).decisions,
            lambda: dependencies.store.would_have(dependencies.clock() - RESTORE_S),
        )

    @property
    def is_acting(self) -> bool:
        """Return whether this daemon writes to jobs and to the store; one that stands by or runs dry only looks."""
        return not self.settings.dry_run and self.dependencies.leads()

    @property
    def is_resizing(self) -> bool:
        """Return whether this daemon is resizing some job, so that ticks should come often."""
        return self.is_acting and bool(self.controller.in_transit)

    def epoch(self) -> EpochRecord:
        """Observe, decide, store, and (unless dry-run) act. Raises SlurmError when Slurm can't be read."""
        began, counted_s, self.needs_early_epoch = self.now_s(), self._monotonic(), False
        phase = self.dependencies.phases.time_phase
        self._arrivals.begin_epoch(counted_s, self._job_counts())
        with phase("observe"):
            snapshot = self._observe(began)
        with phase("model"):
            forecasts = self._forecasts(snapshot)
        with phase("decide"):
            self.decisions = self._decide(snapshot, forecasts)
        self._run(EpochDecided(self.decisions))
        plain = tuple(plain_rows(self.observer.everybodys, self.observer.rows, self.settings.partitions))
        self.plain_jobs, self.plain_held_gpus = len(plain), held_gpus(plain)
        history = self._history.epoch(snapshot, self.decisions, self.controller.reports, began)
        record = epoch_record(
            self._decision_log.with_news(self.decisions, began),
            tuple(self._present(snapshot, forecasts)),
            snapshot,
            duration_s=self._monotonic() - counted_s,
            dry_run=self.settings.dry_run,
            backend=self.dependencies.reader.name,
            history={**history, "plain_jobs": self.plain_jobs, "plain_held_gpus": self.plain_held_gpus},
        )
        if self.is_acting or self.settings.dry_run:
            self.dependencies.store.save_epoch(record)
        with phase("act"):
            self._act(snapshot, forecasts)
        self._account(forecasts, began)
        if self.settings.dry_run:
            self._adopt_for_reports(snapshot)
            self._account_dry_run(forecasts, plain)
        if self.dependencies.starts is not None and (self.is_acting or self.settings.dry_run):
            self.dependencies.starts.see(self.observer.queue_look(snapshot.jobs, self.decisions, began))
        with phase("store"):
            self.dependencies.store.flush()
        self._arrivals.end_epoch(
            self._monotonic(), waits=self._is_awaited(snapshot), limited=self.dependencies.paced_s() > 0
        )
        return record

    def tick(self) -> None:
        """Take reports in and move the jobs that are being resized. Raises SlurmError when Slurm can't be read."""
        self._take_reports()
        if not self.is_acting:
            return
        leaving = self.controller.leaving
        events = list(self.observer.moving_events(self.controller.in_transit))
        for event in events:
            self._run(event)
        waits = any(tracked.waits_for_nodes for tracked in self.controller.jobs.values())
        cluster = self.observer.read_nodes() if waits else None
        for event in events:
            self._run(TimePassed(event.job_id, cluster))
        if leaving - self.controller.leaving:
            self._unblock()
        self._look_for_losses()
        self._look_for_arrivals()
        self.heartbeat.beat_if_due(self.now_s())
        self.dependencies.store.flush()

    # -- an epoch's parts ----------------------------------------------------------------------------------------------

    def _observe(self, now_s: float) -> Snapshot:
        store = self.dependencies.store
        store.refresh()
        term = self.dependencies.term() if self.is_acting else None
        if term is not None and term != self._acted and store.is_loaded:
            # another daemon led until now: its records are better than what this one saw
            self.controller.adopt_stored_state()
            self._history = QueueHistory()
            self._loaded = self._cleared = False
            self.executor.orders, self.executor.requests = {}, {}
            self.adoption.forget_all()
            self.actuator.forget_running_jobs()
        self._acted = term
        if store.is_loaded and not self._loaded:
            self._loaded = True
            restore(self.controller, store.state, now_s)
        self._take_reports()  # the last words of a job that this look finds gone
        self.registry.kept = jobs_with_awaited_end(self.controller.lifecycles)
        lives = self.controller.lifecycles.items()
        joined = {
            i: JoinedNodes(restarts=x.incarnation, names=frozenset(x.joined_nodes)) for i, x in lives if x.joined_nodes
        }
        newly_plain = self.observer.read(store.state.no_directive, now_s, joined)
        if newly_plain:
            store.add_no_directive(newly_plain, now_s)
        self._take_reports()
        for event in self.observer.queue_events(self.registry.kept):
            self._run(event)
        self._run(NodesRead(self.observer.may_take_jobs))
        state = store.state
        snapshot = self.observer.snapshot(self.controller, state.paused, now_s, state.steering)
        before_s, self._looked_s = self._looked_s, self._monotonic()
        self._run(SnapshotTaken(snapshot, 0.0 if before_s is None else self._looked_s - before_s))
        return snapshot

    def _forecasts(self, snapshot: Snapshot) -> dict[int, CellSearchResult]:
        jobs = [j for j in snapshot.jobs if j.directive]
        plans, believed = self.controller.plans(), self.controller.believed_profiles(jobs)
        self.forecast.begin_epoch()
        self.forecast.learn_prior(self.controller.shared_profiles.programs(), snapshot.cluster)
        self.forecast.fit_changed_jobs(jobs, believed, snapshot.cluster)
        bans, cells = self.controller.failed_plans.bans_for, self.forecast.cells
        forecasts = {
            j.job_id: cells(j, believed[j.job_id], plans.get(j.job_id), snapshot.cluster, bans(j)) for j in jobs
        }
        for job_id, offered in forecasts.items():
            self.controller.jobs[job_id].out_of_plans = offered.all_failed
            if self.settings.idle_reclaim_s:
                self.controller.jobs[job_id].smallest = smallest_target(offered.cells)
        return forecasts

    def _act(self, snapshot: Snapshot, forecasts: dict[int, CellSearchResult]) -> None:
        links, acts = self.dependencies.links, self.is_acting
        self.executor.begin()
        if links is not None:
            links.follow(find_members(snapshot.jobs, self.controller.reports) if acts else {})
        if acts:
            jobs = [j for j in snapshot.jobs if self.registry.submitted[j.job_id].directive is not None]
            lives = self.controller.lifecycles
            self.adoption.adopt((lives[j.job_id] for j in jobs), self.observer.jobs_to_inform_at_start())
            for job_id, forecast in forecasts.items():
                self._run(BatchReviewed(job_id, forecast.cells))
        self._tell()
        if acts:
            self._run(HealthReviewed(drains=self.settings.drain_slow))
            for late in late_deadlines(self.controller, forecasts, snapshot.time_s):
                self.executor.do(late)
            for decision in self.decisions:
                if decision.job_id in self.observer.left_to_slurm:
                    continue  # Slurm carries it out, in the order of its own queue
                offered = forecasts.get(decision.job_id)
                self._run(JobDecided(decision, schedulable=offered is not None and bool(offered.cells)))
                self.heartbeat.beat_if_due(
                    self.now_s()
                )  # many starts at Slurm's pace for one user (rl_enable) take minutes
            self._keep_keys(jobs)
            park_s = self.controller.times.park_s
            self.executor.keep_forms(self.observer.forms, self.observer.rows, park_s, self._note_postponed_start)
            self.executor.end_plugin_grace(
                list(self._jobs_left_to_slurm(snapshot, forecasts)), self.observer.parked_outside
            )
            hushed = [j.job_id for j in jobs if self.registry.submitted[j.job_id].mail]
            lives = self.controller.lifecycles
            self.executor.restore_mails(i for i in hushed if i in lives and lives[i].state is ResizeState.RUNNING)
            if self.observer.shields and not self._cleared:
                self.actuator.shields.take_down_all({i for i, life in lives.items() if life.shielded_nodes})
            self._cleared = True
            self.executor.renew_parking()
            self.actuator.stamp_running_jobs(self.now_s())
            if self._loaded:  # or jobs that have such an allocation may not be known yet
                at_rest = {i for i, life in lives.items() if life.state is ResizeState.RUNNING}
                self.joined_allocations.end(self.observer.unclaimed_allocations(at_rest), self.now_s())
                self.joined_allocations.extend(self.observer.short_allocations())
            self.heartbeat.note_completed_epoch(self.now_s())

    def _decide(self, snapshot: Snapshot, forecasts: Mapping[int, CellSearchResult]) -> tuple[Decision, ...]:
        controller = self.controller
        inputs = collect_inputs(
            controller,
            snapshot,
            forecasts,
            settings=self.settings,
            observes_delays=self._policy.observes_delays,
            current_plans=controller.plans(),
            progress=controller.progress(snapshot.jobs),
            delays=self._delays,
            slurm_limits=self.observer.slurm_limits,
            overtaken=self.observer.overtaken,
            outrun=self.observer.outrun,
        )
        self._delays, self._inputs = inputs.delays, inputs
        stage = self.dependencies.phases.of_stage
        decisions = run(STAGES, begin(inputs, self._rules, self._policy), stage).decisions
        notes: dict[int, Reasons] = dict.fromkeys(self.observer.left_to_slurm, (Reason("slurms-queue"),))
        for d in decisions:
            forecast = forecasts.get(d.job_id)
            if d.action is Action.KEEP and forecast is not None and forecast.advice:
                notes[d.job_id] = text_reason(forecast.advice.strip())
        return tuple(replace(d, reasons=d.reasons + notes[d.job_id]) if d.job_id in notes else d for d in decisions)

    def _present(self, snapshot: Snapshot, forecasts: Mapping[int, CellSearchResult]) -> Iterator[JobStatus]:
        hints = {i: f.hint for i, f in forecasts.items() if f.hint}
        reports, speeds = self.controller.reports, dict[int, Achieved]()
        for job in snapshot.jobs:
            profile = snapshot.profiles.get(job.job_id) or Profile()
            if speed := self.forecast.achieved(reports.get(job.job_id), job, profile):
                speeds[job.job_id] = speed
        self.speeds = speeds
        return job_statuses(snapshot, self.decisions, self.controller.lifecycles, reports, hints, speeds)

    def _account(self, forecasts: Mapping[int, CellSearchResult], now_s: float) -> None:
        """Hand what jobs hold to the thread that keeps their usage."""
        if self.dependencies.usage is not None and self.is_acting:
            holding_inputs = self.observer.everybodys, self.settings.partition_names, self.controller.jobs
            self.dependencies.usage.see(
                now_s, tuple(holdings(*holding_inputs, self.decisions, forecasts, now_s)), self.dependencies.term()
            )

    def _adopt_for_reports(self, snapshot: Snapshot) -> None:
        """In a dry run, tell jobs with a line where to report, unless another daemon acts: their plans are in the same folder."""
        if self.dependencies.inbox is None or heartbeat.is_beating(self.settings.state_dir, snapshot.time_s):
            return
        jobs = [j for j in snapshot.jobs if self.registry.submitted[j.job_id].directive is not None]
        lives = self.controller.lifecycles
        self.adoption.adopt(lives[j.job_id] for j in jobs if j.job_id in lives)

    def close(self) -> None:
        """End: take back what a dry run has handed to jobs."""
        if self.settings.dry_run:
            self.adoption.withdraw()

    def _account_dry_run(self, forecasts: Mapping[int, CellSearchResult], plain: tuple[JobRow, ...]) -> None:
        """Store what this epoch's decisions would have changed. A fault in it costs nothing else."""
        observer = self.observer
        try:
            jobs = tuple(hypothetical_jobs(plain, observer.gpu_types, observer.limits, self.registry.topology))
            self.dependencies.store.put_would_have(self.dry_run.account(self._inputs, self.decisions, forecasts, jobs))
            notice = self.dry_run.daily_notice(self.now_s(), pwd.getpwuid(os.geteuid()).pw_name)
            if notice is not None and self.executor.notifies:
                self.dependencies.store.put_notices([notice])
        except Exception as problem:
            if str(problem) != self._dry_run_problem:
                log.exception("what the dry run would have changed is not counted")
            self._dry_run_problem = str(problem)

    def _jobs_left_to_slurm(self, snapshot: Snapshot, forecasts: Mapping[int, CellSearchResult]) -> Iterator[int]:
        """Yield the pending jobs that nobody will decide about, and that only a start time of Synergy's still holds back."""
        forms = self.observer.forms
        for job in snapshot.jobs:
            job_id, offered, tracked = job.job_id, forecasts.get(job.job_id), self.controller.jobs.get(job.job_id)
            if job.state is not JobState.PENDING:
                continue
            if tracked is not None and job_id in self.observer.left_to_slurm and is_put_off(tracked, snapshot.time_s):
                self.executor.do(tracked.note_postponed_start(snapshot.time_s))
                yield job_id
                continue
            if job_id in self.observer.left_to_slurm:
                slurms = True
            elif job_id in forms.waits and self.registry.submitted[job_id].directive is not None:
                slurms = job_id in forms.slurms and not job.held and not job.paused
            else:
                none = offered is not None and not offered.cells and not self.observer.waits_for_nodes
                nothing = job.shape.gpus < 1 or none  # to decide about
                slurms = job.directive is None or (nothing and not job.held)
            if slurms and self.registry.is_held_by_grace_alone(self.observer.rows[job_id], snapshot.time_s):
                yield job_id

    def _tell(self) -> None:
        """Set what jobs are told in the answers to their reports from now on."""
        inbox, rows = self.dependencies.inbox, self.observer.rows if self.is_acting else {}
        orders_by_run = {**self.executor.batches, **self.executor.requests, **self.executor.orders}
        if inbox is not None:
            answers = {key: (rows[key[0]].uid, what) for key, what in orders_by_run.items() if key[0] in rows}
            owners = {(i, r.restarts): r.uid for i, r in rows.items() if state_from_row(r) is JobState.RUNNING}
            inbox.tell(answers, {**owners, **{key: uid for key, (uid, _) in answers.items()}})

    def _keep_keys(self, jobs: Iterable[Job]) -> None:
        """Keep keys for the jobs that run or were just handed their plan; a queue without end costs none."""
        if self.keys is not None:
            tracked = self.controller.jobs
            lives = (tracked[j.job_id].lifecycle for j in jobs if j.job_id in tracked)
            self.keys.keep(self.observer.rows[i.job_id] for i in lives if i.state not in _WITHOUT_KEY)

    def _note_postponed_start(self, job_id: int) -> None:
        if (tracked := self.controller.jobs.get(job_id)) is not None:
            self.executor.do(tracked.note_postponed_start(self.now_s() + self.controller.times.park_s))

    def _take_reports(self) -> None:
        if self.dependencies.inbox is None:
            return
        self.observer.prepare_for_reports()
        for received in self.dependencies.inbox.take():
            for event in self.observer.report_events(received, self.controller, self.forecast):
                self._run(event)

    def _look_for_losses(self) -> None:
        """Look for jobs that have lost a node, which are decided about at once if spares are kept.

        This takes one call to Slurm each LOSSES_EVERY_S.
        """
        settings, at_s = self.settings, self._monotonic()
        if not (settings.spare_nodes or settings.qos_spare_nodes) or at_s - self._losses_looked_s < LOSSES_EVERY_S:
            return
        self._losses_looked_s = at_s
        up = frozenset(n.name for n in self.observer.read_nodes().nodes if n.up)
        self.needs_early_epoch |= self.controller.has_lost_node(up, self.now_s())

    def _look_for_arrivals(self) -> None:
        if self._arrivals.can_look(self._monotonic()):
            self.needs_early_epoch |= self._arrivals.is_epoch_due(self._monotonic(), self._job_counts())

    def _is_awaited(self, snapshot: Snapshot) -> bool:
        """Return whether a job waits that Synergy is to start: the end of another may let it."""
        slurms = self.observer.left_to_slurm
        waiting = (j for j in snapshot.jobs if j.state is JobState.PENDING and j.job_id not in slurms)
        return any(j.directive is not None and not (j.held or j.paused) for j in waiting)

    def _job_counts(self) -> JobCounts | None:
        """Return Slurm's counts, or None if no epoch comes early or Slurm does not tell."""
        if not (self._comes_early and self.is_acting):
            return None
        try:
            return self.dependencies.writer.job_counts()
        except SlurmError as error:
            if not error.transient and not self._count_denied:
                log.warning("epochs do not come early: %s", error)
                self._count_denied = True
            return None

    def _unblock(self) -> None:
        """Carry out what the last epoch decided and could not be done yet, as soon as others have left its GPUs.

        Leave out a job that is not as it was, which the next epoch decides about.
        """
        if any(tracked.blocked_decision for tracked in self.controller.jobs.values()):
            for job_id in self.controller.jobs_to_unblock(self.observer.read_nodes(), self.now_s()):
                job = self.controller.jobs[job_id].job
                self._run(DecisionUnblocked(job_id, job if self.observer.is_unchanged(job_id) else None))

    def now_s(self) -> float:
        """Return the time of day. If somebody has set it, first move everything that waits with it."""
        now_s, by_s = self._day_time.read()
        if by_s:
            log.warning("the clock was set by %+.1f s", by_s)
            self.heartbeat.set_clock(by_s)
            self._decision_log.set_clock(by_s)
            self._delays = clock_set(self._delays, by_s)
            for output in self.controller.handle(ClockSet(by_s), now_s):
                if self.is_acting:
                    self.executor.do(output)
        return now_s

    def _checkpoint_request(self, job_id: int) -> int:
        return current_request_number(self.controller.jobs.get(job_id)) if self.dependencies.inbox is not None else 0

    def _is_start_postponed(self, row: JobRow) -> bool:
        return self.controller.is_start_postponed(row.job_id, row.restarts, row.eligible_s, self.dependencies.clock())

    def _run(self, event: ControlEvent) -> None:
        """Carry `event` to its end."""
        before = dict(self.executor.orders), dict(self.executor.requests)
        pump(self.controller, event, self)
        if (self.executor.orders, self.executor.requests) != before:
            self._tell()

    def carry_out(self, output: Output) -> Iterator[ControlEvent]:
        """Forget a job that is gone, carry the output out if this daemon leads, and yield the answer."""
        if isinstance(output, Remember) and output.lifecycle.state is ResizeState.GONE:
            self.forecast.forget(output.lifecycle.job_id)
            self.adoption.forget(output.lifecycle.job_id)
            self._decision_log.forget(output.lifecycle.job_id)
        if self.is_acting and (answer := self.executor.do(output)) is not None:
            yield answer

    def complete(self) -> None:
        """Do nothing: an event's outputs are done one by one."""
