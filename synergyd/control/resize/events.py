"""The events that the controller takes.

The first group is about one job's resize (machine.py), the second about all jobs (controller.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.job_report import Report
from synergy_core.records import Cell, Cluster, Decision, Job, Plan, Shape, Snapshot

from synergyd.control.resize.instructions import Instruction, Target
from synergyd.control.resize.walltime import UNTIMED, Walltime

# -- one job's resize ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """Slurm's present state of the job: PENDING, RUNNING, COMPLETING, SUSPENDED, or GONE when it has left the queue.

    `eligible_s`: when a pending job may start (Slurm's EligibleTime); `queued_s`: since when it is pending; `reason`:
    why it has not started, in Slurm's words; `launch_failed`: Slurm holds it since its last start failed. `limit_s`:
    its time limit; `ends_s`: when that ends a running job; `started_s`: since when it runs. None where there is none.
    `gpuless`: Slurm has started it without the GPUs that it asks for; where it is GONE, it has failed so. `nice`: as
    Slurm has it. `failed`: it is GONE since its script ended with an error.
    """

    state: str
    restarts: int = 0
    eligible_s: float | None = None
    launch_failed: bool = False
    reason: str = ""
    queued_s: float | None = None
    limit_s: float | None = None
    ends_s: float | None = None
    started_s: float | None = None
    gpuless: bool = False
    nice: int = 0
    failed: bool = False


@dataclass(frozen=True)
class Wanted:
    """A decision to start or resize."""

    target: Target
    cause: str
    acks: int = 0  # checkpoint acknowledgements of this incarnation so far
    present: Target | None = None  # the job's present or requested size: taken again if the new one is refused
    requested_target: Target | None = None  # the size that its sbatch line asks for
    is_due: bool = False  # its time limit ends it otherwise: nothing puts it off
    in_place: bool = False  # its launchers can start another plan on the GPUs that it has
    live: bool = False  # they can do so on fewer of its nodes
    grows: bool = False  # they can bring in nodes that it does not have
    any_nodes: bool = False  # whichever nodes Slurm finds would do as well


@dataclass(frozen=True)
class Preempted:
    """A decision that the running job gives all its GPUs back and waits for another."""

    cause: str
    acks: int = 0  # checkpoint acknowledgements of this incarnation so far


@dataclass(frozen=True)
class Unwanted:
    """The end of a target: it can't be reached any more. A running job goes on as it is, a pending one waits for a new decision."""

    cause: str


@dataclass(frozen=True)
class Acknowledged:
    """The word of the job's agent on how many requested checkpoints of this incarnation are complete."""

    restarts: int
    count: int


@dataclass(frozen=True)
class RestartedInPlace:
    """The report of a run that the job's launchers of incarnation `restarts` began at their order `number`, or a later one."""

    restarts: int
    number: int


@dataclass(frozen=True)
class NodesLost:
    """The run of incarnation `restarts` goes on with `plan` on `kept_nodes`: the others were lost, and Slurm starts no job there now.

    `present`: what Slurm counts as the job's.
    """

    restarts: int
    kept_nodes: tuple[str, ...]
    plan: Plan
    present: Target


@dataclass(frozen=True)
class NodesJoined:
    """The launchers' answer to order `number` to bring nodes in.

    `refusal`: why they can't be had, "" if they are there. `granted`: Slurm had granted them.
    """

    restarts: int
    number: int
    refusal: str = ""
    granted: bool = False


@dataclass(frozen=True)
class CarriedOut:
    """The answer to an instruction that was carried out and read back."""

    instruction: Instruction


@dataclass(frozen=True)
class Refused:
    """The answer to an instruction that failed.

    `transient`: it may work a little later. `final`: it is not to be tried again. `unsure`: Slurm gave no answer, and
    may have carried it out all the same.
    """

    instruction: Instruction
    error: str
    transient: bool
    final: bool = False
    unsure: bool = False


@dataclass(frozen=True)
class Tick:
    """A moment in which time has passed.

    `room`: as far as the nodes show, the GPUs are free that a pending job was released for. `is_contested`: they are not,
    as the nodes show just now, and there are others free that would do.
    """

    room: bool = False
    reason: str = ""  # Slurm's, as it was seen last
    is_contested: bool = False


@dataclass(frozen=True)
class PlanFailed:
    """The failure of a running job at once under Synergy's plan; its launcher waits to be requeued. `story`: what is done."""

    fallback: Target
    story: str


@dataclass(frozen=True)
class Hung:
    """The hang of a running job, whose steps have stopped for good on these nodes, after `step`. `story`: what is done."""

    nodes: tuple[str, ...]
    step: int
    story: str


ResizeEvent = (
    Observed
    | Wanted
    | Preempted
    | Unwanted
    | Acknowledged
    | RestartedInPlace
    | NodesJoined
    | NodesLost
    | CarriedOut
    | Refused
    | Tick
    | PlanFailed
    | Hung
)

# -- all jobs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobObserved:
    """The job as Slurm shows it, for the first time or again.

    `submit_s`: seconds since 1970, as Slurm says now. `requeuing`: it is pending, but still on its way back into the
    queue. `begin_s`: its user's own start time, as long as Synergy has written none. `walltime`: what its script and
    its stamp say of its time limit.
    """

    job_id: int
    submit_s: float
    observation: Observed
    requeuing: bool = False
    begin_s: float | None = None
    walltime: Walltime = UNTIMED


@dataclass(frozen=True)
class QueueRead:
    """The whole queue as it was read: tracked jobs that are not among `here` have left it."""

    here: frozenset[int]


@dataclass(frozen=True)
class NodesRead:
    """The nodes that take jobs now. A resize to any other could not start: it gets a new decision."""

    up_nodes: frozenset[str]


@dataclass(frozen=True)
class SnapshotTaken:
    """The cluster as an epoch sees it, `passed_s` seconds after the epoch before."""

    snapshot: Snapshot
    passed_s: float


@dataclass(frozen=True)
class ReportsReceived:
    """Reports of one job, bounds and sender checked, oldest first. `shown_restarts`: the incarnation that Slurm showed last.

    `prediction`: (step seconds, peak bytes) that the bare model predicts of the reported plan on `shape`; None where unknown.
    `least_memory`: of a plan that failed, the bias of its predicted memory with which it would not have fitted.
    `job`: as it is now, where that was asked for.
    """

    reports: tuple[Report, ...]
    shown_restarts: int
    prediction: tuple[float, int] | None = None
    shape: Shape | None = None
    least_memory: float | None = None
    job: Job | None = None


@dataclass(frozen=True)
class GpuTimeKnown:
    """The GPU seconds that the job has had: better known than by adding up what snapshots showed."""

    job_id: int
    gpu_s: float
    #: it says how much is left to do
    tells: bool = True


@dataclass(frozen=True)
class CheckpointTaken:
    """The number `count` of checkpoints on request that incarnation `restarts` of the job has completed."""

    job_id: int
    restarts: int
    count: int


@dataclass(frozen=True)
class EpochDecided:
    """A new epoch's decisions; those of the one before that still wait are void. `JobDecided` follows for each."""

    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class JobDecided:
    """An epoch's decision for one job. `schedulable`: it has a Cell, so it must not start by itself while it waits."""

    decision: Decision
    schedulable: bool = True


@dataclass(frozen=True)
class DecisionUnblocked:
    """The end of a decision's wait: its GPUs are free. `job`: as it is now; None where it is not as it was decided about."""

    job_id: int
    job: Job | None


@dataclass(frozen=True)
class BatchReviewed:
    """The Cells that the running job could have on the GPUs it holds.

    `report`: in place of its latest one; `noise_scale` (sequences): where no report has told one.
    """

    job_id: int
    cells: tuple[Cell, ...]
    report: Report | None = None
    noise_scale: float | None = None


@dataclass(frozen=True)
class HealthReviewed:
    """The end of an epoch: running jobs are looked at for steps that stopped, slow nodes and silence.

    `drains`: bad nodes may be drained.
    """

    drains: bool = False


@dataclass(frozen=True)
class InstructionAnswered:
    """The answer to an instruction."""

    answer: CarriedOut | Refused


@dataclass(frozen=True)
class ClockSet:
    """A change of the time of day by `by_s` seconds; all that follows comes with the new one."""

    by_s: float


@dataclass(frozen=True)
class TimePassed:
    """A moment in which time has passed for the job. `cluster`: the nodes as they are just now, where they were read."""

    job_id: int
    cluster: Cluster | None = None


ControlEvent = (
    JobObserved
    | QueueRead
    | NodesRead
    | SnapshotTaken
    | ReportsReceived
    | GpuTimeKnown
    | CheckpointTaken
    | EpochDecided
    | JobDecided
    | DecisionUnblocked
    | BatchReviewed
    | HealthReviewed
    | InstructionAnswered
    | ClockSet
    | TimePassed
)
