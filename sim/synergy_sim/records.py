"""Records of the simulator: what a trace says, what truly happens, and what came of it. Times are simulated seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from synergy_core.records import Cluster, ModelSpec, Node, Plan, Shape

from synergyd.links.model import Topology

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PlacedGpus:
    """GPUs of one type that a job holds: how many on each node, in the order in which they were given."""

    gpu_type: str
    per_node: tuple[int, ...]

    @property
    def gpus(self) -> int:
        return sum(self.per_node)


def place_shape(shape: Shape) -> PlacedGpus:
    """Return a shape as GPUs on nodes."""
    return PlacedGpus(shape.gpu_type, (shape.gpus_per_node,) * shape.nodes)


@dataclass(frozen=True)
class TrainingSpeed:
    """A job's true pace: `rate` units of progress a second, `step_s` seconds an optimizer step.

    `noise_scale` is the true gradient noise scale in sequences at this point of the training, None where the trace has
    none (then the batch is fixed). `sync_s` is the part of `step_s` in which it sends between nodes, with its links to itself;
    `exchange_s` is the part in which it sends over any link.
    """

    rate: float
    step_s: float
    noise_scale: float | None
    sync_s: float = 0.0
    exchange_s: float = 0.0


class Truth(Protocol):
    """Ground truth of one job. Training passes through `stages` stages; within one the pace on given GPUs is constant.

    `unit` sequences (at the smallest batch `low`) are one unit of progress. The scheduler never sees this; it sees
    reports. Plans may use batches in [low, high].
    """

    @property
    def low(self) -> int: ...
    @property
    def high(self) -> int: ...
    @property
    def unit(self) -> float: ...
    @property
    def stages(self) -> int: ...

    def end(self, stage: int) -> float:
        """Return the progress (units) at which `stage` (from 0) is over."""
        ...

    def executed_plan(self, plan: Plan) -> Plan:
        """Return the plan as the job runs it: a micro-batch that does not fit a GPU is worked off in more passes."""
        ...

    def pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        """Return the job's pace, or None where the plan can't run there."""
        ...

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        """Return the plans worth looking at on `shape` (with that batch, if one is given), for oracles and bounds."""
        ...

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        """Return (stages,) the highest rate of those plans in each stage; None where nothing can run."""
        ...


@dataclass(frozen=True)
class Costs:
    """Seconds without training.

    A resize costs `checkpoint_s` + `requeue_s` + `start_s`; GPUs are held in the first (the old ones) and the last (the
    new ones), and for `end_s` after a job's last step. A job that waited starts `grant_s` after the decision; its GPUs
    idle till then. A change without a requeue costs `checkpoint_s` + `live_s`; None: there is none.
    """

    first_start_s: float = 30.0
    checkpoint_s: float = 8.0
    requeue_s: float = 2.0
    start_s: float = 20.0
    end_s: float = 0.0
    grant_s: float = 0.0
    live_s: float | None = None

    @property
    def resize_s(self) -> float:
        return self.checkpoint_s + self.requeue_s + self.start_s


@dataclass(frozen=True)
class TraceJob:
    """One job of a trace. `gpus` and `batch` are what its user asks for; `where` is file:line, for messages."""

    name: str
    kind: str
    submit_s: float
    gpus: int
    batch: int
    truth: Truth
    where: str = ""
    gpu_type: str = ""
    model: str | None = None  # as a directive names it; None: a plain data-parallel job
    batch_fixed: bool = False  # its user lets nobody change the batch
    #: what happens where it runs as its user asked, with its user's own plan; None: as `truth` says, which has the best plan there
    requested_truth: Truth | None = None
    min_gpus: int | None = None  # fewer than its user lets it have; None: any
    max_gpus: int | None = None
    max_micro_batch: int | None = None  # as its user knows it
    deadline_s: float | None = None
    weight: float = 1.0
    spec: ModelSpec | None = None  # the model itself, where `model` is no name that a directive could give
    plan: Plan | None = None  # the plan that its user runs it with at the size asked for; None: data-parallel
    plan_fixed: bool = False  # its user lets nobody change tp, pp and micro-batch of `plan`
    reshard: bool | None = None  # whether its checkpoint takes other degrees; None: not said
    can_run: Callable[[Shape], bool] | None = None  # where it fits; None: everywhere
    #: where it is expected to fit, as far as is known before it runs: elsewhere it is never started, and where it does not fit it runs
    #: out of memory; None: `can_run` is known
    expected_fit: Callable[[Shape], bool] | None = None
    nodes: int = 0  # nodes that its user asks for, with equal GPUs on each; 0: as few as can be
    resize: bool = True  # its user lets it be resized
    comm: tuple[str, ...] = ()  # ways in which its replicas may exchange less, see exchanging_truth.py
    costs: Costs | None = None  # the job's own; None: the scenario's
    uid: int = 0  # its user's id
    plain: bool = False  # Synergy does not decide about it: Slurm starts it, at the size asked for
    time_limit_s: float | None = None  # as Slurm's backfill goes by; None: no limit


@dataclass(frozen=True)
class Outage:
    """A node that can't be used from `start_s` to `end_s`: its jobs lose what they did since their last checkpoint."""

    node: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Scenario:
    """All inputs of a run except the policy."""

    jobs: tuple[TraceJob, ...]
    cluster: Cluster
    costs: Costs = Costs()
    epoch_s: float = 60.0
    whole_seconds: bool = False  # stages end at whole seconds, as in a simulator that counts them
    outages: tuple[Outage, ...] = ()
    checkpoint_every_s: float = 1800.0  # of jobs that nobody asks; what a node failure can cost
    lengths_known: bool = True  # jobs' reports say how far they are, of how much
    seed: int = 0
    topology: Topology | None = None  # the links that jobs share; None: each has them to itself

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.cluster.nodes)


