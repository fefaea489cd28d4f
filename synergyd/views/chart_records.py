"""The records that the service gives out for charts: the cluster now, its last day, one job's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """The GPUs that a job holds of a node."""

    #: Slurm's job id
    job_id: int
    #: GPUs of this node
    gpus: int


@dataclass(frozen=True, kw_only=True)
class NodeNow:
    """A node at the last epoch, once for each type of its GPUs."""

    #: its name in Slurm
    name: str
    #: type of its GPUs
    gpu_type: str
    #: its GPUs
    gpus: int
    #: it may take new jobs
    up: bool
    #: what Slurm says of its state, for those who see all jobs
    reason: str
    #: its leaf switch (a rack, a block) where Slurm knows the topology, else the first of its partitions
    group: str = ""
    #: Synergy's jobs on it that the caller may see
    jobs: tuple[Occupancy, ...]
    #: GPUs of jobs that are not Synergy's, or that the caller may not see
    other_gpus: int


@dataclass(frozen=True, kw_only=True)
class ClusterJson:
    """The nodes with GPUs at the last epoch, and who holds them. Empty before the first one."""

    #: start of the last epoch, seconds since 1970
    epoch_s: float | None
    #: predicted goodput of the decided allocation; 1 is what one GPU does in a job of the size asked for
    goodput_gpus: float | None
    #: the same of plain Slurm: these jobs first come first served with backfill, each at the size asked for
    plain_gpus: float | None
    #: as Slurm lists them
    nodes: tuple[NodeNow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Total:
    """The cluster at one time."""

    #: seconds since 1970
    at_s: float
    #: as in ClusterJson
    goodput_gpus: float
    #: as in ClusterJson
    plain_gpus: float
    #: GPUs of nodes that are up
    gpus: float


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A time in which a job held the same nodes."""

    #: seconds since 1970
    from_s: float
    #: seconds since 1970; of the present one the last epoch
    to_s: float
    #: GPUs that it held; 0: it waited
    gpus: int
    #: incarnations before this one
    restarts: int


@dataclass(frozen=True, kw_only=True)
class JobBar:
    """A job's row of the Gantt chart."""

    #: Slurm's job id
    job_id: int
    #: as its user named it
    name: str
    #: its owner's login name
    user: str
    #: GPUs of its sbatch line
    asked_gpus: int
    #: oldest first
    held: tuple[Holding, ...]


@dataclass(frozen=True, kw_only=True)
class QueueHistoryJson:
    """The cluster's last day."""

    #: begin of the day, seconds since 1970
    from_s: float
    #: its end: the last epoch
    to_s: float
    #: oldest first, at most 480
    totals: tuple[Total, ...]
    #: the jobs that the caller may see
    jobs: tuple[JobBar, ...]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One report of a job."""

    #: start of the epoch that saw it, seconds since 1970
    at_s: float
    #: newest step
    step: int
    #: of that step
    loss: float | None
    #: gradient noise scale, sequences
    noise_scale: float | None
    #: sequences a step
    global_batch: int | None
    #: seconds of a step, smoothed
    step_s: float | None
    #: incarnations before this one
    restarts: int


@dataclass(frozen=True, kw_only=True)
class DecidedSize:
    """A decision that gave the job GPUs."""

    #: start of its epoch, seconds since 1970
    at_s: float
    #: GPUs
    gpus: int
    #: predicted: throughput (sequences a second) x efficiency x the probability that the memory suffices
    goodput: float
    #: over that of the size asked for
    relative_goodput: float | None
    #: sequences a step; null where that is its script's own
    global_batch: int | None
    #: in words
    plan: str


@dataclass(frozen=True, kw_only=True)
class JobHistoryJson:
    """One job's last day."""

    #: Slurm's job id
    job_id: int
    #: the last epoch, seconds since 1970
    to_s: float
    #: oldest first
    held: tuple[Holding, ...]
    #: oldest first
    points: tuple[Point, ...]
    #: the newest 200, oldest first
    decided: tuple[DecidedSize, ...]


@dataclass(frozen=True, kw_only=True)
class CallerJson:
    """The caller, and what Slurm lets them do."""

    #: login name
    user: str
    #: every job is theirs to change
    commands_all: bool
    #: they see all jobs
    sees_all: bool
    #: accounts that they coordinate
    coordinates: tuple[str, ...]
