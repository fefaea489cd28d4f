"""The records of the allocation: a policy takes a Problem and returns an Allocation, both plain data.

A policy chooses a Cell for each job; `place` then names the nodes. A new policy implements `Policy` and gets a name in
policies/registry.py; nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple, Protocol

from synergy_core.constraint import has_features
from synergy_core.node_needs import GPUS_ONLY, NO_ROOM, NodeNeeds, Room
from synergy_core.records import Cell
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.problem.delays import NO_DELAYS, DelayHistory


class NodeFilter(NamedTuple):
    """The nodes that a job may use. Empty: any."""

    #: Slurm's field of the job: one partition, or several with commas between them
    partition: str = ""
    #: node features that the job asks for (--constraint)
    features: str = ""
    #: nodes that it can't use, sorted: --exclude, and those without the CPUs or memory for its smallest piece
    excluded_nodes: tuple[str, ...] = ()
    #: nodes that must be among its own (--nodelist), sorted
    required_nodes: tuple[str, ...] = ()
    #: nodes of its reservation, sorted: it can use no others
    allowed_nodes: tuple[str, ...] = ()

    def allows(self, names: Sequence[str], partitions: Mapping[str, tuple[str, ...]]) -> bool:
        """Return whether one job may have all these nodes (each of them admits it).

        `partitions` is by node name: Slurm starts a job inside one.
        """
        if not set(self.required_nodes) <= {name.partition(":")[0] for name in names}:
            return False
        if "," not in self.partition or len(names) == 1:
            return True
        own = [partitions[name] for name in names]
        return any(all(not of_node or p in of_node for of_node in own) for p in self.partition.split(","))


ANY_NODE = NodeFilter()
NO_COST = RestartBudget(cost=RestartCost(mean_s=0.0))


@dataclass(frozen=True)
class NodeCapacity:
    """One node as the allocation sees it."""

    name: str
    gpu_type: str
    #: GPUs that this problem hands out: all but those held by jobs outside of it; 0 on a node that may not take jobs
    free: int
    #: empty: any job may use the node
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    #: its leaf switch; "": not known
    leaf: str = ""
    #: CPUs and memory that this problem hands out; None: plenty
    room: Room | None = None
    #: all that the node has of it
    total: Room = NO_ROOM
    threads: int = 1
    tmp_disk_mib: int = 0
    #: free GPUs that are not in `free`, since no job could have CPUs and memory for them
    unusable_gpus: int = 0
    #: the node's own name where `name` tells its types of GPUs apart
    host: str = ""
    #: 0 to 1: how bad jobs have fared there lately
    penalty: float = 0.0

    @property
    def is_untouched(self) -> bool:
        """Return whether no job outside of the problem holds any of it."""
        return self.room is None or self.room.has_room_for(self.total)

    def admits(self, node_filter: NodeFilter) -> bool:
        """Return whether a job with this filter may run here."""
        names, features, barred, _, within = node_filter
        if barred and (self.name in barred or self.host in barred):
            return False
        if within and (self.host or self.name) not in within:
            return False
        inside = not names or not self.partitions or any(name in self.partitions for name in names.split(","))
        return inside and has_features(features, self.features)


@dataclass(frozen=True)
class Progress:
    """The known past and future of a job. Sequences count as progress at the smallest batch; None means not known."""

    #: GPU seconds that it has had
    attained_gpu_s: float = 0.0
    #: sequences left
    remaining: float | None = None
    #: sequences trained
    trained_sequences: float | None = None
    #: it has trained for longer than it said was left: it counts as the longest
    is_claim_refuted: bool = False
    #: GPU seconds left of a job that does not tell, as Gittins' index over what like jobs have taken
    likely_gpu_s: float | None = None
    #: 0 to 1: how far jobs of the same user bear `likely_gpu_s` out; strangers' alone do not
    likely_evidence: float = 1.0


@dataclass(frozen=True)
class JobRequest:
    """One job of the problem. progress.remaining / goodput is the seconds left on a Cell."""

    job_id: int
    cells: tuple[Cell, ...]
    #: goodput of each Cell over that of the size asked for
    relative: Sequence[float]
    _: KW_ONLY
    weight: float = 1.0
    submit_s: float = 0.0
    node_filter: NodeFilter = ANY_NODE
    needs: NodeNeeds = GPUS_ONLY
    #: the most nodes that it may be on
    max_nodes: int | None = None
    #: index of the Cell of the size asked for; None if there is none
    requested_cell: int | None = None
    #: index of the Cell that it runs with, on `nodes`; None: it waits
    current: int | None = None
    nodes: tuple[str, ...] = ()
    #: in [0, 1]; multiplies the goodput of every change of a running job; 0 forbids changes
    discount: float = 1.0
    #: Cells that placement has refused in this epoch; staying in place is never banned
    banned_cells: frozenset[int] = frozenset()
    #: seconds since it was first submitted, with `restarts` so far
    age_s: float = 0.0
    restarts: int = 0
    progress: Progress = Progress()
    #: in the time of Problem.now_s
    deadline_s: float | None = None
    #: Slurm's account
    account: str = ""
    #: cost of its next restart, and of those so far; Cells that may not cost it one are among `banned`
    restart: RestartBudget = NO_COST
    #: Cells that the running job can reach at restart.live_cost
    live_cells: frozenset[int] = frozenset()
    #: jobs wait for GPUs: those that a running one has beyond its requested size are theirs if its RestartShare pays for one restart
    others_wait: bool = False
    #: restart cost over the sequences left (s/sequence; 0: not known): near its end a restart costs a job too much
    restart_drag: float = 0.0
    #: the factor in `weight` for how little is left to do (1: none)
    length_factor: float = 1.0
    #: goodput that this job should get before others gain anything (0: none)
    needed_goodput: float = 0.0
    #: the same after a change of a running job, whose restart takes time
    need_after_restart: float = 0.0
    #: the reason for `need`, for `explain`
    need_why: str = ""
    #: it runs, and may be stopped for others; the value of that is utility.stop_value
    stoppable: bool = False
    #: the same where it is stopped for a job that is due alone, although it has spent its RestartShare
    stops_when_due: bool = False
    #: seconds for which it is due if it has no GPUs; below 0: it may wait for so long yet
    overdue_s: float = -math.inf
    #: seconds for which it holds GPUs if it has them: until it ends, or may be stopped for one that is due
    holds_s: float = math.inf
    #: limits of this job alone; Cells beyond them are among `banned`
    own_limits: tuple[UsageLimit, ...] = ()
    #: nodes that it takes last
    shun: frozenset[str] = frozenset()
    #: times that its slowest node makes its steps longer, as long as it stays there
    node_slowdown: float = 1.0
    #: Unix id of its user
    uid: int = 0

    def change_cost(self, index: int) -> RestartCost:
        """Return the expected cost of a change of the running job to its Cell `index`."""
        live = self.restart.live_cost if index in self.live_cells else None
        return self.restart.cost if live is None else live

    @property
    def live_share(self) -> float:
        """Return the cost of a change to one of `live_cells` over that of the others."""
        live, usual_s = self.restart.live_cost, self.restart.cost.mean_s
        return live.mean_s / usual_s if live is not None and usual_s > 0 else 1.0

    def gpus(self, index: int | None) -> int:
        """Return the number of GPUs of the job's Cell `index`, or 0 for None: it waits."""
        return 0 if index is None else self.cells[index].shape.gpus


