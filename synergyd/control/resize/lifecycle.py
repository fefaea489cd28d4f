"""The memory of a job's resize between events, and the times that bound it. Pure records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from synergy_core.field_marks import renamed_from
from synergy_core.records import Plan

from synergyd.control.resize.hangs import NO_HANGS, Hangs
from synergyd.control.resize.instructions import Instruction, Target
from synergyd.control.resize.launch_failure import NO_FAILURES, LastStart, LaunchFailures
from synergyd.control.resize.moves import NO_MOVES, Moves
from synergyd.control.resize.restart_history import NO_RESTARTS, RestartHistory
from synergyd.control.resize.start_refusal import Refusal, StartAttempt
from synergyd.control.resize.start_time import WrittenStart
from synergyd.control.resize.walltime import UNTIMED, Walltime, validate_walltime
from synergyd.settings import Settings


class ResizeState(StrEnum):
    """The states of a job in its resize."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    JOINING = "JOINING"
    CHECKPOINTING = "CHECKPOINTING"
    REQUEUING = "REQUEUING"
    RESTARTING = "RESTARTING"
    RETURNING = "RETURNING"
    PARKED = "PARKED"
    RESIZED = "RESIZED"
    RELEASED = "RELEASED"
    GONE = "GONE"

    @property
    def stored_value(self) -> str:
        """Return the text in stored lifecycles: for one release the name of 0.2, so that its daemon reads them too."""
        return _NAMES_OF_0_2.get(self.value, self.value)

    @classmethod
    def _missing_(cls, value: object) -> ResizeState | None:
        """Return the state that 0.2 called `value`."""
        return next((cls(now) for now, then in _NAMES_OF_0_2.items() if then == value), None)


_NAMES_OF_0_2 = {"PARKED": "HELD"}


# States in which a job has its nodes, and nobody has ended it.
ON_NODES = frozenset(
    {ResizeState.RUNNING, ResizeState.JOINING, ResizeState.CHECKPOINTING, ResizeState.RESTARTING, ResizeState.RETURNING}
)


# Those in which it is on its way to a new size, or to none, and still holds GPUs that it may have to give back.
LEAVING = (ON_NODES - {ResizeState.RUNNING}) | {ResizeState.REQUEUING}


# Those in which it is pending, and is about to start.
STARTING = frozenset({ResizeState.PARKED, ResizeState.RESIZED, ResizeState.RELEASED})


# All those in which it is on its way: decisions leave it alone.
IN_TRANSIT = LEAVING | STARTING


# A start is waited for as long as two epochs, and no less than this: Slurm may put scheduling off by 3 s (batch_sched_delay's default),
# and a busy slurmctld is slower
LEAST_RELEASE_S = 10.0
PATIENCE = 6  # doublings of the time after which a job that does not answer is asked again to make way


@dataclass(frozen=True)
class ResizeTimes:
    """The times that bound a resize, seconds."""

    checkpoint_timeout_s: float = 300.0
    resend_s: float = 10.0
    park_s: float = 900.0
    release_timeout_s: float = 120.0
    attempts: int = 3
    retry_s: float = 300.0  # after a failed resize, no other for this long
    # from the end of an incarnation to the start of the next: slurmd refuses, and Slurm then fails, a job whose
    # credential is of the same whole second as the revocation of the one before
    restart_delay_s: float = 2.0
    # so long before a time limit ends a job, its last checkpoint is asked for
    lead_s: float = 420.0
    # the expected time of a restart before any was measured
    restart_cost_s: float = 60.0
    # without a step for so long at the least a run counts as hung; 0: never
    hang_s: float = 0.0
    # a job that has done nothing for so long is restarted on its smallest size; 0: never
    idle_s: float = 0.0
    # from an order to restart in place to the new run's first report: the end of the old processes (torchrun's time-out for
    # that is 60 s) and the framework's import, which takes a minute from a slow shared file system
    in_place_s: float = 180.0
    # from an order to bring nodes in to the launcher's answer: it gives up after 60 s itself (more_nodes.JOIN_S)
    join_s: float = 90.0


def make_resize_times(settings: Settings) -> ResizeTimes:
    """Return the times that follow from the admin's settings."""
    return ResizeTimes(
        checkpoint_timeout_s=settings.checkpoint_timeout_s,
        park_s=settings.park_s,
        restart_delay_s=settings.restart_delay_s,
        release_timeout_s=max(LEAST_RELEASE_S, 2 * settings.epoch_s),
        # time limits are looked at once an epoch
        lead_s=settings.checkpoint_timeout_s + 2 * settings.epoch_s,
        restart_cost_s=settings.restart_cost_s,
        hang_s=settings.hang_timeout_s,
        idle_s=settings.idle_reclaim_s,
    )


