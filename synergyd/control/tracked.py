"""The controller's memory of one job, and its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from synergy_core.accepts import NOTHING_MORE
from synergy_core.exchange import EXACT, parse_exchange
from synergy_core.job_report import Fault, Report
from synergy_core.loss_trend import NO_LOSSES, LossTrend
from synergy_core.records import CALLED, NAMED, Cluster, Decision, Job, JobState, Node, Plan, Profile

from synergyd.control.resize.events import Tick
from synergyd.control.resize.instructions import Instruction, Target
from synergyd.control.resize.launch_failure import after_loss
from synergyd.control.resize.lifecycle import (
    IN_TRANSIT,
    STARTING,
    JobLifecycle,
    ResizeState,
    validate,
)
from synergyd.control.resize.start_refusal import current_refusals, has_room, is_unseen, is_waiting_its_turn
from synergyd.control.resize.start_time import after_writing
from synergyd.control.state.credibility import LengthClaim, follow_claim
from synergyd.control.state.launchers import NO_LAUNCHERS, Launchers
from synergyd.control.state.node_health import DrainNode, RememberNodes


@dataclass(frozen=True)
class Remember:
    """An order to keep the job's lifecycle, and these lines of its story that `event` caused, before what follows is done."""

    lifecycle: JobLifecycle
    was: ResizeState
    event: str
    story: tuple[str, ...] = ()


@dataclass(frozen=True)
class TellBatch:
    """An order to tell incarnation `restarts` of the job, in the answer to its next report, to go on with `plan`'s batch."""

    job_id: int
    restarts: int
    plan: Plan


@dataclass(frozen=True)
class ParkAgain:
    """An order to put off the start of a job that was parked before: many of them go into one call."""

    job_id: int
    park_s: float


@dataclass(frozen=True)
class KeepReport:
    """An order to keep the job's latest report (None: it has left), which came at `heard_s`, and what was learnt by store key."""

    report: Report | None
    heard_s: float
    profiles: Mapping[str, Profile]


Output = Remember | KeepReport | Instruction | TellBatch | ParkAgain | RememberNodes | DrainNode


# Slurm requeues a job of a node that is down at once, and a start takes a few seconds.
HURRY_S = 30.0


