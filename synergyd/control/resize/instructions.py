"""What a resize wants done through Slurm. Each says what should be, not what to change, so any of them may be sent again.

Each is answered with `CarriedOut` or `Refused` (events.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from synergyd.control.resize.walltime import TimeGrant
from synergyd.records import Plan, Shape


@dataclass(frozen=True)
class Target:
    """What a resize is to reach. `nodes` may be empty: Slurm chooses. `plan` None: the launcher chooses."""

    shape: Shape
    nodes: tuple[str, ...] = ()
    plan: Plan | None = None


@dataclass(frozen=True)
class AskCheckpoint:
    """Signal incarnation `restarts` of the job for a checkpoint."""

    job_id: int
    restarts: int


@dataclass(frozen=True)
class Requeue:
    """End incarnation `restarts` and put the job back into the queue; nothing where that incarnation is over, unless it has FAILED
    and `failed` ones are meant too. The nodes of `shield` are kept free of other jobs until its release. `may_stay`: it can go on
    as it is, so it is not requeued where it could not start again at once (with `target`, if it has one)."""

    job_id: int
    restarts: int
    failed: bool = False
    shield: tuple[str, ...] = ()
    may_stay: bool = False
    target: Target | None = None


@dataclass(frozen=True)
class Restart:
    """Have the launchers of incarnation `restarts` end the job's processes and start them again on the same GPUs with `plan`.
    `number` counts the job's orders of this kind: none is followed twice."""

    job_id: int
    restarts: int
    number: int
    plan: Plan


@dataclass(frozen=True)
class Park:
    """Make the pending job ineligible until `park_s` from now. `time`: the limit that its next incarnation gets."""

    job_id: int
    park_s: float
    time: TimeGrant | None = None


@dataclass(frozen=True)
class Update:
    """Give the pending job `target`'s size, nodes and plan, and the limit `time`; parks it too; done only when all of it reads
    back."""

    job_id: int
    target: Target
    park_s: float
    time: TimeGrant | None = None


@dataclass(frozen=True)
class Release:
    """Make the pending job eligible now, and give its nodes up where they were kept for it. `first`: before all other jobs."""

    job_id: int
    first: bool = False


@dataclass(frozen=True)
class RestoreNice:
    """Give the job, which came first in the queue until it ran, its own Nice again."""

    job_id: int
    nice: int


@dataclass(frozen=True)
class LowerShield:
    """Keep no nodes for the job any more."""

    job_id: int


@dataclass(frozen=True)
class LiftHold:
    """End the hold that Slurm put on the pending incarnation `restarts` because its start failed; parks it first. Nothing
    where somebody else holds it."""

    job_id: int
    restarts: int
    park_s: float


@dataclass(frozen=True)
class Split:
    """Make pending task `task` of the array whose record is `job_id` a job of its own, ineligible until `park_s` from now."""

    job_id: int
    task: int
    park_s: float


@dataclass(frozen=True)
class Wake:
    """Power these nodes up, onto which the running job is to grow when they are up."""

    job_id: int
    nodes: tuple[str, ...]


Instruction = (
    AskCheckpoint | Requeue | Restart | Park | Update | Release | RestoreNice | LowerShield | LiftHold | Split | Wake
)
