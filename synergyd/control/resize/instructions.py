"""The instructions of a resize to Slurm and the job. Each says what should be, not what to change, so any of them may be sent again.

Each is answered with `CarriedOut` or `Refused` (events.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.formatting import format_size
from synergy_core.records import Plan, Shape

from synergyd.control.resize.walltime import TimeGrant


@dataclass(frozen=True)
class Target:
    """The size, nodes and plan that a resize is to reach. `nodes` may be empty: Slurm chooses. `plan` None: the launcher chooses."""

    shape: Shape
    nodes: tuple[str, ...] = ()
    plan: Plan | None = None


def format_target(target: Target) -> str:
    """Return the target's size, plan and nodes in words."""
    return format_size(target.shape, target.plan, target.nodes)


@dataclass(frozen=True)
class AskCheckpoint:
    """A request to incarnation `restarts` of the job for a checkpoint."""

    job_id: int
    restarts: int


@dataclass(frozen=True)
class Requeue:
    """An order to end incarnation `restarts` and put the job back into the queue.

    Nothing is done where that incarnation is over, unless it has FAILED and `failed` ones are meant too. The nodes of `shield` are
    kept free of other jobs until its release. `may_stay`: it can go on as it is, so it is not requeued where it could not start again
    at once (with `target`, if it has one).
    """

    job_id: int
    restarts: int
    failed: bool = False
    shield: tuple[str, ...] = ()
    may_stay: bool = False
    target: Target | None = None


@dataclass(frozen=True)
class Restart:
    """An order to have the launchers of incarnation `restarts` end its processes and start them again with `plan`.

    They start on the same GPUs, or on those of the job's `nodes` alone. `number` counts the job's orders of this kind: none is followed
    twice.
    """

    job_id: int
    restarts: int
    number: int
    plan: Plan
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JoinNodes:
    """An order to the launchers of the running incarnation `restarts` to bring in those of `nodes` that the job lacks.

    The job goes on meanwhile. `number`: as in Restart. `plan`: the one that is to run there.
    """

    job_id: int
    restarts: int
    number: int
    plan: Plan
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ReturnNodes:
    """An order to give Slurm all nodes of the running incarnation `restarts` back but `kept_nodes`; its processes have left them.

    `joined_nodes`: those that it may have beyond its own allocation.
    """

    job_id: int
    restarts: int
    kept_nodes: tuple[str, ...]
    joined_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Park:
    """An order to make the pending job ineligible until `park_s` from now. `time`: the limit that its next incarnation gets."""

    job_id: int
    park_s: float
    time: TimeGrant | None = None


@dataclass(frozen=True)
class Update:
    """An order to give the pending job `target`'s size, nodes and plan, and the limit `time`.

    It parks the job too, and is done only when all of it reads back.
    """

    job_id: int
    target: Target
    park_s: float
    time: TimeGrant | None = None


@dataclass(frozen=True)
class Release:
    """An order to make the pending job eligible now, and give its nodes up where they were kept for it. `first`: before all other jobs."""

    job_id: int
    first: bool = False


@dataclass(frozen=True)
class RestoreNice:
    """An order to give the job, which came first in the queue until it ran, its own Nice again."""

    job_id: int
    nice: int


@dataclass(frozen=True)
class LowerShield:
    """An order to keep no nodes for the job any more."""

    job_id: int


@dataclass(frozen=True)
class LiftHold:
    """An order to end the hold that Slurm put on the pending incarnation `restarts` because its start failed; parks it first.

    Nothing where somebody else holds it.
    """

    job_id: int
    restarts: int
    park_s: float


@dataclass(frozen=True)
class Split:
    """An order to make pending task `task` of the array whose record is `job_id` a job of its own, ineligible until `park_s` from now."""

    job_id: int
    task: int
    park_s: float


@dataclass(frozen=True)
class Wake:
    """An order to power these nodes up, onto which the running job is to grow when they are up."""

    job_id: int
    nodes: tuple[str, ...]


Instruction = (
    AskCheckpoint
    | Requeue
    | Restart
    | JoinNodes
    | ReturnNodes
    | Park
    | Update
    | Release
    | RestoreNice
    | LowerShield
    | LiftHold
    | Split
    | Wake
)