@dataclass(kw_only=True)
class TrackedJob:
    """The memory of one job. A pair (restarts, what) is of that incarnation alone."""

    lifecycle: JobLifecycle
    #: as the latest snapshot had it; None before the first
    job: Job | None = None
    #: why it is pending, as Slurm said last
    reason: str = ""
    #: nodes that it was refused, as they were then
    refusing_nodes: dict[str, Node] = field(default_factory=dict)
    #: when a pending job may start by itself, as Slurm said last
    eligible_s: float | None = None
    #: until when its user or an admin has put off its start
    begin_s: float | None = None
    #: it is on its way back into the queue, where Slurm takes no update
    requeuing: bool = False
    #: the latest, and when it came
    report: Report | None = None
    heard_s: float = 0.0
    #: its claim of what is left to do, against its own steps
    claim: LengthClaim | None = None
    #: the profile learnt from its reports
    profile: Profile | None = None
    #: its loss, before and after its latest change to a larger batch
    losses: LossTrend = NO_LOSSES
    #: its loss, before and after its replicas began to exchange less
    exchange_losses: LossTrend = NO_LOSSES
    #: since when its run has been without a node that its launchers have lost, by name
    lost_since_s: dict[str, float] = field(default_factory=dict)
    #: (restarts, checkpoints that were asked for and are complete)
    checkpoints: tuple[int, int] = (0, 0)
    #: the launchers of the present incarnation, as they have reported themselves
    launchers: Launchers = NO_LAUNCHERS
    #: since this controller looks
    attained_gpu_s: float = 0.0
    #: since it first ran, of a job that was there before this controller: on as many GPUs as when it is first seen to run
    before_s: float = 0.0
    #: seconds in which it might not start: held, put off, or waiting for another job
    kept_s: float = 0.0
    #: a snapshot has shown it to this daemon
    is_seen: bool = False
    #: its reports tell how much is left to do; None: there is none so far
    reports_length: bool | None = None
    #: slowdown by neighbours on shared links, as the latest decisions have it
    slowdown: float = 1.0
    #: the latest epoch's decision, while others still hold its GPUs
    blocked_decision: Decision | None = None
    #: (restarts, the plan that it was told to go on with)
    announced_plan: tuple[int, Plan] | None = None
    #: (restarts, kinds of warnings that are in its story)
    warning_kinds: tuple[int, frozenset[str]] = (0, frozenset())
    #: (restarts, when the checkpoint before its end was due that it was asked for)
    final_checkpoint: tuple[int, float] = (0, 0.0)
    #: the incarnation that was kept from starting, with its own size stamped
    parked_incarnation: int | None = None
    #: (restarts, failed runs of that incarnation, step) of the present run's first report
    first_report: tuple[int, int, int] | None = None
    #: all plans that it could have have failed for its program, as the last epoch found
    out_of_plans: bool = False
    #: since when it runs on fewer GPUs than it holds, after the loss of a node; None: it does not
    short_since_s: float | None = None
    #: the incarnation whose story says that its reports can't be learnt from
    unlearnt: int | None = None
    #: (restarts, seconds for which it had done nothing, when its launcher said so)
    idle: tuple[int, float, float] | None = None
    #: the least that it could have, where idle jobs are shrunk
    smallest: Target | None = None
    #: why it keeps its size whatever happens, "" if it may change it
    form: str = ""
    #: it keeps its size for want of an agent's word alone
    at_asked_size: bool = False
    #: (restarts, what its story says of it last: it hung, or does nothing)
    last_warning: tuple[int, str] = (0, "")
    #: (restarts, what ended a run of it last, in its story)
    last_fault: tuple[int, Fault] | None = None
    #: as it was seen running last, with all its nodes
    last_running_job: Job | None = None
    #: the same, and the nodes that it has lost since, where Slurm has requeued it for that
    node_loss: tuple[Job, tuple[str, ...]] | None = None
    #: (restarts, since when epochs come early since it has lost a node)
    early_epochs: tuple[int, float] = (-1, 0.0)
    #: when it was last seen suspended; 0: never
    suspended_s: float = 0.0

    def count_earlier_time(self, now_s: float) -> None:
        """Count the time since its first start, if it was read from a store.

        Time that this daemon has seen itself is counted already.
        """
        first_s = self.lifecycle.restart_history.first_s
        self.before_s = max(0.0, now_s - first_s) if first_s and not self.attained_gpu_s else 0.0

    def validate(self) -> str:
        """Return the first violated invariant of this job, or "" if there is none."""
        state, job_id = self.lifecycle.state, self.lifecycle.job_id
        if problem := validate(self.lifecycle):
            return problem
        if state is ResizeState.GONE:
            return "gone, and still tracked"
        if self.blocked_decision is not None and state in IN_TRANSIT:
            return "waits for GPUs and is being resized"
        others = [r for r in (self.blocked_decision, self.job, self.report) if r is not None and r.job_id != job_id]
        if others:
            return f"has a {type(others[0]).__name__} of job {others[0].job_id}"
        if self.slowdown < 1.0 or self.attained_gpu_s < 0.0 or self.checkpoints[1] < 0:
            return "has a slowdown, GPU time or count below the least there can be"
        return ""

    def take_report(self, report: Report, heard_s: float) -> None:
        self.take_idle(report, heard_s)
        low = self.job.batch_range if self.job is not None else None
        self.claim = follow_claim(self.claim, report, low[0] if low else None, heard_s)
        if report.step > 0:  # before its first step a program that tells its length has not told it yet
            self.reports_length = bool(self.reports_length) or (report.done is not None and report.total is not None)
        self.report, self.heard_s = report, heard_s
        self.launchers = self.launchers.with_report(report)
        self.count_checkpoints(report.restarts, self.launchers.most_checkpoints_taken)

    def forget_reports(self) -> None:
        self.report, self.profile, self.heard_s = None, None, 0.0
        self.checkpoints, self.launchers = (0, 0), NO_LAUNCHERS

    def take_idle(self, report: Report, heard_s: float) -> None:
        self.idle = None if report.idle_s is None else (report.restarts, report.idle_s, heard_s)

    def count_checkpoints(self, restarts: int, count: int) -> None:
        # a second launcher in one script counts from 0 again
        self.checkpoints = (restarts, count)

    @property
    def plan(self) -> Plan | None:
        """Return the plan that the job runs with: the one that it reports, else the one that Synergy gave it.

        Its exchange is the one that it was given, unless it can't have it: a run warms up with the exact one, and a
        script may have its own.
        """
        report, job, planned = self.report, self.job, self.lifecycle.plan
        if report is None or report.plan is None or job is None or report.restarts != job.restarts:
            return planned
        how = EXACT if planned is None else parse_exchange(planned.exchange, "plan")
        accepts = self.profile.accepts if self.profile is not None else NOTHING_MORE
        if accepts.exact_only or how.way in accepts.refuses.split("+"):
            how = EXACT
        return report.plan if report.plan.exchange == str(how) else replace(report.plan, exchange=str(how))

    @property
    def waits_for_nodes(self) -> bool:
        """Return whether Slurm has looked at the job, which was released onto named nodes, and has not started it."""
        target, reason = self.lifecycle.target, self.reason
        released = self.lifecycle.state is ResizeState.RELEASED and target is not None and bool(target.nodes)
        return released and is_waiting_its_turn(reason) and not is_unseen(reason)

    def tick(self, cluster: Cluster, now: Cluster | None = None) -> Tick:
        """Return the event that time has passed, with what a released job's start is judged by.

        `now`: the nodes as they are just now, if they were read; `cluster`: as the last epoch read them.
        """
        target = self.lifecycle.target
        if target is None or self.job is None or self.lifecycle.state is not ResizeState.RELEASED:
            return Tick()
        contested = False
        if now is not None and self.waits_for_nodes and not has_room(target, now, self.job):
            lost_nodes = self.lost_target(frozenset(n.name for n in now.nodes if n.up))  # the next epoch decides anew
            contested = not lost_nodes and has_room(replace(target, nodes=()), now, self.job)
        return Tick(has_room(target, now or cluster, self.job), self.reason, contested)

    def lost_target(self, up: frozenset[str]) -> list[str]:
        """Return the target nodes that Slurm would not start the job on: not up, or reserved since."""
        life = self.lifecycle
        barred = self.job.barred if self.job is not None and life.state in STARTING else ()
        return sorted({n for n in life.target.nodes if n not in up or n in barred} if life.target else ())

    def lose_nodes(self, up: frozenset[str], now_s: float) -> list[Output]:
        """Remember nodes that Slurm took the job off just now, and that can't take jobs: they are not taken again for a while."""
        life = self.lifecycle
        # its own requeues, and nodes that only do not answer for a moment (slurmctld starts again), are no loss
        if self.job is None or self.last_running_job is None or life.state is not ResizeState.QUEUED:
            return []
        if (
            self.job.state not in (JobState.RUNNING, JobState.COMPLETING)
            or self.last_running_job.restarts != self.job.restarts
        ):
            return []
        names = frozenset(self.last_running_job.node_names) - up
        self.node_loss = (self.last_running_job, tuple(sorted(names))) if names else None
        failures = after_loss(life.failures, names, now_s)
        if failures == life.failures:
            return []
        self.lifecycle = replace(life, failures=failures)
        return [Remember(self.lifecycle, life.state, "NodesLost")]

    def needs_early_epoch(self, up: frozenset[str], now_s: float) -> bool:
        """Return whether the job stands on a node that can't take jobs any more, or waits since then.

        This holds for HURRY_S, since a node may be only drained. `up`: the nodes that can.
        """
        job = self.last_running_job
        if job is None or self.job is None or self.job.restarts - job.restarts not in (0, 1):
            return False
        waits = self.job.state is not JobState.RUNNING and self.lifecycle.state is ResizeState.QUEUED
        if up.issuperset(job.node_names) or not (waits or self.job.state is JobState.RUNNING):
            return False
        if self.early_epochs[0] != job.restarts:
            self.early_epochs = job.restarts, now_s
        return now_s - self.early_epochs[1] < HURRY_S

    def note_postponed_start(self, start_s: float) -> Remember:
        """Remember that Synergy is about to write the start time `start_s`: no user has set it."""
        life = self.lifecycle
        restarts = life.incarnation if self.job is None else self.job.restarts
        self.lifecycle = replace(life, written_start=after_writing(life.written_start, restarts, start_s))
        return Remember(self.lifecycle, life.state, "Park")

    def record_slurm_name(self) -> list[Output]:
        """Put what Slurm calls the job into its story if that is not its id: people ask by it.

        A record of several tasks is left out: its name changes with each that leaves it.
        """
        life, name = self.lifecycle, self.job.slurm_name if self.job else ""
        if name == life.slurm_name or not name or "[" in name:
            return []
        self.lifecycle = replace(life, slurm_name=name)
        return [Remember(self.lifecycle, life.state, NAMED, (CALLED.format(name),))]

    def forget_refusals(self, cluster: Cluster, now_s: float) -> list[Output]:
        """Forget refusals that no longer hold, in the light of what the nodes are now."""
        life = self.lifecycle
        if not life.refusals:
            return []
        refusals = current_refusals(life.refusals, life.refused_starts, self.refusing_nodes, cluster, now_s)
        names = {name for refusal in refusals for name in refusal.nodes}
        self.refusing_nodes = {n: self.refusing_nodes.get(n, cluster.by_name[n]) for n in names if n in cluster.by_name}
        if refusals == life.refusals:
            return []
        self.lifecycle = replace(life, refusals=refusals)
        return [Remember(self.lifecycle, life.state, "RefusalsForgotten")]

    @property
    def keeps_size(self) -> bool:
        """Return whether the job's reports say that its checkpoints load only on as many GPUs as have saved them."""
        return self.profile is not None and self.profile.accepts.own_size

    @property
    def is_training_over(self) -> bool:
        """Return whether the present incarnation's launchers have all said that their run is over: nobody is there to be asked."""
        return self.launchers.restarts == self.lifecycle.incarnation and self.launchers.have_ended

    @property
    def checkpoint_request(self) -> int:
        """Return the number of the checkpoint request that is awaited, or of the next one; launchers count over the incarnation."""
        life = self.lifecycle
        return 1 + (life.acks_at_request if life.state is ResizeState.CHECKPOINTING else self.checkpoints_taken)

    @property
    def checkpoints_taken(self) -> int:
        """Return how many checkpoints this incarnation was asked for and has completed."""
        return self.checkpoints[1] if self.checkpoints[0] == self.lifecycle.incarnation else 0

    def without_contention(self, report: Report) -> Report:
        """Return the report without what neighbours on shared links cost, by the latest decisions: that is theirs, not the plan's."""
        return report if report.step_s is None else replace(report, step_s=report.step_s / self.slowdown)


@dataclass(frozen=True)
class StoryEntry:
    """A line of the controller's own story: the effect of an event on a job."""

    at_s: float
    job_id: int
    event: str
    was: ResizeState
    state: ResizeState
    instructions: tuple[str, ...]
