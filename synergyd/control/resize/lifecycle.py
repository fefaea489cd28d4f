"""What is remembered of a job's resize between events, and the times that bound it. Pure records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from synergyd.control.resize.hangs import NO_HANGS, Hangs
from synergyd.control.resize.instructions import Instruction, Target
from synergyd.control.resize.launch_failure import NO_FAILURES, LaunchFailures, Started
from synergyd.control.resize.moves import NO_MOVES, Moves
from synergyd.control.resize.restart_account import NO_RESTARTS, RestartAccount
from synergyd.control.resize.start_refusal import Refusal, Rung
from synergyd.control.resize.start_time import WrittenStart
from synergyd.control.resize.walltime import UNTIMED, Walltime, problem
from synergyd.records import Plan
from synergyd.settings import Settings


class ResizeState(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CHECKPOINTING = "CHECKPOINTING"
    REQUEUING = "REQUEUING"
    RESTARTING = "RESTARTING"
    HELD = "HELD"
    RESIZED = "RESIZED"
    RELEASED = "RELEASED"
    GONE = "GONE"


# States in which a job is on its way to a new size, or to none: decisions leave it alone.
IN_TRANSIT = frozenset(
    {ResizeState.CHECKPOINTING, ResizeState.REQUEUING, ResizeState.RESTARTING}
    | {ResizeState.HELD, ResizeState.RESIZED, ResizeState.RELEASED}
)


# Those of them in which it still holds GPUs that it is to give back.
LEAVING = frozenset({ResizeState.CHECKPOINTING, ResizeState.REQUEUING})


# Those in which it is pending, and is about to start.
STARTING = IN_TRANSIT - LEAVING - {ResizeState.RESTARTING}


# A start is waited for as long as two epochs, and no less than this: Slurm may put scheduling off by 3 s (batch_sched_delay's default),
# and a busy slurmctld is slower
LEAST_RELEASE_S = 10.0


@dataclass(frozen=True)
class ResizeTimes:
    """Times of the machine, seconds."""

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
    # what a restart is expected to take before any was measured
    restart_cost_s: float = 60.0
    # without a step for so long at the least a run counts as hung; 0: never
    hang_s: float = 0.0
    # a job that has done nothing for so long is restarted on its smallest size; 0: never
    idle_s: float = 0.0
    # from an order to restart in place to the new run's first report: the end of the old processes (torchrun's time-out for
    # that is 60 s) and the framework's import, which takes a minute from a slow shared file system
    in_place_s: float = 180.0


def times_of(settings: Settings) -> ResizeTimes:
    """As the admin set them."""
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
    """All that is remembered of one job between events. `restarts` is the incarnation the state speaks of."""

    job_id: int
    submit_s: float
    state: ResizeState = ResizeState.QUEUED
    since_s: float = 0.0
    restarts: int = 0
    target: Target | None = None
    origin: Target | None = None  # what it had before: taken again when the new size is refused
    sent_s: float = 0.0  # when the last instruction went out
    asked_s: float = 0.0  # when the job was first signalled for the checkpoint that is awaited; 0: not yet
    acks_before: int = 0  # checkpoints acknowledged before this one was asked for
    attempts: int = 0
    retry_after_s: float = 0.0
    plan: Plan | None = None  # of the running incarnation, if Synergy gave it one
    cause: str = ""  # why the resize was decided, for the story
    ended_s: float = 0.0  # when an incarnation was last seen to have ended and the job to be pending again
    unanswered: int = 0  # times in a row that it was to make way and took no checkpoint
    stopping: bool = False  # it is on its way to no GPUs: it has no target, and then waits for a decision
    started: Started | None = None  # by Synergy, last
    failures: LaunchFailures = NO_FAILURES
    written: WrittenStart | None = None  # the start time that Synergy gave it
    asked: Target | None = None  # what its sbatch line asks for, as the last decision knew it
    rung: Rung = Rung.AS_DECIDED  # of the present start
    refusals: tuple[Refusal, ...] = ()  # that hold still
    refused: int = 0  # starts that Slurm refused so far
    left: str = ""  # Slurm's reason for which the job was left to Slurm; "": it was not
    walltime: Walltime = UNTIMED
    returns: int = 0  # times that it came back from a plan that failed
    failure: tuple[int, int] = (-1, 0)  # (incarnation, its run) whose failure was heard of last
    ran: Target | None = None  # the latest size and plan that got past the first steps
    slurm_name: str = ""  # where that is not its id
    moves: Moves = NO_MOVES
    restart: RestartAccount = NO_RESTARTS
    hangs: Hangs = NO_HANGS
    orders: int = 0  # to restart in place, so far
    stays: bool = False  # what it is on its way to is another plan for the GPUs that it has
    late_deadline: float | None = None  # that was told to be out of reach: its user's time, seconds since 1970
    missed: int = 0  # starts that Slurm gave others the nodes of
    batch_cap: int = 0  # no larger batch again: its loss did worse there; 0: no such bound
    launched: int = -1  # the latest incarnation whose launcher was heard; -1: none was
    reruns: int = (
        0  # times that its script ended before its training began after a restart of Synergy's, and was run once more
    )
    exact_only: bool = False  # no less communication again: its loss did worse with it
    shielded: tuple[str, ...] = ()  # nodes that are kept for it from its requeue to its release
    comes_first: bool = False  # it was stopped for a resize: before all others in the queue until it runs
    nice: int = 0  # its own
    must_leave: bool = False  # it can't go on as it is: it is requeued whatever comes of that


@dataclass(frozen=True)
class Step:
    """The answer to one event: the new life, what to do, and lines of the job's story."""

    life: JobLifecycle
    instructions: tuple[Instruction, ...] = ()
    story: tuple[str, ...] = ()


def validate(life: JobLifecycle) -> str:
    """What is inconsistent in a life, or '' (used when lives are read back from a store)."""
    # RESIZED without a target: every update was refused, and the job is released with the size Slurm has for it
    if (
        life.state in (ResizeState.CHECKPOINTING, ResizeState.REQUEUING, ResizeState.HELD)
        and life.target is None
        and not life.stopping
    ):
        return f"state {life.state} without a target"
    if life.state is ResizeState.RESTARTING and (life.target is None or life.target.plan is None):
        return f"state {life.state} without a plan"
    if life.attempts < 0 or life.restarts < 0 or life.orders < 0:
        return "negative count"
    return problem(life.walltime)


def wait_ends_s(life: JobLifecycle, limits: ResizeTimes) -> float:
    """When the present state has lasted too long; inf where it may last. Compared as a sum, so that a tick at this very time
    is not a rounding error too early (now - since >= timeout may be false where now >= since + timeout is true)."""
    match life.state:
        case ResizeState.CHECKPOINTING:
            return (life.asked_s or life.since_s) + limits.checkpoint_timeout_s
        case ResizeState.RESTARTING:
            return life.since_s + limits.in_place_s
        case ResizeState.HELD:
            return life.since_s + 2 * limits.park_s
        case ResizeState.RELEASED:
            return life.since_s + limits.release_timeout_s
        case _:
            return math.inf


def settles_s(life: JobLifecycle, limits: ResizeTimes) -> float:
    """From when on the job's next incarnation may start."""
    return life.ended_s + limits.restart_delay_s