@dataclass(frozen=True)
class Objective:
    """The objective: the sum over jobs of weight x utility(normalised goodput x restart factor), and what bounds it.

    | term | is | off |
    |---|---|---|
    | goodput | utility(s) of s = goodput / `reference`: (s^p - 1)/p (log s at p = 0), or Sia's sign(p) s^p with `form` "sia" | |
    | waiting | "power": utility as at `wait_share` of the smallest Cell; "sia": -`wait_cost` (Sia's lambda) | |
    | restart | s of a change is multiplied by utility.restart_factor | RestartCost 0 |
    | weight | JobRequest.weight: directive x QOS x Slurm priority | weight 1 |
    | short | and x (median time left / own)^ShortFirst within [1/3, 3], at an equal share | ShortFirst 0 |
    | need | `need_bonus`, more than all others can gain together, for a Cell that reaches `needed_goodput` (deadlines, fairness) | 0 |
    | growth | a running job's GPUs at most `max_growth` times the present ones | 0 |
    | first start | a waiting job's GPUs at most `first_start` times those asked for, while unmeasured (first_start.py) | 0 |

    p -> -inf is max-min; at the lowest p, -3, a gain of a job that is 20 % worse off counts 2.4 times as much.
    """

    #: p
    exponent: float = 0.0
    max_growth: float = 0.0
    first_start: float = 0.0
    wait_share: float = 0.1
    #: "power" or "sia"
    form: str = "power"
    wait_cost: float = 1.1
    #: "asked" (the size asked for), "smallest" (Sia: per GPU of the smallest Cell) or "share" (Pollux: an equal share)
    reference: str = "asked"
    need_bonus: float = 0.0


class Rate(NamedTuple):
    """A job's use of a limit: `per_job` + nodes x the larger of `per_node` and `per_gpu` x GPUs on each node."""

    per_job: float = 0.0
    per_node: float = 0.0
    per_gpu: float = 1.0
    #: counts GPUs of this type alone; empty: of any
    gpu_type: str = ""
    #: GPUs of a whole node, where a job that has a part of one node may share it: it counts as that part. 0: it counts whole
    whole_node_gpus: int = 0
    #: on one of its nodes, however many it has
    one_node: bool = False

    def times(self, factor: float) -> Rate:
        """Return the rate times `factor`, such as the rate of minutes for so many minutes."""
        return self._replace(
            per_job=self.per_job * factor, per_node=self.per_node * factor, per_gpu=self.per_gpu * factor
        )

    def count_use(self, gpu_type: str, nodes: int, gpus_per_node: int) -> float:
        if self.gpu_type and gpu_type != self.gpu_type:
            return 0.0
        each = max(self.per_node, self.per_gpu * gpus_per_node)
        if nodes == 1 and gpus_per_node < self.whole_node_gpus:
            each *= gpus_per_node / self.whole_node_gpus
        return self.per_job + (1 if self.one_node else nodes) * each


