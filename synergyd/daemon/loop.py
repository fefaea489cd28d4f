"""The daemon's loop: observe -> model -> allocate -> plan -> act, and the ticks that move resizes between two epochs.

Formulas live in task/ and scheduler/, the states of a resize in lifecycle; here is only what happens when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace

from synergyd.control.decision_log import DecisionLog, present
from synergyd.control.gpus_free import gpus_free
from synergyd.control.health import warnings
from synergyd.control.in_transit import arrived, under_way
from synergyd.control.job_durations import JobDurations
from synergyd.control.progress import attained, progress_of
from synergyd.control.rebatch import better_batch
from synergyd.control.resize import (
    IN_TRANSIT,
    LEAVING,
    Acknowledged,
    Event,
    JobLifecycle,
    Observed,
    Preempted,
    ResizeState,
    ResizeTimes,
    Target,
    Tick,
    Unwanted,
    Wanted,
    advance,
    validate,
)
from synergyd.daemon import heartbeat
from synergyd.daemon.adoption import Adoption, remove_plan
from synergyd.daemon.forecast import CellsOrWhy, Forecast
from synergyd.daemon.job_registry import JobRegistry
from synergyd.daemon.link_members import members_of
from synergyd.daemon.link_process import LinkProcess
from synergyd.daemon.parking import Parking
from synergyd.daemon.report_inbox import ReportInbox
from synergyd.errors import SynergyError
from synergyd.links.sharing import slowdowns_of
from synergyd.records import Action, Cluster, Decision, Job, JobState, Plan, Profile, Report, Snapshot
from synergyd.scheduler.decide import decide
from synergyd.settings import Settings
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.client import SlurmError, SlurmReader, SlurmWriter
from synergyd.slurm.observe import cluster_of, crowded_partitions, held_to_asked, job_of, node_of, state_of
from synergyd.slurm.rows import JobRow
from synergyd.store.buffer import BufferedStore
from synergyd.store.records import EpochRecord, StoredLifecycle, StoredReport
from synergyd.store.records import StoredEvent as StoredEvent
from synergyd.task.learning import inherited, update_profile
from synergyd.task.shared_profiles import SharedProfiles
from synergyd.wire.codec import Checks, decode, encode
from synergyd.wire.plan import PLAN_CHECKS
from synergyd.words import size_words

log = logging.getLogger("synergyd")
BEAT_S = 15.0  # between two heartbeats
SINGLE_READS = 4  # up to so many jobs in transit are read one by one in a tick, more in one bulk read


@dataclass(frozen=True)
class Tools:
    """What the loop works with; tests put narrow fakes in."""

    reader: SlurmReader
    writer: SlurmWriter
    store: BufferedStore
    inbox: ReportInbox | None
    clock: Callable[[], float]
    report_address: str = ""
    leads: Callable[[], bool] = lambda: True
    links: LinkProcess | None = None
    links_address: str = ""


class Daemon:
    """One instance, one thread. `epoch` decides and starts what was decided; `tick` carries resizes on in between."""

    def __init__(self, settings: Settings, tools: Tools, limits: ResizeTimes | None = None) -> None:
        self.settings = settings
        self.tools = tools
        self.limits = limits or ResizeTimes(
            checkpoint_timeout_s=settings.checkpoint_timeout_s,
            park_s=settings.park_s,
            restart_delay_s=settings.restart_delay_s,
            release_timeout_s=max(60.0, 2 * settings.epoch_s),
        )
        self.grace_s = max(30.0, 3 * settings.epoch_s)
        self.registry = JobRegistry(tools.writer, self.grace_s)
        self.actuator = Actuator(
            tools.writer, settings.state_dir, tools.report_address, self.registry.known, tools.links_address
        )
        self.adoption = Adoption(self.actuator, settings.state_dir, tools.report_address, tools.links_address)
        self.parking = Parking(self.actuator, self.limits.park_s, settings.epoch_s)
        self.forecast = Forecast(settings)
        self.likeness = SharedProfiles()
        self.lives: dict[int, JobLifecycle] = {}
        self.profiles: dict[int, Profile] = {}
        self.reports: dict[int, Report] = {}
        self.ages_s: dict[int, float] = {}
        self._leaves: dict[str, str] = {}
        self._switched: frozenset[str] = frozenset()  # the nodes whose leaf switches are known
        self._batches: dict[tuple[int, int], Plan] = {}  # told to (job, restarts)
        self._heard_s: dict[int, float] = {}  # when the latest report of each job came
        self._warned: dict[tuple[int, int], frozenset[str]] = {}
        self._attained_gpu_s: dict[int, float] = {}  # since this daemon looks
        self._looked_s: float | None = None
        self._lengths = JobDurations()
        self.decisions: tuple[Decision, ...] = ()  # of the last epoch, changed or not
        self._blocked: list[Decision] = []  # of them, those whose GPUs others still hold
        self._slowed: dict[int, float] = {}  # by neighbours on shared links, as the last decisions have it
        self._news = DecisionLog()
        self._beat_s = 0.0
        self._loaded = False
        self._acted = False
        self._rows: dict[int, JobRow] = {}
        self._jobs: dict[int, Job] = {}  # as the last snapshot had them

    # -- an epoch --------------------------------------------------------------------------------------------------

    def epoch(self) -> EpochRecord:
        """Observes, decides, stores, and (unless dry-run) acts. Raises SlurmError when Slurm can't be read."""
        began = self.tools.clock()
        self.tools.store.refresh()
        if self._acts and not self._acted and self.tools.store.loaded:
            # it stood by until now: what it saw from there is no match for what the leader before it wrote
            self.lives, self.profiles, self.reports, self._loaded = {}, {}, {}, False
            self.adoption.forget_all()
        self._acted = self._acts
        self._load()
        rows = self.tools.reader.jobs()
        nodes = self.tools.reader.nodes()
        cluster = cluster_of(nodes, self.settings.partitions, self._leaf_switches(frozenset(n.name for n in nodes)))
        types = {n.name: node_of(n).gpu_type for n in nodes}
        self.registry.plain |= set(self.tools.store.remembered.no_directive)
        wanted = [r for r in rows if not self.settings.partitions or r.partition in self.settings.partitions]
        none_found = self.registry.learn(wanted, types)
        if none_found:
            self.tools.store.add_no_directive(none_found, began)
        self._rows = {r.job_id: r for r in rows if r.job_id in self.registry.known and state_of(r) is not JobState.DONE}
        plain = self.registry.plain
        self._take_reports(began)
        here = {r.job_id for r in rows if state_of(r) is not JobState.DONE and (r.job_id, r.submit_s) not in plain}
        self._observe(here, began)
        self._give_up_lost(cluster)
        snapshot = self._snapshot(cluster, types, crowded_partitions(rows, self.registry.known), began)
        passed_s = 0.0 if self._looked_s is None else began - self._looked_s
        self._attained_gpu_s, self._looked_s = attained(self._attained_gpu_s, snapshot.jobs, passed_s), began
        plans, shared = self._plans(), self._shared(snapshot.jobs)
        forecasts = {
            j.job_id: self.forecast.cells(j, self._believed(j, shared), plans.get(j.job_id), cluster)
            for j in snapshot.jobs
            if j.directive
        }
        self._jobs = {j.job_id: j for j in snapshot.jobs}
        if self.tools.links is not None:
            self.tools.links.follow(members_of(snapshot.jobs, self.reports) if self._acts else {})
        decisions = decide(
            arrived(snapshot, under_way(self.lives)),
            self.settings,
            {i: f.cells for i, f in forecasts.items()},
            {i: f.why_none for i, f in forecasts.items() if f.why_none},
            plans,
            self.ages_s,
            progress=progress_of(snapshot.jobs, self.reports, self._attained_gpu_s),
            typical_s=self._lengths.typical_s,
        )
        self.decisions, self._slowed = decisions, slowdowns_of(decisions)
        record = EpochRecord(
            started_s=began,
            duration_s=self.tools.clock() - began,
            dry_run=self.settings.dry_run,
            decisions=self._news.among(decisions, began),
            summary={
                "jobs": len(snapshot.jobs),
                "nodes": len(cluster.nodes),
                "gpus": sum(n.gpus for n in cluster.nodes if n.up),
                "backend": self.tools.reader.name,
            },
            present=tuple(present(snapshot, decisions, self.lives, self.reports)),
        )
        if self._acts or self.settings.dry_run:
            self.tools.store.save_epoch(record)
        if not self._acts and self.tools.inbox is not None:
            self.tools.inbox.answers = {}
        if self._acts:
            known = self.registry.known
            self.adoption.adopt(self.lives[i] for i in self._rows if known[i].directive is not None)
            self._tell_batches(snapshot, forecasts, began)
            self._warn(began)
            self._act(decisions, snapshot, {i for i, f in forecasts.items() if f.cells}, began)
            self._beat(always=True)
        self.tools.store.flush()
        return record

    def tick(self) -> None:
        """Takes reports in and moves the jobs that are being resized. Raises SlurmError when Slurm can't be read."""
        now_s = self.tools.clock()
        self._take_reports(now_s)
        if not self._acts:
            return
        moving = [i for i, life in self.lives.items() if life.state in IN_TRANSIT and i in self.registry.known]
        if moving:
            if len(moving) <= SINGLE_READS:
                found = {i: self.tools.writer.job(i) for i in moving}
            else:
                everything = {r.job_id: r for r in self.tools.reader.jobs()}
                found = {i: everything.get(i) for i in moving}
            leaving = {i for i in moving if self.lives[i].state in LEAVING}
            for job_id in moving:
                self._advance(job_id, _observed(found[job_id]))
                self._advance(job_id, Tick())
            if any(i not in self.lives or self.lives[i].state not in LEAVING for i in leaving):
                self._unblock()
        self._beat()
        self.tools.store.flush()

    def _beat(self, *, always: bool = False) -> None:
        """Tells the plugin that a daemon which acts is there. A folder that can't be written only makes it look away."""
        now_s = self.tools.clock()
        if not always and now_s - self._beat_s < BEAT_S:
            return
        self._beat_s = now_s
        try:
            heartbeat.write(self.settings.state_dir, now_s, self.grace_s)
        except OSError as error:
            log.warning("heartbeat can't be written in %s: %s", self.settings.state_dir, error.strerror)

    @property
    def busy(self) -> bool:
        """This daemon is resizing some job, so ticks should come often."""
        return self._acts and any(life.state in IN_TRANSIT for life in self.lives.values())

    @property
    def _acts(self) -> bool:
        return not self.settings.dry_run and self.tools.leads()

    # -- observing -------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Takes over what a daemon before this one left in the store, once."""
        if self._loaded or not self.tools.store.loaded:
            return
        self._loaded = True
        remembered = self.tools.store.remembered
        for job_id, stored in remembered.lifecycles.items():
            try:
                # whether the last instruction was carried out nobody knows: it is sent again at once
                checks: Checks = {**PLAN_CHECKS, JobLifecycle: validate}
                life = decode(JobLifecycle, stored.payload, "lifecycle", checks)
                self.lives.setdefault(job_id, replace(life, sent_s=0.0))
            except SynergyError as error:
                log.warning("job %d: %s; taken as new", job_id, error)
        for key, profile in remembered.profiles.items():
            kind, _, text = key.partition(":")
            if kind == "job" and text.isdigit():
                self.profiles.setdefault(int(text), profile)
        self.likeness.load(remembered.profiles)
        for job_id, kept in remembered.reports.items():
            self.reports.setdefault(job_id, kept.report)
            self._heard_s.setdefault(job_id, kept.received_s)

    def _observe(self, in_queue: Container[int], now_s: float) -> None:
        for job_id, row in self._rows.items():
            if job_id not in self.lives:
                plan = self.reports[job_id].plan if job_id in self.reports else None
                # whether it was requeued just now nobody knows
                ended_s = now_s if row.restarts else 0.0
                self.lives[job_id] = JobLifecycle(
                    job_id, row.submit_s, since_s=now_s, ended_s=ended_s, restarts=row.restarts, plan=plan
                )
            # since the first sbatch: Slurm resets SubmitTime at each requeue
            self.ages_s[job_id] = max(0.0, now_s - self.lives[job_id].submit_s)
            self._advance(job_id, _observed(row))
        # a job whose directive could not be read this time is in the queue all the same
        for job_id in [i for i in self.lives if i not in in_queue]:
            self._advance(job_id, Observed("GONE"))

    def _give_up_lost(self, cluster: Cluster) -> None:
        """A resize to a node that is no longer up could not start: it gets a new decision in this very epoch."""
        up = {n.name for n in cluster.nodes if n.up}
        for job_id, life in list(self.lives.items()):
            lost = sorted(set(life.target.nodes) - up) if life.target and life.state in IN_TRANSIT else []
            if lost:
                self._advance(job_id, Unwanted(f"{', '.join(lost)} can't take jobs now"))

    def _snapshot(self, cluster: Cluster, types: Mapping[str, str], crowded: frozenset[str], now_s: float) -> Snapshot:
        paused = self.tools.store.remembered.paused
        jobs = []
        for job_id, row in sorted(self._rows.items()):
            known, life = self.registry.known[job_id], self.lives[job_id]
            report = self.reports.get(job_id)
            reported = report is not None and report.restarts == row.restarts
            job = job_of(row, known, types, paused=job_id in paused, reported=reported)
            begin_s = self.registry.begin_s.get(job_id)
            job = replace(job, begin_s=begin_s if begin_s is not None and begin_s > now_s else None)
            if job.state is JobState.RUNNING and not job.fixed and now_s < life.retry_after_s:
                job = replace(job, fixed=f"its last resize failed; tried again in {life.retry_after_s - now_s:.0f} s")
            jobs.append(held_to_asked(job) if crowded & set(job.partition.split(",")) else job)
        return Snapshot(now_s, cluster, tuple(jobs), dict(self.profiles))

    def _plans(self) -> dict[int, Plan]:
        """Plans of running jobs: the one Synergy gave, or the one the job reports."""
        plans = {i: life.plan for i, life in self.lives.items() if life.plan is not None}
        for job_id, report in self.reports.items():
            row = self._rows.get(job_id)
            if report.plan is not None and row is not None and report.restarts == row.restarts:
                plans[job_id] = report.plan
        return plans

    def _profile(self, job_id: int) -> Profile:
        return self.profiles.get(job_id, Profile())

    def _shared(self, jobs: Iterable[Job]) -> dict[str, Profile]:
        """What jobs that name the same model have learnt together, for those of them without a report."""
        like: dict[str, list[Profile]] = {}
        for job in jobs:
            name = job.directive.model if job.directive else None
            if name and self._profile(job.job_id).samples:
                like.setdefault(name, []).append(self._profile(job.job_id))
        return {name: inherited(Profile(), some) for name, some in like.items()}

    def _believed(self, job: Job, shared: Mapping[str, Profile]) -> Profile:
        own = self.likeness.believed(job, self._profile(job.job_id))
        found = shared.get((job.directive.model if job.directive else None) or "")
        return own if found is None or own.samples else inherited(own, [found])

    def _leaf_switches(self, names: frozenset[str]) -> dict[str, str]:
        """Read again when nodes have come or gone: Slurm itself reads a new topology only when it starts again."""
        if names != self._switched:
            try:
                self._leaves, self._switched = self.tools.writer.leaf_switches(), names
            except SlurmError as problem:
                log.warning("topology: %s", problem)
        return self._leaves

    def _take_reports(self, now_s: float) -> None:
        if self.tools.inbox is None:
            return
        kept: dict[int, StoredReport] = {}
        learnt: dict[str, Profile] = {}
        for received in self.tools.inbox.take():
            report, row = received.report, self._rows.get(received.report.job_id)
            if row is None:
                continue  # it has left, or is not known yet: its next report comes soon
            if row.uid != received.uid:
                log.warning("report for job %d by uid %d refused: not its owner's", report.job_id, received.uid)
                continue
            life = self.lives.get(report.job_id)
            if life is None or report.restarts != max(life.restarts, row.restarts):
                continue  # of an incarnation that has ended, or that Slurm has not shown yet
            self.reports[report.job_id] = report
            self._heard_s[report.job_id] = now_s
            kept[report.job_id] = StoredReport(report, now_s)
            profile, job = self._profile(report.job_id), self._jobs.get(report.job_id)
            same = job is not None and job.restarts == report.restarts and job.state is JobState.RUNNING
            step_s, memory = self.forecast.predicted(report, job if same else None, profile) or (None, None)
            shape = job.shape if same and job is not None else None
            self.profiles[report.job_id] = update_profile(profile, self._quiet(report), step_s, memory or None, shape)
            if job is not None:
                learnt |= self.likeness.learn(job, self.profiles[report.job_id])
            self._advance(report.job_id, Acknowledged(report.restarts, report.checkpoint_requests))
        if kept and self._acts:
            self.tools.store.put_reports(kept.values())
            self.tools.store.put_profiles({f"job:{i}": self.profiles[i] for i in kept} | learnt, now_s)

    def _quiet(self, report: Report) -> Report:
        """The report without what neighbours on shared links cost, by the last decision: that is theirs, not the plan's."""
        slowdown = self._slowed.get(report.job_id, 1.0)
        return replace(report, step_s=report.step_s / slowdown) if report.step_s is not None else report

    # -- acting ----------------------------------------------------------------------------------------------------

    def _act(self, decisions: Iterable[Decision], snapshot: Snapshot, schedulable: set[int], now_s: float) -> None:
        jobs = {j.job_id: j for j in snapshot.jobs}
        again: list[int] = []
        self._blocked = []
        for decision in decisions:
            job, life = jobs[decision.job_id], self.lives.get(decision.job_id)
            if life is not None and life.stopping and (job.paused or _stays(decision, job)):
                self._advance(
                    job.job_id, Unwanted("nobody needs its GPUs any more" if not job.paused else "it is paused")
                )
            if life is None or job.directive is None or job.held or job.paused or decision.action is Action.KEEP:
                continue
            if decision.action is Action.WAIT and job.state is JobState.RUNNING:
                self._preempt(decision, job)
            elif decision.action is Action.WAIT:
                again += self.parking.keep(job, self._rows[job.job_id], life, job.job_id in schedulable, now_s)
            elif decision.cell is None or life.state not in (ResizeState.QUEUED, ResizeState.RUNNING):
                continue
            elif gpus_free(decision, snapshot):
                self._want(decision, job, life)
            else:
                self._blocked.append(decision)
                if life.state is ResizeState.QUEUED:
                    again += self.parking.keep(job, self._rows[job.job_id], life, True, now_s)
        self.parking.again(again)

    def _unblock(self) -> None:
        """What the last epoch decided and could not be done yet is done as soon as others have left its GPUs: not for a job that
        is not as it was, which the next epoch decides about."""
        if not self._blocked:
            return
        cluster = cluster_of(self.tools.reader.nodes(), self.settings.partitions, self._leaves)
        blocked, self._blocked = self._blocked, []
        for decision in blocked:
            job, life = self._jobs.get(decision.job_id), self.lives.get(decision.job_id)
            if job is None or life is None or life.state not in (ResizeState.QUEUED, ResizeState.RUNNING):
                continue
            if not gpus_free(decision, Snapshot(self.tools.clock(), cluster, (job,))):
                self._blocked.append(decision)
            elif _same(self.tools.writer.job(job.job_id), self._rows.get(job.job_id)):
                self._want(decision, job, life)

    def _warn(self, now_s: float) -> None:
        """Running jobs whose steps have stopped, or that wait for a slow node: into their story, once."""
        warned: dict[tuple[int, int], frozenset[str]] = {}
        for job_id, report in self.reports.items():
            life, row = self.lives.get(job_id), self._rows.get(job_id)
            if life is None or row is None or life.state is not ResizeState.RUNNING or report.restarts != row.restarts:
                continue
            found = warnings(report, self._heard_s.get(job_id, now_s), now_s)
            key = job_id, row.restarts
            fresh = [w.text for w in found if w.kind not in self._warned.get(key, frozenset())]
            if fresh:
                self._remember(life, fresh, "Warning", now_s)
            warned[key] = frozenset(w.kind for w in found)
        self._warned = warned

    def _tell_batches(self, snapshot: Snapshot, forecasts: Mapping[int, CellsOrWhy], now_s: float) -> None:
        """Jobs that would gain by another batch on what they hold are told in the answer to their next report."""
        told: dict[tuple[int, int], Plan] = {}
        for job in snapshot.jobs:
            life, found = self.lives.get(job.job_id), forecasts.get(job.job_id)
            if life is None or found is None or life.state is not ResizeState.RUNNING:
                continue
            report = self.reports.get(job.job_id)
            told_by = None if report is None else self._quiet(report)
            plan = better_batch(job, told_by, found.cells, self._profile(job.job_id).noise_scale)
            if plan is None:
                continue
            key = job.job_id, job.restarts
            told[key] = plan
            if self._batches.get(key) != plan:
                text = f"global batch {plan.global_batch}, micro-batch {plan.micro_batch} from its next step on"
                self._remember(life, (text,), "Batch", now_s)
        self._batches = told
        if self.tools.inbox is not None:
            jobs = {job.job_id: job for job in snapshot.jobs}
            self.tools.inbox.answers = {key: (jobs[key[0]].uid, plan) for key, plan in told.items()}

    def _want(self, decision: Decision, job: Job, life: JobLifecycle) -> None:
        assert decision.cell is not None
        shape = decision.cell.shape
        fixed = bool(job.fixed) and job.state is JobState.PENDING
        # a job that keeps its own size keeps its own degrees as well
        target = Target(shape, decision.node_names, None if fixed else decision.cell.plan)
        present = Target(job.shape, job.node_names, life.plan)
        words = size_words(shape, target.plan)
        cause = f"{size_words(job.shape, life.plan)} -> {words}" if decision.action is Action.RESIZE else words
        self._advance(job.job_id, Wanted(target, cause, self._acks(life), present))

    def _preempt(self, decision: Decision, job: Job) -> None:
        life = self.lives[job.job_id]
        self._advance(job.job_id, Preempted(f"{size_words(job.shape, life.plan)} go to others", self._acks(life)))

    def _acks(self, life: JobLifecycle) -> int:
        """Checkpoints asked for and taken in this incarnation."""
        report = self.reports.get(life.job_id)
        return report.checkpoint_requests if report and report.restarts == life.restarts else 0

    def _advance(self, job_id: int, event: Event) -> None:
        """One event, and all that follows from it. What is intended is stored before it is done."""
        queue: list[Event] = [event]
        while queue:
            life = self.lives.get(job_id)
            if life is None:
                return
            now_s = self.tools.clock()
            step = advance(life, queue.pop(0), now_s, self.limits)
            if step.life != life or step.story:
                self._remember(step.life, step.story, type(event).__name__, now_s)
            if not self._acts:
                return
            for instruction in step.instructions:
                self.tools.store.flush()
                queue.append(self.actuator.carry_out(instruction))

    def _remember(self, life: JobLifecycle, story: Iterable[str], event: str, now_s: float) -> None:
        job_id = life.job_id
        if not self._acts:
            self._only_watch(life)
            return
        for text in story:
            log.info("job %d %s: %s", job_id, life.state, text)
        self.tools.store.append_events([StoredEvent(job_id, now_s, life.state.value, event, text) for text in story])
        self._only_watch(life)
        if life.state is ResizeState.GONE:
            self._news.forget(job_id)
            self.tools.store.delete_lifecycles([job_id])
            remove_plan(self.settings.state_dir, job_id)
            return
        self.tools.store.put_lifecycles([StoredLifecycle(job_id, life.submit_s, life.state.value, encode(life), now_s)])

    def _only_watch(self, life: JobLifecycle) -> None:
        """In memory alone: the store is the leader's."""
        if life.state is not ResizeState.GONE:
            self.lives[life.job_id] = life
            return
        if (job := self._jobs.get(life.job_id)) is not None and life.job_id in self.lives:
            self._lengths.ended(self._attained_gpu_s.get(life.job_id, 0.0), job.asked.gpus)
        self.lives.pop(life.job_id, None)
        self.reports.pop(life.job_id, None)
        self._heard_s.pop(life.job_id, None)
        self.profiles.pop(life.job_id, None)
        self.ages_s.pop(life.job_id, None)
        self.forecast.forget(life.job_id)
        self.likeness.forget(life.job_id)
        self.adoption.forget(life.job_id)
        self.parking.forget(life.job_id)


def _observed(row: JobRow | None) -> Observed:
    if row is None:
        return Observed("GONE")
    state = state_of(row)
    if state is JobState.DONE:
        return Observed("GONE")
    return Observed(state.value, row.restarts, row.eligible_s if state is JobState.PENDING else None)


def _stays(decision: Decision, job: Job) -> bool:
    """Is a job that is to make way decided to have what it has?"""
    return decision.cell is not None and decision.cell.shape == job.shape and decision.node_names == job.node_names


def _same(now: JobRow | None, then: JobRow | None) -> bool:
    """Is the job as it was, as far as a decision about it goes?"""
    if now is None or then is None:
        return False
    return all(
        getattr(now, name) == getattr(then, name) for name in ("state", "restarts", "node_names", "tres_per_node")
    ) and bool(now.priority) == bool(then.priority)
