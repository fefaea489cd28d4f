"""All that Synergy keeps of its jobs between two looks at the cluster, as one pure class: events in, instructions out.

    QueueRead, JobObserved, NodesRead ────┐                        ┌── Instruction (to Slurm), with InstructionAnswered
    ReportsReceived, CheckpointTaken ─────┤── Controller.handle ──├── Remember (to the store, before what follows it)
    SnapshotTaken, JobDecided, TimePassed ┘   one TrackedJob a job └── TellBatch, ParkAgain

The daemon's loop and the simulator's director are shells over it: they ask `decide` for decisions, hand events in, and carry out what
comes back, each output in its order. No clock, no I/O: every event comes with its time. `validate` says what may never be.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from synergy_core.formatting import format_size
from synergy_core.job_report import Report
from synergy_core.records import Action, Cluster, Job, JobState, Plan, Profile, Snapshot

from synergyd.control.checkpoint_request import checkpoint_events, hear_launcher
from synergyd.control.clock_set import read_back, set_clock
from synergyd.control.decidable import decidable_job
from synergyd.control.failed_plans import FailedPlans, follow_up
from synergyd.control.fault_monitor import FaultMonitor, is_stall_common
from synergyd.control.in_place import (
    clear_speed_of_last_report,
    has_nodes_to_return,
    join_event,
    loss_event,
    note_lost_nodes,
    restart_event,
    target_loss_event,
    tell_crash,
)
from synergyd.control.in_transit import decisions_under_way, keeps_allocation, with_changes_done
from synergyd.control.learning import learn_safely
from synergyd.control.power_up import PowerUps, find_power_ups
from synergyd.control.resize.events import (
    Acknowledged,
    BatchReviewed,
    CarriedOut,
    CheckpointTaken,
    ClockSet,
    ControlEvent,
    DecisionUnblocked,
    EpochDecided,
    GpuTimeKnown,
    HealthReviewed,
    Hung,
    InstructionAnswered,
    JobDecided,
    JobObserved,
    NodesRead,
    Observed,
    Preempted,
    QueueRead,
    Refused,
    ReportsReceived,
    ResizeEvent,
    SnapshotTaken,
    Tick,
    TimePassed,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.gpus_free import gpus_free
from synergyd.control.resize.instructions import AskCheckpoint, Park, Wake
from synergyd.control.resize.lifecycle import IN_TRANSIT, LEAVING, STARTING, JobLifecycle, ResizeState, ResizeTimes
from synergyd.control.resize.machine import advance
from synergyd.control.resize.start_time import put_off_until_s
from synergyd.control.resize_request import resize_request
from synergyd.control.restart_budgets import RestartBudgets
from synergyd.control.reviews import review_batch, review_health, review_time
from synergyd.control.state.progress import JobDurations, compute_progress, with_likely
from synergyd.control.state.size_changes import SizeChanges
from synergyd.control.tracked import KeepReport, Output, Remember, StoryEntry, TrackedJob
from synergyd.control.waiting import count_held_back_time, park_if_waiting
from synergyd.jobmodel.likely_lengths import LearntLengths
from synergyd.jobmodel.shared_profiles import SharedProfiles, believed_profiles
from synergyd.links.sharing import find_slowdowns
from synergyd.scheduler.problem.records import Progress

HISTORY = 10_000  # lines of `story`, of all jobs together
_DECIDABLE, GONE = (ResizeState.QUEUED, ResizeState.RUNNING), ResizeState.GONE
_Value = TypeVar("_Value")


@dataclass
class Controller:
    """The pure class that keeps all jobs.

    `epoch_s`: seconds between two epochs. `learns`: reports teach profiles (an oracle's jobs have nothing to
    teach). `live`: nodes may leave running jobs without a requeue.
    """

    times: ResizeTimes
    epoch_s: float
    learns: bool = True
    live: bool = True
    jobs: dict[int, TrackedJob] = field(default_factory=dict)
    durations: JobDurations = field(default_factory=JobDurations)
    lengths: LearntLengths = field(default_factory=LearntLengths)
    shared_profiles: SharedProfiles = field(default_factory=SharedProfiles)
    failed_plans: FailedPlans = field(default_factory=FailedPlans)
    size_changes: SizeChanges = field(default_factory=SizeChanges)
    power_ups: PowerUps = field(default_factory=PowerUps)
    faults: FaultMonitor = field(default_factory=FaultMonitor)
    log: deque[StoryEntry] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _unseen: dict[int, TrackedJob] = field(default_factory=dict)  # read back from a store, not in the queue so far
    _cluster: Cluster = field(default_factory=lambda: Cluster(()))

    def __post_init__(self) -> None:
        self.restart_budgets = RestartBudgets(self.times, self.epoch_s, live=self.live)

    # -- what a shell asks ---------------------------------------------------------------------------------------------

    @property
    def lifecycles(self) -> dict[int, JobLifecycle]:
        return {i: t.lifecycle for i, t in self.jobs.items()}

    @property
    def profiles(self) -> dict[int, Profile]:
        return self._of_jobs(lambda t: t.profile)

    @property
    def reports(self) -> dict[int, Report]:
        return self._of_jobs(lambda t: t.report)

    def progress(self, jobs: Iterable[Job]) -> dict[int, Progress]:
        """Return by job id how far each job has come, according to its reports as far as its own steps do not refute them."""
        jobs = tuple(jobs)
        refuted = frozenset(i for i, t in self.jobs.items() if t.claim is not None and t.claim.is_refuted)
        return with_likely(compute_progress(jobs, self.reports, self.attained_gpu_s, refuted), jobs, self.lengths)

    @property
    def in_transit(self) -> list[int]:
        """Return the jobs that are being resized or started."""
        return [i for i, t in self.jobs.items() if t.lifecycle.state in IN_TRANSIT]

    @property
    def leaving(self) -> set[int]:
        """Return the jobs that still hold GPUs which they are to give back."""
        return {i for i, t in self.jobs.items() if t.lifecycle.state in LEAVING}

    @property
    def attained_gpu_s(self) -> dict[int, float]:
        return {i: t.attained_gpu_s for i, t in self.jobs.items()}

    def ages_s(self, now_s: float) -> dict[int, float]:
        """Return each job's age: seconds since its first submission (Slurm's changes at a requeue), less those held or deferred."""
        return {i: max(0.0, now_s - t.lifecycle.submit_s - t.kept_s) for i, t in self.jobs.items()}

    def has_lost_node(self, up: frozenset[str], now_s: float) -> bool:
        """Return whether a job lost a node a moment ago that no epoch has decided about yet. `up`: nodes that can take jobs."""
        return any([t.needs_early_epoch(up, now_s) for t in self.jobs.values()])

    def decidable_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot that `decide` should see: what is being carried out counts as done."""
        return with_changes_done(snapshot, decisions_under_way(self.lifecycles))

    def has_reported(self, job_id: int, restarts: int) -> bool:
        """Return whether this incarnation has reported, so that it can be asked for a checkpoint."""
        report = self.jobs[job_id].report if job_id in self.jobs else None
        return report is not None and report.restarts == restarts

    def decidable_job(self, job: Job, now_s: float) -> Job:
        """Return the job as an epoch may decide about it."""
        tracked = self.jobs.get(job.job_id)
        size = self.size_changes.find_answer(job, tracked.report if tracked else None)
        if job.restarts and job.state is JobState.PENDING:
            job = replace(job, shun=tuple(sorted(self.faults.nodes.marked_in_check(job.job_id, now_s))))
        return decidable_job(job, tracked, now_s, self.failed_plans.bans_for(job), size)

    def plans(self) -> dict[int, Plan]:
        """Return the plans of the running jobs by job id: the plan that the job reports, else the one that Synergy gave it."""
        return self._of_jobs(lambda t: t.plan)

    def believed_profiles(self, jobs: Iterable[Job]) -> dict[int, Profile]:
        """Return by job id what is believed of each of `jobs`: what it has reported itself, and what similar jobs have."""
        return believed_profiles(jobs, self.profiles, self.shared_profiles)

    def jobs_to_unblock(self, cluster: Cluster, now_s: float, jobs: Mapping[int, Job] | None = None) -> list[int]:
        """Return the jobs whose decision had to wait for GPUs that are free now. `jobs`: as they are now, if that is known."""
        free = []
        for job_id, tracked in self.jobs.items():
            job = (jobs or {}).get(job_id, tracked.job)
            if tracked.blocked_decision is None or job is None:
                continue
            if tracked.lifecycle.state not in _DECIDABLE:
                tracked.blocked_decision = None
            elif gpus_free(tracked.blocked_decision, Snapshot(now_s, cluster, (job,))):
                free.append(job_id)
        return free

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: ControlEvent, now_s: float) -> list[Output]:
        """Return what follows from an event at `now_s` (seconds since 1970). Total: any event has an answer, and never raises."""
        match event:
            case JobObserved():
                return self._observe_job(event, now_s)
            case QueueRead(here=here):
                self._unseen = {i: t for i, t in self._unseen.items() if i in here}
                return [o for i in list(self.jobs) if i not in here for o in self._tell(i, Observed("GONE"), now_s)]
            case NodesRead(up_nodes=up):
                return self._withdraw_lost_targets(up, now_s)
            case SnapshotTaken():
                return self._take_snapshot(event, now_s)
            case EpochDecided(decisions=decisions):
                slowdowns = find_slowdowns(decisions)
                for job_id, tracked in self.jobs.items():
                    tracked.blocked_decision, tracked.slowdown = None, slowdowns.get(job_id, 1.0)
                return []
            case ReportsReceived():
                return self._take_reports(event, now_s)
            case GpuTimeKnown(job_id=job_id, gpu_s=gpu_s, tells=tells):
                if job_id in self.jobs:
                    self.jobs[job_id].attained_gpu_s, self.jobs[job_id].reports_length = gpu_s, tells
                return []
            case CheckpointTaken():
                return self._count_checkpoint(event.job_id, event.restarts, event.count, now_s)
            case JobDecided():
                return self._take_decision(event, now_s)
            case DecisionUnblocked(job_id=job_id, job=job):
                return self._unblock(self.jobs.get(job_id), job, now_s)
            case BatchReviewed():
                return review_batch(self.jobs.get(event.job_id), event)
            case HealthReviewed():
                return self._review(event.drains, now_s)
            case InstructionAnswered(answer=answer):
                return self._take_answer(answer, now_s)
            case ClockSet(by_s=by_s):
                self.power_ups.set_clock(by_s)
                for unseen in self._unseen.values():
                    set_clock(unseen, by_s)
                self.faults.nodes.set_clock(by_s)
                return [o for t in self.jobs.values() for o in set_clock(t, by_s)]
            case TimePassed(job_id=job_id, cluster=cluster):
                tick = self.jobs[job_id].tick(self._cluster, cluster) if job_id in self.jobs else Tick()
                return self._tell(job_id, tick, now_s)

    def adopt_stored_state(self) -> None:
        """Replace what a daemon that stood by made of the jobs with what the leader wrote.

        The standby's own observations stay.
        """
        for job_id, tracked in self.jobs.items():
            tracked.forget_reports()
            self._unseen[job_id] = tracked
        self.jobs, self.faults = {}, FaultMonitor()

    def restore(
        self,
        lifecycles: Iterable[JobLifecycle],
        profiles: Mapping[int, Profile],
        reports: Mapping[int, tuple[Report, float]],
        now_s: float = math.inf,
    ) -> None:
        """Take over what an earlier controller left.

        Lifecycles go on; profiles and reports (with the time at which they came) wait for their jobs to be seen. A
        last instruction, which may have been carried out, is sent again at once.
        """
        for lifecycle in lifecycles:
            job_id, again = lifecycle.job_id, replace(read_back(lifecycle, now_s, self.times), sent_s=0.0)
            if job_id not in self.jobs:
                self._track(job_id, again)
                self.jobs[job_id].count_earlier_time(now_s)
        for job_id in profiles.keys() | reports.keys():
            tracked = self.jobs.get(job_id) or self._unseen.setdefault(
                job_id, TrackedJob(lifecycle=JobLifecycle(job_id, 0.0))
            )
            tracked.profile = tracked.profile or profiles.get(job_id)
            if tracked.report is None and job_id in reports:
                report, heard_s = reports[job_id]
                tracked.take_report(report, min(heard_s, now_s))

    def _track(self, job_id: int, lifecycle: JobLifecycle) -> None:
        unseen_job = self._unseen.pop(job_id, None)
        self.jobs[job_id] = replace(unseen_job, lifecycle=lifecycle) if unseen_job else TrackedJob(lifecycle=lifecycle)

    # -- one function an event -----------------------------------------------------------------------------------------

    def _observe_job(self, event: JobObserved, now_s: float) -> list[Output]:
        job_id, observed = event.job_id, event.observation
        if job_id not in self.jobs:
            if observed.state == "GONE":
                return []
            # nobody knows whether a job that was restarted before it was seen was requeued just now
            ended_s = now_s if observed.restarts else 0.0
            new = JobLifecycle(job_id, event.submit_s, since_s=now_s, ended_s=ended_s, incarnation=observed.restarts)
            self._track(job_id, replace(new, walltime=event.walltime))
        tracked = self.jobs[job_id]
        tracked.eligible_s, tracked.requeuing, tracked.reason = observed.eligible_s, event.requeuing, observed.reason
        tracked.begin_s = put_off_until_s(
            tracked.lifecycle.written_start, observed.restarts, observed.eligible_s, event.begin_s, now_s
        )
        outputs: list[Output] = []
        if tracked.begin_s is not None and tracked.lifecycle.state in STARTING:
            cause = f"its start was put off for {tracked.begin_s - now_s:.0f} s by its user or an admin"
            outputs += self._tell(job_id, Unwanted(cause), now_s)
        return outputs + self._tell(job_id, observed, now_s)

    def is_start_postponed(self, job_id: int, restarts: int, eligible_s: float | None, now_s: float) -> bool:
        """Return whether the job's user or an admin put off its start since it was observed. Asked just before it is written to."""
        written = self.jobs[job_id].lifecycle.written_start if job_id in self.jobs else None
        return put_off_until_s(written, restarts, eligible_s, None, now_s) is not None

    def _withdraw_lost_targets(self, up: frozenset[str], now_s: float) -> list[Output]:
        outputs = [o for t in self.jobs.values() for o in self.faults.note_lost_nodes(t, up, now_s)]
        for job_id in self.in_transit:
            if self.jobs[job_id].lifecycle.state is ResizeState.RESTARTING:
                continue  # its launchers may follow the order already
            if lost_nodes := self.jobs[job_id].lost_target(up):
                outputs += self._tell(job_id, Unwanted(f"{', '.join(lost_nodes)} can't take jobs now"), now_s)
        return outputs

    def _take_snapshot(self, event: SnapshotTaken, now_s: float) -> list[Output]:
        self._cluster, jobs = event.snapshot.cluster, {job.job_id: job for job in event.snapshot.jobs}
        self.restart_budgets.cluster = self._cluster
        for job_id, tracked in self.jobs.items():
            tracked.job = jobs.get(job_id)
            count_held_back_time(tracked, event.passed_s, now_s)
            if tracked.job is not None and tracked.job.state is JobState.RUNNING:
                tracked.attained_gpu_s += tracked.job.shape.gpus * (max(0.0, event.passed_s) + tracked.before_s)
                tracked.before_s = 0.0
                tracked.last_running_job = tracked.job
        outputs = [
            o for t in self.jobs.values() for o in (*t.record_slurm_name(), *t.forget_refusals(self._cluster, now_s))
        ]
        tracked_jobs = self.jobs if self.live else {}
        losses = {i: loss for i, t in tracked_jobs.items() if (loss := loss_event(t, self._cluster, now_s)) is not None}
        outputs += [o for job_id, loss in losses.items() for o in self._tell(job_id, loss, now_s)]
        return [*outputs, *self.faults.look(self._cluster.nodes, now_s)]

    def _take_reports(self, event: ReportsReceived, now_s: float) -> list[Output]:
        latest = event.reports[-1] if event.reports else None
        tracked = self.jobs.get(latest.job_id) if latest else None
        if latest is None or tracked is None:
            return []  # it has left, or is not known yet: its next report comes soon
        if latest.restarts != max(tracked.lifecycle.incarnation, event.shown_restarts):
            return []  # it is about an incarnation that has ended, or that Slurm has not shown yet
        begun = restart_event(latest)
        outputs: list[Output] = [*hear_launcher(tracked, latest), *self.faults.take_fault(tracked, latest, now_s)]
        checks = [check for r in event.reports if r.restarts == latest.restarts for check in r.node_checks]
        outputs += self.faults.take_checks(tracked, checks, now_s)
        latest = replace(latest, node_checks=())  # the nodes' records have them
        if (joined := join_event(latest)) is not None:
            outputs += self._tell(latest.job_id, joined, now_s)
        note_lost_nodes(tracked, latest, now_s)
        if latest.silent:
            tracked.take_idle(latest, now_s)
            moved = [] if begun is None else self._tell(latest.job_id, begun, now_s)
            outputs += [*moved, *(clear_speed_of_last_report(tracked, now_s) if moved else [])]
            return outputs + self._follow_checkpoint(tracked, latest, now_s)
        before, heard_s = tracked.report, tracked.heard_s
        tracked.take_report(latest, now_s)
        outputs += tell_crash(tracked, before)
        sizes = self.size_changes
        learnt_profiles, unlearnt = (
            learn_safely(tracked, event, self.shared_profiles, sizes) if self.learns else ({}, [])
        )
        outputs += unlearnt
        if begun is not None:
            outputs += self._tell(latest.job_id, begun, now_s)
        follows = follow_up(tracked, event, self.failed_plans)
        costs, restarted = self.restart_budgets.measure(tracked, latest, now_s)
        outputs += [
            KeepReport(latest, now_s, {**learnt_profiles, **follows.profiles, **costs}),
            *follows.outputs,
            *restarted,
        ]
        outputs += self.faults.take_report(tracked, before, heard_s, now_s)
        if follows.event is not None:
            outputs += self._tell(latest.job_id, follows.event, now_s)
        if (given_up := target_loss_event(tracked, latest)) is not None:
            outputs += self._tell(latest.job_id, given_up, now_s)
        return outputs + self._follow_checkpoint(tracked, latest, now_s)

    def _follow_checkpoint(self, tracked: TrackedJob, latest: Report, now_s: float) -> list[Output]:
        return [o for event in checkpoint_events(tracked, latest) for o in self._tell(latest.job_id, event, now_s)]

    def _count_checkpoint(self, job_id: int, restarts: int, count: int, now_s: float) -> list[Output]:
        if job_id in self.jobs:
            self.jobs[job_id].count_checkpoints(restarts, count)
        return self._tell(job_id, Acknowledged(restarts, count), now_s)

    def _take_decision(self, event: JobDecided, now_s: float) -> list[Output]:
        decision = event.decision
        tracked = self.jobs.get(decision.job_id)
        job = tracked.job if tracked else None
        if tracked is None or job is None or (tracked.is_training_over and job.state is JobState.RUNNING):
            return []
        if tracked.lifecycle.stopping and (job.paused or keeps_allocation(decision, job)):
            why = "it is paused" if job.paused else "nobody needs its GPUs any more"
            return self._tell(job.job_id, Unwanted(why), now_s)
        if job.directive is None or job.held or job.paused or decision.action is Action.KEEP:
            return []
        if decision.action is Action.WAIT and job.state is JobState.RUNNING:
            cause = f"{format_size(job.shape, tracked.lifecycle.plan)} go to others"
            return self._tell(job.job_id, Preempted(cause, tracked.checkpoints_taken), now_s)
        if decision.action is Action.WAIT:
            return park_if_waiting(tracked, job, now_s, self.times.park_s, self.epoch_s) if event.schedulable else []
        if decision.cell is None or tracked.lifecycle.state not in _DECIDABLE:
            return []
        if self.live and has_nodes_to_return(tracked):
            return []
        if gpus_free(decision, Snapshot(now_s, self._cluster, (job,))):
            return self._tell(job.job_id, resize_request(tracked, decision, job, self._cluster, live=self.live), now_s)
        tracked.blocked_decision = decision
        waits = park_if_waiting(tracked, job, now_s, self.times.park_s, self.epoch_s)
        return [*waits, *find_power_ups(decision, self._cluster)]

    def _unblock(self, tracked: TrackedJob | None, job: Job | None, now_s: float) -> list[Output]:
        if tracked is None:
            return []
        decision, tracked.blocked_decision = tracked.blocked_decision, None
        if decision is None or job is None or (self.live and has_nodes_to_return(tracked)):
            return []
        return self._tell(job.job_id, resize_request(tracked, decision, job, self._cluster, live=self.live), now_s)

    def _take_answer(self, answer: CarriedOut | Refused, now_s: float) -> list[Output]:
        tracked = self.jobs.get(job_id := answer.instruction.job_id)
        if isinstance(answer.instruction, Wake):
            return self.power_ups.note_answer(answer.instruction, answer, tracked, now_s)
        if tracked is not None and isinstance(answer, CarriedOut) and isinstance(answer.instruction, Park):
            tracked.parked_incarnation = tracked.job.restarts if tracked.job else None
        if tracked is not None and isinstance(answer, Refused) and isinstance(answer.instruction, AskCheckpoint):
            tracked.final_checkpoint = (0, 0.0)
        return self._tell(job_id, answer, now_s)

    def _review(self, drains: bool, now_s: float) -> list[Output]:
        outputs, together = list[Output](), is_stall_common(self.jobs.values())
        for job_id, tracked in self.jobs.items():
            outputs += review_health(tracked, now_s)
            time_outputs = review_time(tracked, now_s, self.restart_budgets.lead_s(tracked))
            for one in (*time_outputs, *self.faults.review(tracked, now_s, self.times, together=together)):
                outputs += self._tell(job_id, one, now_s) if isinstance(one, Wanted | Hung) else [one]
        return outputs + self.faults.drains(now_s, drains)

    # -- moves ---------------------------------------------------------------------------------------------------------

    def _tell(self, job_id: int, event: ResizeEvent, now_s: float) -> list[Output]:
        """Tell the state machine of the job's resize of `event`, and return what follows."""
        if (tracked := self.jobs.get(job_id)) is None:
            return []
        before, name = tracked.lifecycle, type(event).__name__
        step = advance(before, event, now_s, self.times, tracked.report)
        tracked.lifecycle = step.life
        instruction_names = tuple(type(i).__name__ for i in step.instructions)
        changed = step.life != before or step.story
        if changed or instruction_names:
            self.log.append(StoryEntry(now_s, job_id, name, before.state, step.life.state, instruction_names))
        outputs = [Remember(step.life, before.state, name, step.story)] if changed else []
        learnt_profiles = (
            self._forget(tracked) if step.life.state is GONE else self.failed_plans.ban_unresizable(tracked, before)
        )
        return [*outputs, *([KeepReport(None, now_s, learnt_profiles)] if learnt_profiles else []), *step.instructions]

    def _forget(self, tracked: TrackedJob) -> dict[str, Profile]:
        """Forget a job that has left the queue, but not what it has taught.

        Return the parts of it that are to be stored.
        """
        job_id, learnt_profiles, gpu_s = tracked.lifecycle.job_id, {}, tracked.attained_gpu_s
        if tracked.job is not None:
            self.durations.add(gpu_s, tracked.job.asked.gpus)
        if (job := tracked.job or tracked.last_running_job) is not None:
            learnt_profiles = self.size_changes.note_end(job, tracked.report, gpu_s / max(1, job.shape.gpus))
            learnt_profiles |= self.lengths.record_end(job, gpu_s) if tracked.reports_length is False else {}
        self.shared_profiles.forget(job_id)
        self.failed_plans.forget(job_id)
        self.restart_budgets.forget(job_id)
        del self.jobs[job_id]
        return learnt_profiles

    def _of_jobs(self, value: Callable[[TrackedJob], _Value | None]) -> dict[int, _Value]:
        """Return `value` by job id, for the jobs that have one."""
        return {i: v for i, t in self.jobs.items() if (v := value(t)) is not None}

    # -- for tests and for a developer who looks -----------------------------------------------------------------------

    def validate(self) -> str:
        """Return the first violated invariant, or "" if there is none. Tests call it after every event."""
        for job_id, tracked in self.jobs.items():
            if tracked.lifecycle.job_id != job_id:
                return f"job {tracked.lifecycle.job_id} is kept under {job_id}"
            if problem := tracked.validate():
                return f"job {job_id}: {problem}"
        return ""

    def story(self, job_id: int | None = None) -> list[StoryEntry]:
        """Return what happened lately to all jobs or to one: the newest HISTORY events that changed something."""
        return [entry for entry in self.log if job_id in (None, entry.job_id)]