GPUS = Rate()


@dataclass(frozen=True)
class UsageLimit:
    """A limit on what the jobs that it binds use together: GPUs as a rule."""

    #: "account" or "partition"; of Slurm's own limits, whose they are ("account", "user", "qos")
    kind: str
    name: str
    #: for the jobs of this problem
    most: float
    #: for all jobs, as the admin set it
    configured_limit: float = 0
    _: KW_ONLY
    unit: str = "GPUs"
    #: Slurm's name for it (GrpTRES); empty: of the settings
    slurm: str = ""
    #: the use must be `most` or more
    at_least: bool = False
    #: rates of the jobs that it binds, by job id; None: GPUs of those that kind and name say
    rates: Mapping[int, Rate] | None = None
    #: for a limit of one job alone: the use of any such job
    job_rate: Rate | None = None

    def rate(self, job: JobRequest) -> Rate | None:
        """Return what `job` uses by size, or None where it is not bound."""
        if self.rates is not None:
            return self.rates.get(job.job_id)
        if self.job_rate is not None:
            return self.job_rate
        inside = (
            self.name == job.account if self.kind == "account" else self.name in job.node_filter.partition.split(",")
        )
        return GPUS if inside else None

    def binds(self, job: JobRequest) -> bool:
        return self.rate(job) is not None

    def use(self, job: JobRequest, index: int | None) -> float:
        """Return how much of the limit the job uses on one of its Cells (None: it waits)."""
        rate = None if index is None else self.rate(job)
        if rate is None or index is None:
            return 0.0
        shape = job.cells[index].shape
        return rate.count_use(shape.gpu_type, shape.nodes, shape.gpus_per_node)


@dataclass(frozen=True)
class Problem:
    """One epoch's allocation: the jobs, the nodes and the objective."""

    jobs: tuple[JobRequest, ...]
    nodes: tuple[NodeCapacity, ...]
    terms: Objective = Objective()
    _: KW_ONLY
    now_s: float = 0.0
    #: seconds that any change of a running job costs
    restart_cost_s: float = 0.0
    #: running jobs never exceed them by staying as they are
    limits: tuple[UsageLimit, ...] = ()
    #: CPUs and memory that nodes have together, where these are scarce: of allocations that are placed afterwards
    room: tuple[UsageLimit, ...] = ()
    #: not None: at most one job that spans nodes on a node; these nodes are spanned by jobs outside of the problem
    spanned_nodes: frozenset[str] | None = None
    #: policies that preempt may stop any running job; the others stop those that are `stoppable`
    may_stop: bool = False
    #: the start of jobs' waits, and how long they lately waited for near nodes; kept for Dally alone
    delays: DelayHistory = NO_DELAYS

    @property
    def bounds(self) -> tuple[UsageLimit, ...]:
        """Return all rows besides GPUs of an allocation that is placed afterwards."""
        return (*self.limits, *self.room)

    def capacity(self) -> dict[str, int]:
        """Return the number of GPUs to hand out, by type."""
        return count_gpus(self.nodes)


def count_gpus(nodes: Iterable[NodeCapacity]) -> dict[str, int]:
    """Return the number of GPUs that `nodes` hand out, by type."""
    total: dict[str, int] = {}
    for node in nodes:
        total[node.gpu_type] = total.get(node.gpu_type, 0) + node.free
    return total


@dataclass(frozen=True)
class Allocation:
    """A policy's answer. A running job whose choice is its current Cell stays on its nodes, unless its index is in `moved_jobs`."""

    #: index of each job's Cell; None: it waits, or is stopped if it runs
    choice: tuple[int | None, ...]
    moved_jobs: frozenset[int]
    #: sum of the jobs' values
    objective: float
    #: no allocation is better; infinite where the policy knows no bound
    upper_bound: float
    #: proven, to the solver's tolerance
    optimal: bool

    @property
    def gap(self) -> float:
        """Return (upper_bound - objective) / max(1, |objective|)."""
        return max(0.0, self.upper_bound - self.objective) / max(1.0, abs(self.objective))

    def assignments(self, problem: Problem) -> Iterator[tuple[int, Cell, bool]]:
        """Yield (index of the job, its Cell, whether it stays on its nodes) of every job that has a Cell."""
        for index, (job, choice) in enumerate(zip(problem.jobs, self.choice, strict=True)):
            if choice is not None:
                yield index, job.cells[choice], choice == job.current and index not in self.moved_jobs


class Policy(Protocol):
    """A chooser of Cells. Pure: the same problem gives the same answer, except where a time limit is reached."""

    #: it stops running jobs (choice None), `stoppable` or not
    preempts: bool = False
    #: each job gets the size it asked for
    sizes_fixed: bool = False
    #: its rule in words, for `explain`; empty where the objective is the explanation
    rule: str = ""
    #: it goes by how long jobs have waited for near nodes (Problem.delays)
    observes_delays: bool = False

    def allocate(self, problem: Problem) -> Allocation: ...