@dataclass(frozen=True)
class JobLifecycle:
    """The memory of one job between events. `incarnation`: the one that the state speaks of."""

    job_id: int
    submit_s: float
    state: ResizeState = ResizeState.QUEUED
    since_s: float = 0.0
    incarnation: int = field(default=0, metadata=renamed_from("restarts"))
    target: Target | None = None
    origin: Target | None = None  # its former size: taken again when the new one is refused
    sent_s: float = 0.0  # when the last instruction went out
    asked_s: float = 0.0  # when the job was first signalled for the checkpoint that is awaited; 0: not yet
    # checkpoints acknowledged before this one was asked for
    acks_at_request: int = field(default=0, metadata=renamed_from("acks_before"))
    attempts: int = 0
    retry_after_s: float = 0.0
    plan: Plan | None = None  # the running incarnation's, if Synergy gave it one
    cause: str = ""  # why the resize was decided, for the story
    ended_s: float = 0.0  # when an incarnation was last seen to have ended and the job to be pending again
    # times in a row that it was to make way and took no checkpoint
    unanswered_requests: int = field(default=0, metadata=renamed_from("unanswered"))
    stopping: bool = False  # it is on its way to no GPUs: it has no target, and then waits for a decision
    # the last start by Synergy
    last_start: LastStart | None = field(default=None, metadata=renamed_from("started"))
    failures: LaunchFailures = NO_FAILURES
    # the start time that Synergy gave it
    written_start: WrittenStart | None = field(default=None, metadata=renamed_from("written"))
    # the size that its sbatch line asks for, as the last decision knew it
    requested_target: Target | None = field(default=None, metadata=renamed_from("asked"))
    # how far down the ladder its present start is
    start_attempt: StartAttempt = field(default=StartAttempt.AS_DECIDED, metadata=renamed_from("rung"))
    refusals: tuple[Refusal, ...] = ()  # those that still hold
    # starts that Slurm refused so far
    refused_starts: int = field(default=0, metadata=renamed_from("refused"))
    # Slurm's reason for which the job was left to Slurm; "": it was not
    left_to_slurm_reason: str = field(default="", metadata=renamed_from("left"))
    walltime: Walltime = UNTIMED
    returns: int = 0  # times that it came back from a plan that failed
    failure: tuple[int, int] = (-1, 0)  # (incarnation, its run) whose failure was heard of last
    ran: Target | None = None  # the latest size and plan that got past the first steps
    slurm_name: str = ""  # where that is not its id
    moves: Moves = NO_MOVES
    restart_history: RestartHistory = field(default=NO_RESTARTS, metadata=renamed_from("restart"))
    hangs: Hangs = NO_HANGS
    orders: int = 0  # to restart in place, so far
    # it is on its way to another plan for the GPUs that it has, or for some of its nodes
    in_place: bool = field(default=False, metadata=renamed_from("stays"))
    late_deadline: float | None = None  # the deadline reported as out of reach, seconds since 1970
    # starts that Slurm gave others the nodes of
    lost_races: int = field(default=0, metadata=renamed_from("missed"))
    batch_cap: int = 0  # no larger batch again: its loss did worse there; 0: no such bound
    # the latest incarnation whose launcher was heard; -1: none was
    launched_incarnation: int = field(default=-1, metadata=renamed_from("launched"))
    #: times that its script ended before its training began after a restart of Synergy's, and was run once more
    reruns: int = 0
    exact_only: bool = False  # no less communication again: its loss did worse with it
    # nodes that are kept for it from its requeue to its release
    shielded_nodes: tuple[str, ...] = field(default=(), metadata=renamed_from("shielded"))
    comes_first: bool = False  # it was stopped for a resize: before all others in the queue until it runs
    nice: int = 0  # its own
    must_leave: bool = False  # it can't go on as it is: it is requeued whatever comes of that
    #: why Slurm or its script does not let it give nodes back while it runs, as far as that was tried
    live_refusal: str = ""
    #: why it could not get nodes while it runs, once that was tried MOST_JOINS times in a row; "" since its last resize
    join_refusal: str = ""
    #: times in a row that it could not get nodes while it runs, since its last resize
    failed_joins: int = 0
    #: nodes beyond its own allocation that its launchers were asked to bring in, and that it has not left since
    joined_nodes: tuple[str, ...] = field(default=(), metadata=renamed_from("joined"))


