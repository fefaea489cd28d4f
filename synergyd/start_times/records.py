"""The queue as a forecast sees it. Times are seconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Amounts:
    """Resources of one node: what it has free, or what a job needs of it."""

    gpus: int = 0
    cpus: int = 0
    memory_mib: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.gpus + other.gpus, self.cpus + other.cpus, self.memory_mib + other.memory_mib)

    def holds(self, need: Amounts) -> bool:
        return self.gpus >= need.gpus and self.cpus >= need.cpus and self.memory_mib >= need.memory_mib


#: a limit that is reached: of whom (user, account, array), the name, and what it counts (gpus, cpus, nodes, jobs)
Cap = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class QueueNode:
    """A node that takes jobs. `closed`: spans (start, end, reservation) in which only that reservation's jobs may be on it."""

    name: str
    total: Amounts
    free: Amounts
    gpu_type: str = ""
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    closed: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True)
class Program:
    """The owner of a run, what it is called, and its time limit in seconds (None: none): runs that share these last alike."""

    user: str
    account: str
    name: str
    limit_s: float | None


@dataclass(frozen=True, kw_only=True)
class PendingJob:
    """A job that waits. Jobs are in the order of their priority.

    `submit_s`: when it came; `may_start_s`: its begin time; `after`: jobs that must end before; `cap`: the limit that Slurm says is
    reached; `tasks`: of an array's rest; `planned_s`: Synergy starts it then. `slurm_reason`: Slurm's word for why it waits, with `note`
    for what belongs to it (a dependency, licences).
    """

    job_id: int
    program: Program
    nodes: int
    need: Amounts
    partitions: frozenset[str]
    gpu_type: str = ""
    features: str = ""
    node_names: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    whole_nodes: bool = False
    reservation: str = ""
    submit_s: float = 0.0
    may_start_s: float = 0.0
    after: tuple[int, ...] = ()
    cap: Cap | None = None
    tasks: int = 1
    planned_s: float | None = None
    slurm_reason: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job that holds nodes.

    `freed_s`: when it gives them back by a plan of Synergy's; None: at its end. `caps`: the limits of waiting jobs that it counts under;
    `asked`: the job as it waited.
    """

    job_id: int
    program: Program
    start_s: float
    limit_end_s: float | None
    nodes: tuple[str, ...]
    need: Amounts
    freed_s: float | None = None
    caps: frozenset[Cap] = frozenset()
    asked: PendingJob | None = None


@dataclass(frozen=True, kw_only=True)
class Queue:
    """All jobs and nodes at one time. Jobs in `held` wait for somebody, not for nodes: nobody can tell when they start.

    `nodes`: those that take jobs.
    """

    now_s: float
    nodes: tuple[QueueNode, ...]
    running: tuple[RunningJob, ...]
    pending: tuple[PendingJob, ...]
    held: tuple[PendingJob, ...] = ()
