"""The protocol between an epoch and an allocation policy: one Problem in, one Allocation out, both plain data.

A policy says which Cell each job gets; `place` then names the nodes. Whoever adds a policy implements `Policy` and adds
its name to `policies.py`; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from synergyd.records import Cell, has_features


class NodeFilter(NamedTuple):
    """Which nodes a job may use. Empty: any."""

    #: Slurm's field of the job: one partition, or several with commas between them
    partition: str = ""
    #: node features that the job asks for (--constraint): names joined by & or by |
    features: str = ""


ANY_NODE = NodeFilter()


@dataclass(frozen=True)
class NodeCapacity:
    """One node as the allocation sees it.

    `free` counts the GPUs that this problem hands out: all but those held by jobs outside of it, so the GPUs of its own
    running jobs are included; 0 on a node that may not take jobs. Empty `partitions` means that any job may use it. `leaf`
    is its leaf switch ("": not known).
    """

    name: str
    gpu_type: str
    free: int
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    leaf: str = ""

    def admits(self, node_filter: NodeFilter) -> bool:
        """May a job with this filter run here?"""
        names, wanted = node_filter
        inside = not names or not self.partitions or any(name in self.partitions for name in names.split(","))
        return inside and has_features(wanted, self.features)


@dataclass(frozen=True)
class Progress:
    """What is known of a job's past and future: `attained_gpu_s` GPU seconds it has had; `done` and `remaining` sequences
    of progress at the smallest batch (None: not known)."""

    attained_gpu_s: float = 0.0
    remaining: float | None = None
    done: float | None = None


@dataclass(frozen=True)
class JobRequest:
    """One job of the problem.

    `relative[i]` is cells[i]'s goodput over that of the size asked for (dimensionless). `current` is the index of the
    Cell it runs with (None: it waits), on `nodes`. `discount` in [0, 1] multiplies the goodput of every change of a
    running job; 0 forbids them. `asked` is the index of the Cell of the size asked for, None if there is none.
    `banned` are Cells that placement has refused in this epoch; staying in place is never banned.

    `age_s` seconds have passed since it was first submitted, with `restarts` so far. progress.remaining / goodput is the
    seconds left on a Cell. `deadline_s` is in the problem's own time; `account` is Slurm's.

    `drag` is the restart cost over what is left to do (seconds a sequence of progress; 0: not known): near its end a job
    is not worth a restart.

    `short` is the part of `weight` that stems from how little is left to do (1: none).

    `stoppable`: it runs, and may be made to wait for others, which is worth utility.stop_value to it.

    `need` is the goodput that this job should get before others gain anything (0: none), `need_anew` the same for a
    change of a running job, whose restart takes time; `need_why` says what for.
    """

    job_id: int
    cells: tuple[Cell, ...]
    relative: Sequence[float]
    weight: float = 1.0
    submit_s: float = 0.0
    node_filter: NodeFilter = ANY_NODE
    asked: int | None = None
    current: int | None = None
    nodes: tuple[str, ...] = ()
    discount: float = 1.0
    banned: frozenset[int] = frozenset()
    age_s: float = 0.0
    restarts: int = 0
    progress: Progress = Progress()
    deadline_s: float | None = None
    account: str = ""
    drag: float = 0.0
    short: float = 1.0
    need: float = 0.0
    need_anew: float = 0.0
    need_why: str = ""
    stoppable: bool = False


@dataclass(frozen=True)
class Objective:
    """The objective: the sum over jobs of weight x worth(normalised goodput x restart factor), and what bounds it.

    | term | is | off |
    |---|---|---|
    | goodput | worth(s) of s = goodput / `reference`: (s^p - 1)/p (log s at p = 0), or Sia's sign(p) s^p with `form` "sia" | |
    | waiting | "power": worth as at `wait_share` of the smallest Cell; "sia": -`wait_cost` (Sia's lambda) | |
    | restart | s of a change is multiplied by Ask.discount | RestartCost 0 |
    | weight | Ask.weight: directive x QOS x Slurm priority | weight 1 |
    | short | and x (median time left / own)^ShortFirst within [1/3, 3], at an equal share | ShortFirst 0 |
    | need | `need_bonus`, more than all others can gain together, for a Cell that reaches Ask.need (deadlines, fairness) | need 0 |
    | growth | a running job's GPUs at most `max_growth` times the present ones | 0 |

    p -> -inf is max-min; at the least that is taken, -3, what a job that is 20 % worse off gains counts 2.4 times as much.
    `reference` is "asked" (the size asked for), "smallest" (Sia: per GPU of the smallest Cell) or "share" (Pollux: an
    equal share of the cluster).
    """

    exponent: float = 0.0
    max_growth: float = 0.0
    wait_share: float = 0.1
    form: str = "power"
    wait_cost: float = 1.1
    reference: str = "asked"
    need_bonus: float = 0.0


@dataclass(frozen=True)
class GpuLimit:
    """At most `gpus` GPUs for all jobs of an account or a partition (`kind`), of those that take part in the problem; `configured_gpus`
    is what the admin set for all of them."""

    kind: str
    name: str
    gpus: int
    configured_gpus: int = 0

    def binds(self, ask: JobRequest) -> bool:
        return ask.account == self.name if self.kind == "account" else self.name in ask.node_filter.partition.split(",")


@dataclass(frozen=True)
class Problem:
    """One epoch's allocation: who asks, and what there is. `now_s` is the time that deadlines are told in; `restart_cost_s`
    what any change of a running job costs it. Running jobs never exceed `limits` by staying as they are. `spanned` not None: at most
    one job that spans nodes on a node; those are the nodes that jobs outside of the problem span. `may_stop`: policies that preempt
    may stop any running job; the others stop those that are `stoppable`.
    """

    asks: tuple[JobRequest, ...]
    rooms: tuple[NodeCapacity, ...]
    terms: Objective = Objective()
    now_s: float = 0.0
    restart_cost_s: float = 0.0
    limits: tuple[GpuLimit, ...] = ()
    spanned: frozenset[str] | None = None
    may_stop: bool = False

    def capacity(self) -> dict[str, int]:
        """GPUs to hand out, by type."""
        total: dict[str, int] = {}
        for room in self.rooms:
            total[room.gpu_type] = total.get(room.gpu_type, 0) + room.free
        return total


@dataclass(frozen=True)
class Allocation:
    """A policy's answer. `choice[i]` is the index of asks[i]'s Cell, None if it waits (of a running job: if it
    is stopped).

    A running job whose choice is its current Cell stays on its nodes, unless its index is in `moved`. `objective` and
    `upper_bound` are sums of weighted utilities; `gap` = (upper_bound - objective) / max(1, |objective|), infinite
    where the policy knows no bound. `optimal`: proven, to the solver's tolerance.
    """

    choice: tuple[int | None, ...]
    moved: frozenset[int]
    objective: float
    upper_bound: float
    optimal: bool

    @property
    def gap(self) -> float:
        return max(0.0, self.upper_bound - self.objective) / max(1.0, abs(self.objective))

    def taken(self, problem: Problem) -> Iterator[tuple[int, Cell, bool]]:
        """(index of the ask, its Cell, whether it stays on its nodes) of every job that has a Cell."""
        for index, (ask, choice) in enumerate(zip(problem.asks, self.choice, strict=True)):
            if choice is not None:
                yield index, ask.cells[choice], choice == ask.current and index not in self.moved


class Policy(Protocol):
    """Chooses Cells. Pure: the same problem gives the same answer (a time limit that strikes is the one exception).

    `preempts`: it stops running jobs (choice None), `stoppable` or not. `sizes_fixed`: each job gets the
    size it asked for, whatever could be gained. `rule`: what it goes by, in words for `explain`; empty where
    its objective is the explanation.
    """

    preempts: bool = False
    sizes_fixed: bool = False
    rule: str = ""

    def allocate(self, problem: Problem) -> Allocation: ...