def nodes_to_join(life: JobLifecycle) -> tuple[str, ...]:
    """Return the nodes that a running job gets on its way to its target without a requeue; empty if there are none."""
    if not life.in_place or life.target is None or life.origin is None:
        return ()
    return tuple(n for n in life.target.nodes if n not in life.origin.nodes)


def nodes_to_return(life: JobLifecycle) -> tuple[str, ...]:
    """Return the nodes that a running job leaves on its way to its target without a requeue; empty if there are none."""
    if not life.in_place or life.target is None or life.origin is None or not life.target.nodes:
        return ()
    return tuple(n for n in life.origin.nodes if n not in life.target.nodes)


def nodes_to_keep(life: JobLifecycle) -> tuple[str, ...]:
    """Return the nodes with which a running job goes on: first those that it has, in their order, since its script runs on the first."""
    if life.target is None or life.origin is None:
        return ()
    return (*(n for n in life.origin.nodes if n in life.target.nodes), *nodes_to_join(life))


@dataclass(frozen=True)
class Step:
    """The answer to one event: the job's new life, what to do, and lines of the job's story."""

    life: JobLifecycle
    instructions: tuple[Instruction, ...] = ()
    story: tuple[str, ...] = ()


def validate(life: JobLifecycle) -> str:
    """Return what is inconsistent in a life, or "" if nothing is. Used when lives are read back from a store."""
    # RESIZED without a target: every update was refused, and the job is released with the size Slurm has for it
    if (
        life.state in (ResizeState.JOINING, ResizeState.CHECKPOINTING, ResizeState.REQUEUING, ResizeState.PARKED)
        and life.target is None
        and not life.stopping
    ):
        return f"state {life.state} without a target"
    if life.state in (ResizeState.RESTARTING, ResizeState.RETURNING) and (
        life.target is None or life.target.plan is None
    ):
        return f"state {life.state} without a plan"
    if life.attempts < 0 or life.incarnation < 0 or life.orders < 0:
        return "negative count"
    return validate_walltime(life.walltime)


def wait_ends_s(life: JobLifecycle, times: ResizeTimes) -> float:
    """Return when the present state has lasted too long; inf if it may last.

    The time is compared as a sum, so that a tick at this very time is not a rounding error too early (now - since
    >= timeout may be false where now >= since + timeout is true).
    """
    match life.state:
        case ResizeState.CHECKPOINTING:
            return (life.asked_s or life.since_s) + times.checkpoint_timeout_s
        case ResizeState.JOINING:
            return life.since_s + times.join_s
        case ResizeState.RESTARTING:
            return life.since_s + times.in_place_s
        case ResizeState.PARKED:
            return life.since_s + 2 * times.park_s
        case ResizeState.RELEASED:
            return life.since_s + times.release_timeout_s
        case _:
            return math.inf


def restart_ready_s(life: JobLifecycle, times: ResizeTimes) -> float:
    """Return from when on the job's next incarnation may start, seconds since 1970."""
    return life.ended_s + times.restart_delay_s


def is_restart_delay_over(life: JobLifecycle, now_s: float, times: ResizeTimes) -> bool:
    """Return whether the job's last incarnation has been over for long enough; a clock set back must not keep it waiting."""
    return not life.ended_s <= now_s < restart_ready_s(life, times)


def longest_retry_s(life: JobLifecycle, times: ResizeTimes) -> float:
    """Return for how many seconds a job is left alone at the most after a resize that failed."""
    return times.retry_s * 2.0 ** min(max(0, life.unanswered_requests - 1), PATIENCE)


def last_start(life: JobLifecycle) -> LastStart:
    """Return what is remembered of a start of this incarnation with its target."""
    return LastStart(restarts=life.incarnation, nodes=life.target.nodes if life.target else ())


def has_ended_before_training(life: JobLifecycle) -> bool:
    """Return whether Synergy started this incarnation after another one that trained, and none of its launchers was heard."""
    restarted = life.incarnation > 0 and life.last_start is not None and life.last_start.restarts == life.incarnation
    begins = life.state in (ResizeState.RELEASED, ResizeState.RUNNING)
    return begins and restarted and 0 <= life.launched_incarnation < life.incarnation


def jobs_with_awaited_end(lives: Mapping[int, JobLifecycle]) -> list[int]:
    """Return the jobs whose way of leaving matters: those in transit, and those whose training has not begun again since."""
    return [i for i, life in lives.items() if life.state in IN_TRANSIT or has_ended_before_training(life)]
