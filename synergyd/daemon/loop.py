"""The daemon's loop: a shell over the controller. observe -> model -> allocate -> plan -> act, and ticks between two epochs.

What happens to a job is the controller's; formulas live in task/ and scheduler/. Here is what is asked of whom, in which order.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from synergyd.control.arrivals import Arrivals, JobCounts, come_early
from synergyd.control.checkpoint_request import told_request
from synergyd.control.controller import Controller
from synergyd.control.decision_log import DecisionLog, JobStatus, present
from synergyd.control.move_limits import caps_beside
from synergyd.control.notices import late_deadlines
from synergyd.control.queue_history import QueueHistory
from synergyd.control.resize.events import (
    BatchReviewed,
    ClockSet,
    ControlEvent,
    Decided,
    EpochDecided,
    HealthReviewed,
    NodesRead,
    SnapshotTaken,
    Ticked,
    Unblocked,
)
from synergyd.control.resize.lifecycle import ResizeState, ResizeTimes, times_of
from synergyd.control.resize.starts import ends_matter
from synergyd.control.tracked import Remember
from synergyd.control.waiting import is_put_off
from synergyd.control.watch import smallest_of
from synergyd.daemon.account_limits import AccountReader
from synergyd.daemon.adoption import Adoption
from synergyd.daemon.day_time import DayTime
from synergyd.daemon.executor import Executor
from synergyd.daemon.forecast import CellsOrWhy, Forecast
from synergyd.daemon.heartbeat import Heartbeat, grace_of
from synergyd.daemon.job_keys import JobKeys
from synergyd.daemon.job_registry import JobRegistry
from synergyd.daemon.links.members import members_of
from synergyd.daemon.observer import Observer
from synergyd.daemon.restart_place import RestartPlace
from synergyd.daemon.restore import restore
from synergyd.daemon.tools import Tools
from synergyd.daemon.usage_look import holdings
from synergyd.records import Action, Decision, Job, JobState, Snapshot
from synergyd.scheduler.decide import decide
from synergyd.scheduler.delayed_starts import watched
from synergyd.scheduler.policies.registry import policy_named
from synergyd.scheduler.problem.delays import NO_DELAYS, clock_set
from synergyd.settings import Settings
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.rows import JobRow
from synergyd.slurm.parsed.snapshot import state_of
from synergyd.store.records import EpochRecord, epoch_record

log = logging.getLogger("synergyd")
LOSSES_EVERY_S = 2.0
AS_SUBMITTED = " It waits in Slurm's queue as it was submitted."
_WITHOUT_KEY = (ResizeState.QUEUED, ResizeState.GONE)


class Daemon:
    """One instance, one thread. `epoch` decides and starts what was decided; `tick` carries resizes on in between."""

    def __init__(self, settings: Settings, tools: Tools, times: ResizeTimes | None = None) -> None:
        self.settings, self.tools = settings, tools
        # longest that a new job waits for a daemon that has stopped deciding
        self.grace_s = grace_of(settings.epoch_s)
        self.registry = JobRegistry(tools.writer, self.grace_s)
        accounts = AccountReader(
            tools.writer, fair_share=settings.fair_share_weight, clock=tools.monotonic or tools.clock
        )
        self.observer = Observer(settings, tools.reader, tools.writer, self.registry, accounts)
        self.controller = Controller(times or times_of(settings), settings.epoch_s)
        addresses = tools.report_address, tools.links_address
        self.actuator = Actuator(
            tools.writer,
            settings.state_dir,
            addresses[0],
            self.registry.known,
            addresses[1],
            self._put_off,
            self._request_of,
            names=self.registry.names,
            check=RestartPlace(self.observer, self.controller, tools.clock),
        )
        self.keys = JobKeys(settings.state_dir, tools.secret) if tools.secret else None
        self.adoption = Adoption(self.actuator, settings.state_dir, *addresses)
        self.executor = Executor(
            tools.store, self.actuator, settings.state_dir, tools.clock, self.observer.beyond_limits
        )
        self.forecast = Forecast(settings)
        self.heartbeat = Heartbeat(settings.state_dir, self.grace_s, tools.paced_s)
        self.executor.job = lambda i: self.controller.jobs[i].job if i in self.controller.jobs else None
        self.executor.notifies = bool(settings.notice_url or settings.mail_prog)
        self.decisions: tuple[Decision, ...] = ()  # of the last epoch, changed or not
        self._decision_log, self._history = DecisionLog(), QueueHistory()
        self._delays = NO_DELAYS  # in memory alone: after a start of the daemon waits count anew
        self._loaded = False
        self._acted: int | None = None  # the term in which the last epoch acted
        self._cleared = False  # of what a daemon before this one left in Slurm
        self._monotonic = tools.monotonic or tools.clock
        self._day_time = DayTime(tools.clock, self._monotonic)
        self._looked_s: float | None = None  # by the monotonic clock
        self._losses_looked_s = -math.inf  # likewise
        self.hurries = False  # a job has lost a node, or was submitted: the next epoch should not wait
        self._arrivals = Arrivals(settings.epoch_s)
        self._count_denied = False
        self._comes_early = come_early(settings, policy_named(settings.policy))

    @property
    def acts(self) -> bool:
        """This daemon writes to jobs and to the store; one that stands by or runs dry only looks."""
        return not self.settings.dry_run and self.tools.leads()

    @property
    def busy(self) -> bool:
        """This daemon is resizing some job, so ticks should come often."""
        return self.acts and bool(self.controller.in_transit)

    def epoch(self) -> EpochRecord:
        """Observes, decides, stores, and (unless dry-run) acts. Raises SlurmError when Slurm can't be read."""
        began, counted_s, self.hurries = self._now(), self._monotonic(), False
        phase = self.tools.phases.of
        self._arrivals.epoch_began(counted_s, self._job_counts())
        with phase("observe"):
            snapshot = self._observe(began)
        with phase("model"):
            forecasts = self._forecasts(snapshot)
        with phase("decide"):
            self.decisions = self._decide(snapshot, forecasts, began)
        self._run(EpochDecided(self.decisions))
        record = epoch_record(
            self._decision_log.among(self.decisions, began),
            tuple(self._present(snapshot, forecasts)),
            snapshot,
            duration_s=self._monotonic() - counted_s,
            dry_run=self.settings.dry_run,
            backend=self.tools.reader.name,
            history=self._history.epoch(snapshot, self.decisions, self.controller.reports, began),
        )
        if self.acts or self.settings.dry_run:
            self.tools.store.save_epoch(record)
        with phase("act"):
            self._act(snapshot, forecasts)
        self._account(forecasts, began)
        with phase("store"):
            self.tools.store.flush()
        self._arrivals.epoch_ended(
            self._monotonic(), waits=self._is_awaited(snapshot), limited=self.tools.paced_s() > 0
        )
        return record

    def tick(self) -> None:
        """Takes reports in and moves the jobs that are being resized. Raises SlurmError when Slurm can't be read."""
        self._take_reports()
        if not self.acts:
            return
        leaving = self.controller.leaving
        events = list(self.observer.moving_events(self.controller.in_transit))
        for event in events:
            self._run(event)
        waits = any(tracked.waits_for_nodes for tracked in self.controller.jobs.values())
        cluster = self.observer.read_nodes() if waits else None
        for event in events:
            self._run(Ticked(event.job_id, cluster))
        if leaving - self.controller.leaving:
            self._unblock()
        self._look_for_losses()
        self._look_for_arrivals()
        self.heartbeat.go_on(self._now())
        self.tools.store.flush()

    # -- an epoch's parts ----------------------------------------------------------------------------------------------

    def _observe(self, now_s: float) -> Snapshot:
        store = self.tools.store
        store.refresh()
        term = self.tools.term() if self.acts else None
        if term is not None and term != self._acted and store.loaded:
            # another led until now: what this one saw of that is no match for what the leader before it wrote
            self.controller.taken_over()
            self._history = QueueHistory()
            self._loaded = self._cleared = False
            self.executor.orders, self.executor.requests = {}, {}
            self.adoption.forget_all()
        self._acted = term
        if store.loaded and not self._loaded:
            self._loaded = True
            restore(self.controller, store.remembered, now_s)
        self._take_reports()  # the last words of a job that this look finds gone
        self.registry.kept = ends_matter(self.controller.lifecycles)
        newly_plain = self.observer.read(store.remembered.no_directive, now_s)
        if newly_plain:
            store.add_no_directive(newly_plain, now_s)
        self._take_reports()
        for event in self.observer.queue_events(self.registry.kept):
            self._run(event)
        self._run(NodesRead(self.observer.may_take_jobs))
        kept = store.remembered
        snapshot = self.observer.snapshot(self.controller, kept.paused, now_s, kept.steering)
        before_s, self._looked_s = self._looked_s, self._monotonic()
        self._run(SnapshotTaken(snapshot, 0.0 if before_s is None else self._looked_s - before_s))
        return snapshot

    def _forecasts(self, snapshot: Snapshot) -> dict[int, CellsOrWhy]:
        jobs = [j for j in snapshot.jobs if j.directive]
        plans, believed = self.controller.plans(), self.controller.believed(jobs)
        self.forecast.begin()
        self.forecast.learn_prior(self.controller.shared_profiles.programs(), snapshot.cluster)
        self.forecast.expect(jobs, believed, snapshot.cluster)
        bans, cells = self.controller.failed_plans.of, self.forecast.cells
        found = {j.job_id: cells(j, believed[j.job_id], plans.get(j.job_id), snapshot.cluster, bans(j)) for j in jobs}
        for job_id, offered in found.items():
            self.controller.jobs[job_id].out_of_plans = offered.all_failed
            if self.settings.idle_reclaim_s:
                self.controller.jobs[job_id].smallest = smallest_of(offered.cells)
        return found

    def _act(self, snapshot: Snapshot, forecasts: dict[int, CellsOrWhy]) -> None:
        links, acts = self.tools.links, self.acts
        self.executor.begin()
        if links is not None:
            links.follow(members_of(snapshot.jobs, self.controller.reports) if acts else {})
        if acts:
            jobs = [j for j in snapshot.jobs if self.registry.known[j.job_id].directive is not None]
            lives = self.controller.lifecycles
            self.adoption.adopt((lives[j.job_id] for j in jobs), self.observer.start_informed())
            for job_id, forecast in forecasts.items():
                self._run(BatchReviewed(job_id, forecast.cells))
        self._tell()
        if acts:
            self._run(HealthReviewed(drains=self.settings.drain_slow))
            for late in late_deadlines(self.controller, forecasts, snapshot.time_s):
                self.executor.do(late)
            for decision in self.decisions:
                if decision.job_id in self.observer.slurms:
                    continue  # Slurm carries it out, in the order of its own queue
                offered = forecasts.get(decision.job_id)
                self._run(Decided(decision, schedulable=offered is not None and bool(offered.cells)))
                self.heartbeat.go_on(self._now())  # many starts at Slurm's pace for one user (rl_enable) take minutes
            self._keep_keys(jobs)
            park_s = self.controller.times.park_s
            self.executor.keep_forms(self.observer.forms, self.observer.rows, park_s, self._puts_off)
            self.executor.let_go(list(self._slurms(snapshot, forecasts)))
            hushed = [j.job_id for j in jobs if self.registry.known[j.job_id].mail]
            lives = self.controller.lifecycles
            self.executor.restore_mails(i for i in hushed if i in lives and lives[i].state is ResizeState.RUNNING)
            if self.observer.shields and not self._cleared:
                self.actuator.shields.take_down_all({i for i, life in lives.items() if life.shielded})
            self._cleared = True
            self.executor.park_again()
            self.heartbeat.completed(self._now())

    def _decide(self, snapshot: Snapshot, forecasts: Mapping[int, CellsOrWhy], now_s: float) -> tuple[Decision, ...]:
        controller = self.controller
        deciding = controller.deciding(snapshot)
        policy = policy_named(self.settings.policy)
        self._delays = watched(self._delays, deciding, policy, self.settings.placement)
        decisions = decide(
            deciding,
            self.settings,
            {i: f.cells for i, f in forecasts.items()},
            {i: f.why_none for i, f in forecasts.items() if f.why_none},
            controller.plans(),
            controller.ages_s(now_s),
            policy,
            progress=controller.progress(snapshot.jobs),
            typical_s=controller.durations.typical_s,
            slurm_limits=self.observer.slurm_limits,
            caps=caps_beside(controller.jobs, self.settings, now_s),
            restarts=controller.restarts.of(snapshot.jobs, controller.jobs, now_s),
            passed=self.observer.passed,
            delays=self._delays,
        )
        advice = {i: f.advice for i, f in forecasts.items() if f.advice}
        notes = dict.fromkeys(self.observer.slurms, AS_SUBMITTED)
        notes |= {d.job_id: advice[d.job_id] for d in decisions if d.action is Action.KEEP and d.job_id in advice}
        return tuple(replace(d, why=d.why + notes[d.job_id]) if d.job_id in notes else d for d in decisions)

    def _present(self, snapshot: Snapshot, forecasts: Mapping[int, CellsOrWhy]) -> Iterator[JobStatus]:
        hints = {i: f.hint for i, f in forecasts.items() if f.hint}
        return present(snapshot, self.decisions, self.controller.lifecycles, self.controller.reports, hints)

    def _account(self, forecasts: Mapping[int, CellsOrWhy], now_s: float) -> None:
        """What jobs hold goes to the thread that keeps it."""
        if self.tools.usage is not None and self.acts:
            seen = self.observer.everybodys, self.settings.partitions, self.controller.jobs
            self.tools.usage.see(now_s, tuple(holdings(*seen, self.decisions, forecasts, now_s)), self.tools.term())

    def _slurms(self, snapshot: Snapshot, forecasts: Mapping[int, CellsOrWhy]) -> Iterator[int]:
        """Yield the pending jobs that nobody will decide about, and that only a start time of Synergy's still holds back."""
        forms = self.observer.forms
        for job in snapshot.jobs:
            job_id, offered, tracked = job.job_id, forecasts.get(job.job_id), self.controller.jobs.get(job.job_id)
            if job.state is not JobState.PENDING:
                continue
            if tracked is not None and job_id in self.observer.slurms and is_put_off(tracked, snapshot.time_s):
                self.executor.do(tracked.puts_off(snapshot.time_s))
                yield job_id
                continue
            if job_id in self.observer.slurms:
                slurms = True
            elif job_id in forms.waits and self.registry.known[job_id].directive is not None:
                slurms = job_id in forms.slurms and not job.held and not job.paused
            else:
                none = offered is not None and not offered.cells and not self.observer.waits_for_nodes
                nothing = job.shape.gpus < 1 or none  # to decide about
                slurms = job.directive is None or (nothing and not job.held)
            if slurms and self.registry.release_at_once(self.observer.rows[job_id], snapshot.time_s):
                yield job_id

    def _tell(self) -> None:
        """What jobs are told in the answers to their reports from now on."""
        inbox, rows = self.tools.inbox, self.observer.rows if self.acts else {}
        told = {**self.executor.batches, **self.executor.requests, **self.executor.orders}
        if inbox is not None:
            answers = {key: (rows[key[0]].uid, what) for key, what in told.items() if key[0] in rows}
            owners = {(i, r.restarts): r.uid for i, r in rows.items() if state_of(r) is JobState.RUNNING}
            inbox.tell(answers, {**owners, **{key: uid for key, (uid, _) in answers.items()}})

    def _keep_keys(self, jobs: Iterable[Job]) -> None:
        """Those that run or were just handed their plan have a key; a queue without end costs none."""
        if self.keys is not None:
            tracked = self.controller.jobs
            lives = (tracked[j.job_id].lifecycle for j in jobs if j.job_id in tracked)
            self.keys.keep(self.observer.rows[i.job_id] for i in lives if i.state not in _WITHOUT_KEY)

    def _puts_off(self, job_id: int) -> None:
        if (tracked := self.controller.jobs.get(job_id)) is not None:
            self.executor.do(tracked.puts_off(self._now() + self.controller.times.park_s))

    def _take_reports(self) -> None:
        if self.tools.inbox is None:
            return
        self.observer.hear()
        for received in self.tools.inbox.take():
            for event in self.observer.report_events(received, self.controller, self.forecast):
                self._run(event)

    def _look_for_losses(self) -> None:
        """Where spares are kept a job that has lost a node is decided about at once: one call to Slurm each LOSSES_EVERY_S."""
        settings, at_s = self.settings, self._monotonic()
        if not (settings.spare_nodes or settings.qos_spare_nodes) or at_s - self._losses_looked_s < LOSSES_EVERY_S:
            return
        self._losses_looked_s = at_s
        up = frozenset(n.name for n in self.observer.read_nodes().nodes if n.up)
        self.hurries |= self.controller.lost_nodes(up, self._now())

    def _look_for_arrivals(self) -> None:
        if self._arrivals.may_look(self._monotonic()):
            self.hurries |= self._arrivals.came(self._monotonic(), self._job_counts())

    def _is_awaited(self, snapshot: Snapshot) -> bool:
        """Return whether a job waits that Synergy is to start: the end of another may let it."""
        slurms = self.observer.slurms
        waiting = (j for j in snapshot.jobs if j.state is JobState.PENDING and j.job_id not in slurms)
        return any(j.directive is not None and not (j.held or j.paused) for j in waiting)

    def _job_counts(self) -> JobCounts | None:
        """Return Slurm's counts; None where no epoch comes early, or Slurm does not tell."""
        if not (self._comes_early and self.acts):
            return None
        try:
            return self.tools.writer.job_counts()
        except SlurmError as error:
            if not error.transient and not self._count_denied:
                log.warning("epochs do not come early: %s", error)
                self._count_denied = True
            return None

    def _unblock(self) -> None:
        """What the last epoch decided and could not be done yet is done as soon as others have left its GPUs: not for a job that
        is not as it was, which the next epoch decides about."""
        if any(tracked.blocked for tracked in self.controller.jobs.values()):
            for job_id in self.controller.unblockable(self.observer.read_nodes(), self._now()):
                job = self.controller.jobs[job_id].job
                self._run(Unblocked(job_id, job if self.observer.unchanged(job_id) else None))

    def _now(self) -> float:
        """The time of day. Where somebody has set it, all that waits is moved with it first."""
        now_s, by_s = self._day_time.read()
        if by_s:
            log.warning("the clock was set by %+.1f s", by_s)
            self.heartbeat.set_clock(by_s)
            self._decision_log.set_clock(by_s)
            self._delays = clock_set(self._delays, by_s)
            for output in self.controller.handle(ClockSet(by_s), now_s):
                if self.acts:
                    self.executor.do(output)
        return now_s

    def _request_of(self, job_id: int) -> int:
        return told_request(self.controller.jobs.get(job_id)) if self.tools.inbox is not None else 0

    def _put_off(self, row: JobRow) -> bool:
        return self.controller.put_off(row.job_id, row.restarts, row.eligible_s, self.tools.clock())

    def _run(self, event: ControlEvent) -> None:
        """One event, and all that follows from it."""
        queue: deque[ControlEvent] = deque([event])
        told = dict(self.executor.orders), dict(self.executor.requests)
        while queue:
            for output in self.controller.handle(queue.popleft(), self._now()):
                if isinstance(output, Remember) and output.lifecycle.state is ResizeState.GONE:
                    self.forecast.forget(output.lifecycle.job_id)
                    self.adoption.forget(output.lifecycle.job_id)
                    self._decision_log.forget(output.lifecycle.job_id)
                if self.acts and (answer := self.executor.do(output)) is not None:
                    queue.append(answer)
        if (self.executor.orders, self.executor.requests) != told:
            self._tell()
