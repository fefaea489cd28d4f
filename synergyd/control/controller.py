"""All that Synergy keeps of its jobs between two looks at the cluster, as one pure class: events in, instructions out.

    QueueRead, JobObserved, NodesRead ──┐                        ┌── Instruction (to Slurm) ── answered by Answered
    Reported, CheckpointTaken ──────────┤── Controller.handle ──├── Remember (to the store, before what follows it)
    SnapshotTaken, Decided, Ticked ─────┘   one Tracked a job    └── TellBatch, ParkAgain

The daemon's loop and the simulator's director are shells over it: they ask `decide` for decisions, hand events in, and carry out what
comes back, each output in its order. No clock, no I/O: every event comes with its time. `validate` says what may never be.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from synergyd.control.checkpoint_request import after_hearing, hear_launcher
from synergyd.control.clock_set import read_back, set_clock
from synergyd.control.decidable import as_decided_about
from synergyd.control.failed_plans import FailedPlans, follow_up
from synergyd.control.in_place import begins_unheard, restarted, tell_crash
from synergyd.control.in_transit import arrived, stays, under_way
from synergyd.control.job_restarts import Restarts
from synergyd.control.known.believed import believed
from synergyd.control.known.job_durations import JobDurations
from synergyd.control.known.progress import progress_of, with_likely
from synergyd.control.known.size_changes import SizeChanges
from synergyd.control.learnt import learn_safely
from synergyd.control.power_up import PowerUps, wakes
from synergyd.control.resize.events import (
    Acknowledged,
    Answered,
    BatchReviewed,
    CarriedOut,
    CheckpointTaken,
    ClockSet,
    ControlEvent,
    Decided,
    EpochDecided,
    GpuTimeKnown,
    HealthReviewed,
    Hung,
    JobObserved,
    NodesRead,
    Observed,
    Preempted,
    QueueRead,
    Refused,
    Reported,
    ResizeEvent,
    SnapshotTaken,
    Tick,
    Ticked,
    Unblocked,
    Unwanted,
    Wanted,
)
from synergyd.control.resize.gpus_free import gpus_free
from synergyd.control.resize.instructions import AskCheckpoint, Park, Wake
from synergyd.control.resize.lifecycle import IN_TRANSIT, LEAVING, STARTING, JobLifecycle, ResizeState, ResizeTimes
from synergyd.control.resize.restart_account import followed
from synergyd.control.resize.start_time import put_off_until_s
from synergyd.control.resize.starts import advance
from synergyd.control.reviews import review_batch, review_health, review_time
from synergyd.control.tracked import Entry, Learnt, Output, Remember, Tracked
from synergyd.control.waiting import count_kept, keep_waiting
from synergyd.control.wanting import wanted
from synergyd.control.watch import Watch, stall_together
from synergyd.job_report import Report
from synergyd.links.sharing import slowdowns_of
from synergyd.records import Action, Cluster, Job, JobState, Plan, Profile, Snapshot
from synergyd.scheduler.problem.records import Progress
from synergyd.task.likely_lengths import LearntLengths
from synergyd.task.shared_profiles import SharedProfiles
from synergyd.words import size_words

HISTORY = 10_000  # lines of `story`, of all jobs together
_DECIDABLE = (ResizeState.QUEUED, ResizeState.RUNNING)
_Value = TypeVar("_Value")


@dataclass
class Controller:
    """`epoch_s`: seconds between two epochs. `learns`: reports teach profiles (an oracle's jobs have nothing to teach)."""

    times: ResizeTimes
    epoch_s: float
    learns: bool = True
    jobs: dict[int, Tracked] = field(default_factory=dict)
    durations: JobDurations = field(default_factory=JobDurations)
    lengths: LearntLengths = field(default_factory=LearntLengths)
    shared_profiles: SharedProfiles = field(default_factory=SharedProfiles)
    failed_plans: FailedPlans = field(default_factory=FailedPlans)
    size_changes: SizeChanges = field(default_factory=SizeChanges)
    power_ups: PowerUps = field(default_factory=PowerUps)
    watch: Watch = field(default_factory=Watch)
    log: deque[Entry] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _unseen: dict[int, Tracked] = field(default_factory=dict)  # read back from a store, not in the queue so far
    _cluster: Cluster = field(default_factory=lambda: Cluster(()))

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.times, self.epoch_s)

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
        """By job id: how far each has come, by its reports as far as its own steps do not refute them."""
        jobs = tuple(jobs)
        refuted = frozenset(i for i, t in self.jobs.items() if t.claim is not None and t.claim.refuted)
        return with_likely(progress_of(jobs, self.reports, self.attained_gpu_s, refuted), jobs, self.lengths)

    @property
    def in_transit(self) -> list[int]:
        """Jobs that are being resized or started."""
        return [i for i, t in self.jobs.items() if t.lifecycle.state in IN_TRANSIT]

    @property
    def leaving(self) -> set[int]:
        """Jobs that still hold GPUs which they are to give back."""
        return {i for i, t in self.jobs.items() if t.lifecycle.state in LEAVING}

    @property
    def attained_gpu_s(self) -> dict[int, float]:
        return {i: t.attained_gpu_s for i, t in self.jobs.items()}

    def ages_s(self, now_s: float) -> dict[int, float]:
        """Seconds since each job's first sbatch (Slurm resets SubmitTime at each requeue), but for those in which it might not start."""
        return {i: max(0.0, now_s - t.lifecycle.submit_s - t.kept_s) for i, t in self.jobs.items()}

    def lost_nodes(self, up: frozenset[str], now_s: float) -> bool:
        """Has a job lost a node a moment ago, that no epoch has decided about yet? `up`: nodes that can take jobs."""
        return any([t.hurries(up, now_s) for t in self.jobs.values()])

    def deciding(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot that `decide` should see: what is being carried out counts as done."""
        return arrived(snapshot, under_way(self.lifecycles))

    def reported(self, job_id: int, restarts: int) -> bool:
        """Has this incarnation reported, so that it can be asked for a checkpoint?"""
        report = self.jobs[job_id].report if job_id in self.jobs else None
        return report is not None and report.restarts == restarts

    def as_decided_about(self, job: Job, now_s: float) -> Job:
        """Return the job as an epoch may decide about it."""
        tracked = self.jobs.get(job.job_id)
        size = self.size_changes.of(job, tracked.report if tracked else None)
        return as_decided_about(job, tracked, now_s, self.failed_plans.of(job), size)

    def plans(self) -> dict[int, Plan]:
        """Plans of running jobs: the one that the job reports, else the one that Synergy gave it."""
        return self._of_jobs(lambda t: t.plan)

    def believed(self, jobs: Iterable[Job]) -> dict[int, Profile]:
        """What is believed of each job: what it has reported, and what others have that are like it."""
        return believed(jobs, self.profiles, self.shared_profiles)

    def unblockable(self, cluster: Cluster, now_s: float, jobs: Mapping[int, Job] | None = None) -> list[int]:
        """Jobs whose decision had to wait for GPUs that are free now. `jobs`: as they are now, where that is known."""
        free = []
        for job_id, tracked in self.jobs.items():
            job = (jobs or {}).get(job_id, tracked.job)
            if tracked.blocked is None or job is None:
                continue
            if tracked.lifecycle.state not in _DECIDABLE:
                tracked.blocked = None
            elif gpus_free(tracked.blocked, Snapshot(now_s, cluster, (job,))):
                free.append(job_id)
        return free

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: ControlEvent, now_s: float) -> list[Output]:
        """One event at `now_s` (seconds since 1970). Total: any event at any time has an answer, and never raises."""
        match event:
            case JobObserved():
                return self._observed(event, now_s)
            case QueueRead(here=here):
                self._unseen = {i: t for i, t in self._unseen.items() if i in here}
                return [o for i in list(self.jobs) if i not in here for o in self._advance(i, Observed("GONE"), now_s)]
            case NodesRead(up=up):
                return self._give_up_lost(up, now_s)
            case SnapshotTaken():
                return self._take_snapshot(event, now_s)
            case EpochDecided(decisions=decisions):
                slowdowns = slowdowns_of(decisions)
                for job_id, tracked in self.jobs.items():
                    tracked.blocked, tracked.slowdown = None, slowdowns.get(job_id, 1.0)
                return []
            case Reported():
                return self._reported(event, now_s)
            case GpuTimeKnown(job_id=job_id, gpu_s=gpu_s, tells=tells):
                if job_id in self.jobs:
                    self.jobs[job_id].attained_gpu_s, self.jobs[job_id].tells = gpu_s, tells
                return []
            case CheckpointTaken():
                return self._checkpoint_taken(event.job_id, event.restarts, event.count, now_s)
            case Decided():
                return self._decided(event, now_s)
            case Unblocked(job_id=job_id, job=job):
                return self._unblocked(self.jobs.get(job_id), job, now_s)
            case BatchReviewed():
                return review_batch(self.jobs.get(event.job_id), event)
            case HealthReviewed():
                return self._review(event.drains, now_s)
            case Answered(answer=answer):
                return self._answered(answer, now_s)
            case ClockSet(by_s=by_s):
                self.power_ups.set_clock(by_s)
                for unseen in self._unseen.values():
                    set_clock(unseen, by_s)
                self.watch.nodes.set_clock(by_s)
                return [o for t in self.jobs.values() for o in set_clock(t, by_s)]
            case Ticked(job_id=job_id, cluster=cluster):
                tick = self.jobs[job_id].tick(self._cluster, cluster) if job_id in self.jobs else Tick()
                return self._advance(job_id, tick, now_s)

    def taken_over(self) -> None:
        """Forget what a daemon that stood by made of the jobs, for what the leader wrote; what it saw of them itself stays."""
        for job_id, tracked in self.jobs.items():
            tracked.forget_reports()
            self._unseen[job_id] = tracked
        self.jobs, self.watch = {}, Watch()

    def restore(
        self,
        lifecycles: Iterable[JobLifecycle],
        profiles: Mapping[int, Profile],
        reports: Mapping[int, tuple[Report, float]],
        now_s: float = math.inf,
    ) -> None:
        """Take over what a controller before this one left: lifecycles go on; profiles and reports (with the time at which they
        came) wait for their jobs to be seen. A last instruction, which may have been carried out, is sent again at once."""
        for lifecycle in lifecycles:
            job_id, again = lifecycle.job_id, replace(read_back(lifecycle, now_s, self.times), sent_s=0.0)
            if job_id not in self.jobs:
                self._track(job_id, again)
                self.jobs[job_id].ran_before(now_s)
        for job_id in profiles.keys() | reports.keys():
            kept = self.jobs.get(job_id) or self._unseen.setdefault(
                job_id, Tracked(lifecycle=JobLifecycle(job_id, 0.0))
            )
            kept.profile = kept.profile or profiles.get(job_id)
            if kept.report is None and job_id in reports:
                report, heard_s = reports[job_id]
                kept.take_report(report, min(heard_s, now_s))

    def _track(self, job_id: int, lifecycle: JobLifecycle) -> None:
        kept = self._unseen.pop(job_id, None)
        self.jobs[job_id] = replace(kept, lifecycle=lifecycle) if kept else Tracked(lifecycle=lifecycle)

    # -- one function an event -----------------------------------------------------------------------------------------

    def _observed(self, event: JobObserved, now_s: float) -> list[Output]:
        job_id, observed = event.job_id, event.observed
        if job_id not in self.jobs:
            if observed.state == "GONE":
                return []
            # whether a job that was restarted before it was seen was requeued just now nobody knows
            ended_s = now_s if observed.restarts else 0.0
            new = JobLifecycle(job_id, event.submit_s, since_s=now_s, ended_s=ended_s, restarts=observed.restarts)
            self._track(job_id, replace(new, walltime=event.walltime))
        tracked = self.jobs[job_id]
        tracked.eligible_s, tracked.requeuing, tracked.reason = observed.eligible_s, event.requeuing, observed.reason
        tracked.begin_s = put_off_until_s(
            tracked.lifecycle.written, observed.restarts, observed.eligible_s, event.begin_s, now_s
        )
        outputs: list[Output] = []
        if tracked.begin_s is not None and tracked.lifecycle.state in STARTING:
            cause = f"its start was put off for {tracked.begin_s - now_s:.0f} s by its user or an admin"
            outputs += self._advance(job_id, Unwanted(cause), now_s)
        return outputs + self._advance(job_id, observed, now_s)

    def put_off(self, job_id: int, restarts: int, eligible_s: float | None, now_s: float) -> bool:
        """Has the job's user or an admin put off its start since it was observed? Asked just before it is written to."""
        written = self.jobs[job_id].lifecycle.written if job_id in self.jobs else None
        return put_off_until_s(written, restarts, eligible_s, None, now_s) is not None

    def _give_up_lost(self, up: frozenset[str], now_s: float) -> list[Output]:
        outputs = [o for t in self.jobs.values() for o in self.watch.lost(t, up, now_s)]
        for job_id in self.in_transit:
            if lost := self.jobs[job_id].lost_target(up):
                outputs += self._advance(job_id, Unwanted(f"{', '.join(lost)} can't take jobs now"), now_s)
        return outputs

    def _take_snapshot(self, event: SnapshotTaken, now_s: float) -> list[Output]:
        self._cluster, jobs = event.snapshot.cluster, {job.job_id: job for job in event.snapshot.jobs}
        for job_id, tracked in self.jobs.items():
            tracked.job = jobs.get(job_id)
            count_kept(tracked, event.passed_s, now_s)
            if tracked.job is not None and tracked.job.state is JobState.RUNNING:
                tracked.attained_gpu_s += tracked.job.shape.gpus * (max(0.0, event.passed_s) + tracked.before_s)
                tracked.before_s = 0.0
                tracked.ran_on = tracked.job
        found = [o for t in self.jobs.values() for o in (*t.named(), *t.forget_refusals(self._cluster, now_s))]
        return [*found, *self.watch.look(self._cluster.nodes, now_s)]

    def _reported(self, event: Reported, now_s: float) -> list[Output]:
        latest = event.reports[-1] if event.reports else None
        tracked = self.jobs.get(latest.job_id) if latest else None
        if latest is None or tracked is None:
            return []  # it has left, or is not known yet: its next report comes soon
        if latest.restarts != max(tracked.lifecycle.restarts, event.shown_restarts):
            return []  # of an incarnation that has ended, or that Slurm has not shown yet
        begun = restarted(latest)
        outputs: list[Output] = [*hear_launcher(tracked, latest)]
        if latest.silent:
            tracked.take_idle(latest, now_s)
            moved = [] if begun is None else self._advance(latest.job_id, begun, now_s)
            outputs += [*moved, *(begins_unheard(tracked, now_s) if moved else [])]
            return outputs + self._heard(tracked, latest, now_s)
        before, heard_s = tracked.report, tracked.heard_s
        tracked.take_report(latest, now_s)
        outputs += tell_crash(tracked, before)
        sizes = self.size_changes
        learnt, unlearnt = learn_safely(tracked, event, self.shared_profiles, sizes) if self.learns else ({}, [])
        outputs += unlearnt
        if begun is not None:
            outputs += self._advance(latest.job_id, begun, now_s)
        follows = follow_up(tracked, event, self.failed_plans)
        costs, told = self.restarts.measure(tracked, latest, now_s)
        outputs += [Learnt(latest, now_s, {**learnt, **follows.profiles, **costs}), *follows.outputs, *told]
        outputs += self.watch.reported(tracked, before, heard_s, now_s)
        if follows.event is not None:
            outputs += self._advance(latest.job_id, follows.event, now_s)
        return outputs + self._heard(tracked, latest, now_s)

    def _heard(self, tracked: Tracked, latest: Report, now_s: float) -> list[Output]:
        return [o for event in after_hearing(tracked, latest) for o in self._advance(latest.job_id, event, now_s)]

    def _checkpoint_taken(self, job_id: int, restarts: int, count: int, now_s: float) -> list[Output]:
        if job_id in self.jobs:
            self.jobs[job_id].count_checkpoints(restarts, count)
        return self._advance(job_id, Acknowledged(restarts, count), now_s)

    def _decided(self, event: Decided, now_s: float) -> list[Output]:
        decision = event.decision
        tracked = self.jobs.get(decision.job_id)
        job = tracked.job if tracked else None
        if tracked is None or job is None or (tracked.training_over and job.state is JobState.RUNNING):
            return []
        if tracked.lifecycle.stopping and (job.paused or stays(decision, job)):
            why = "it is paused" if job.paused else "nobody needs its GPUs any more"
            return self._advance(job.job_id, Unwanted(why), now_s)
        if job.directive is None or job.held or job.paused or decision.action is Action.KEEP:
            return []
        if decision.action is Action.WAIT and job.state is JobState.RUNNING:
            cause = f"{size_words(job.shape, tracked.lifecycle.plan)} go to others"
            return self._advance(job.job_id, Preempted(cause, tracked.checkpoints_taken), now_s)
        if decision.action is Action.WAIT:
            return keep_waiting(tracked, job, now_s, self.times.park_s, self.epoch_s) if event.schedulable else []
        if decision.cell is None or tracked.lifecycle.state not in _DECIDABLE:
            return []
        if gpus_free(decision, Snapshot(now_s, self._cluster, (job,))):
            return self._advance(job.job_id, wanted(tracked, decision, job, self._cluster), now_s)
        tracked.blocked = decision
        waits = keep_waiting(tracked, job, now_s, self.times.park_s, self.epoch_s)
        return [*waits, *wakes(decision, self._cluster)]

    def _unblocked(self, tracked: Tracked | None, job: Job | None, now_s: float) -> list[Output]:
        if tracked is None or tracked.blocked is None:
            return []
        decision, tracked.blocked = tracked.blocked, None
        return [] if job is None else self._advance(job.job_id, wanted(tracked, decision, job, self._cluster), now_s)

    def _answered(self, answer: CarriedOut | Refused, now_s: float) -> list[Output]:
        tracked = self.jobs.get(job_id := answer.instruction.job_id)
        if isinstance(answer.instruction, Wake):
            return self.power_ups.answered(answer.instruction, answer, tracked, now_s)
        if tracked is not None and isinstance(answer, CarriedOut) and isinstance(answer.instruction, Park):
            tracked.parked = tracked.job.restarts if tracked.job else None
        if tracked is not None and isinstance(answer, Refused) and isinstance(answer.instruction, AskCheckpoint):
            tracked.saved = (0, 0.0)
        return self._advance(job_id, answer, now_s)

    def _review(self, drains: bool, now_s: float) -> list[Output]:
        outputs, together = list[Output](), stall_together(self.jobs.values())
        for job_id, tracked in self.jobs.items():
            outputs += review_health(tracked, now_s)
            found = review_time(tracked, now_s, self.restarts.lead_s(tracked))
            for one in (*found, *self.watch.review(tracked, now_s, self.times, together=together)):
                outputs += self._advance(job_id, one, now_s) if isinstance(one, Wanted | Hung) else [one]
        return outputs + self.watch.drains(now_s, drains)

    # -- moves ---------------------------------------------------------------------------------------------------------

    def _advance(self, job_id: int, event: ResizeEvent, now_s: float) -> list[Output]:
        if (tracked := self.jobs.get(job_id)) is None:
            return []
        before = tracked.lifecycle
        step = advance(before, event, now_s, self.times)
        step = replace(step, life=followed(before, step.life, event, now_s, tracked.report))
        tracked.lifecycle = step.life
        names = tuple(type(i).__name__ for i in step.instructions)
        if step.life != before or step.story or names:
            self.log.append(
                Entry(now_s, job_id, type(event).__name__, before.state.value, step.life.state.value, names)
            )
        changed = step.life != before or step.story
        outputs = [Remember(step.life, before.state, type(event).__name__, step.story)] if changed else []
        gone = step.life.state is ResizeState.GONE
        learnt = self._forget(tracked) if gone else self.failed_plans.after(tracked, before)
        return [*outputs, *([Learnt(None, now_s, learnt)] if learnt else []), *step.instructions]

    def _forget(self, tracked: Tracked) -> dict[str, Profile]:
        """It has left the queue; what it has taught stays. Returns what of it is to be stored."""
        job_id, learnt, gpu_s = tracked.lifecycle.job_id, {}, tracked.attained_gpu_s
        if tracked.job is not None:
            self.durations.ended(gpu_s, tracked.job.asked.gpus)
        if (job := tracked.job or tracked.ran_on) is not None:
            learnt = self.size_changes.ended(job, tracked.report, gpu_s / max(1, job.shape.gpus))
            learnt |= self.lengths.ended(job, gpu_s) if tracked.tells is False else {}
        self.shared_profiles.forget(job_id)
        self.failed_plans.forget(job_id)
        self.restarts.costs.forget(job_id)
        del self.jobs[job_id]
        return learnt

    def _of_jobs(self, value: Callable[[Tracked], _Value | None]) -> dict[int, _Value]:
        """By job id, of the jobs that have one."""
        return {i: v for i, t in self.jobs.items() if (v := value(t)) is not None}

    # -- for tests and for a developer who looks -----------------------------------------------------------------------

    def validate(self) -> str:
        """What may never be, and is; "" where all is well. Tests call it after every event."""
        for job_id, tracked in self.jobs.items():
            if tracked.lifecycle.job_id != job_id:
                return f"job {tracked.lifecycle.job_id} is kept under {job_id}"
            if problem := tracked.validate():
                return f"job {job_id}: {problem}"
        return ""

    def story(self, job_id: int | None = None) -> list[Entry]:
        """What happened lately, to all jobs or to one: the newest HISTORY events that changed something."""
        return [entry for entry in self.log if job_id in (None, entry.job_id)]