def build_cluster(groups: dict[str, tuple[int, int]]) -> Cluster:
    """Build the cluster from GPU type -> (nodes, GPUs a node)."""
    nodes = [
        Node(f"{gpu_type}-{i:0{len(str(count - 1))}d}", gpu_type, each)
        for gpu_type, (count, each) in groups.items()
        for i in range(count)
    ]
    return Cluster(tuple(nodes))


def requested_shape(job: TraceJob, cluster: Cluster) -> Shape | None:
    """Return the size asked for on the nodes asked for, or on the fewest that can share it equally.

    None where the cluster can't hold it.
    """
    types = [job.gpu_type] if job.gpu_type else list(cluster.gpu_types())
    for gpu_type in types:
        sizes = [node.gpus for node in cluster.nodes if node.gpu_type == gpu_type]
        for nodes in [job.nodes] if job.nodes else range(1, len(sizes) + 1):
            each, rest = divmod(job.gpus, nodes)
            if not rest and sum(size >= each for size in sizes) >= nodes:
                return Shape(gpu_type, nodes, each)
    return None


def requested_plan(job: TraceJob) -> Plan:
    """Return the plan of the size and batch that the job's user asked for; a batch that does not divide is rounded up."""
    if job.plan is not None:
        return job.plan
    micro = -(-job.batch // job.gpus)
    return Plan(dp=job.gpus, micro_batch=micro, global_batch=job.gpus * micro, zero_stage=0)


def with_live_changes(scenario: Scenario, share: float) -> Scenario:
    """Return the scenario with changes of whole nodes, or of the plan, that need no requeue.

    Processes then start in `share` of a start's time.
    """

    def live(costs: Costs) -> Costs:
        return replace(costs, live_s=share * costs.start_s)

    jobs = tuple(replace(job, costs=live(job.costs)) if job.costs else job for job in scenario.jobs)
    return replace(scenario, jobs=jobs, costs=live(scenario.costs))


@dataclass(frozen=True)
class Occupancy:
    """One incarnation: GPUs a job held from `start_s` to `end_s`, on `nodes` (name, GPUs)."""

    job: int
    start_s: float
    end_s: float
    nodes: tuple[tuple[str, int], ...]

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.nodes)


@dataclass(frozen=True)
class JobResult:
    """One job's outcome. `idle_s`: seconds in which it held GPUs without training (starts, checkpoints)."""

    job: TraceJob
    start_s: float
    finish_s: float
    restarts: int
    gpu_s: float
    idle_s: float

    @property
    def jct_s(self) -> float:
        return self.finish_s - self.job.submit_s


@dataclass(frozen=True)
class SimulatedRun:
    """A whole simulation, in which every job finished.

    `goodput` are (time, cluster's goodput in whole-GPU equivalents), `usual_work_s`: see World.
    """

    policy: str
    scenario: Scenario
    jobs: tuple[JobResult, ...]
    occupancies: tuple[Occupancy, ...]
    decisions_s: tuple[float, ...] = ()
    wall_s: float = 0.0
    goodput: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    usual_work_s: float = 0.0
