"""Records that all rooms share. Frozen, without behaviour beyond what can be derived from their own fields.

Times are seconds since 1970 (`_s`), memory is bytes, GPU counts are whole GPUs. Nothing here imports another room, and
only the standard library is used, so that a compute node can load this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class JobState(StrEnum):
    """Slurm's base states, as far as Synergy tells them apart."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    SUSPENDED = "SUSPENDED"
    DONE = "DONE"  # completed, failed, cancelled, timed out: anything that will not run again


class Action(StrEnum):
    """What an epoch decides for one job."""

    KEEP = "keep"
    START = "start"
    RESIZE = "resize"
    WAIT = "wait"


@dataclass(frozen=True)
class Directive:
    """A job's `#SYNERGY` lines, checked. None means: not said, so Synergy chooses."""

    model: str | None = None
    min_gpus: int | None = None
    max_gpus: int | None = None
    gpu_types: tuple[str, ...] = ()
    global_batch: tuple[int, int] | None = None  # (low, high) sequences; low == high fixes it
    micro_batch: int | None = None
    max_micro_batch: int | None = None  # sequences a GPU of a job without a known model holds at once
    tp: int | None = None
    pp: int | None = None
    weight: float = 1.0
    checkpoint: str | None = None
    resize: bool = True
    reshard: bool | None = None  # None: the launcher's own knowledge decides
    deadline_s: float | None = None  # seconds since 1970


@dataclass(frozen=True)
class ModelSpec:
    """A transformer as the performance and memory models see it. `ffn` is one MLP branch's width (one expert's in MoE).

    `experts` 0 is a dense model; else every `moe_every`-th layer sends each token to `top_k` of them, besides a shared
    expert of width `shared_ffn` (0: none). `head_dim` 0 is hidden/heads. `causal` False: an encoder (full scores).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    gated: bool = False
    tied_embeddings: bool = True
    experts: int = 0
    top_k: int = 0
    shared_ffn: int = 0
    moe_every: int = 1
    head_dim: int = 0
    causal: bool = True


@dataclass(frozen=True, slots=True)  # there are millions of them
class Plan:
    """How a job uses its GPUs: degrees, micro-batch, global batch (sequences), recompute.

    `tp * pp * cp * dp` is the GPU count and `global_batch % (dp * micro_batch) == 0`. `vpp` are virtual pipeline stages
    a GPU, `ep` expert-parallel ranks (a divisor of dp), `zero_stage` what data-parallel ranks share out: 0 nothing, 1
    the optimizer (Megatron's distributed optimizer), 2 gradients too, 3 parameters too (FSDP).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    recompute: str = "none"  # none | selective | full
    sequence_parallel: bool = False
    zero_stage: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    precision: str = "bf16"  # bf16 | fp16 | fp32 | fp8

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def distributed_optimizer(self) -> bool:
        return self.zero_stage >= 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches each data-parallel replica works through in one step."""
        return self.global_batch // (self.dp * self.micro_batch)


@dataclass(frozen=True)
class Accepts:
    """Which degrees besides tp, pp and dp a job's script can be told; `precision` "" is the hardware's usual one."""

    vpp: bool = False
    cp: bool = False
    ep: bool = False
    precision: str = ""


NOTHING_MORE = Accepts()


@dataclass(frozen=True, slots=True)  # there are millions of them
class Shape:
    """GPUs as Slurm is asked for them: `nodes` nodes of one type with `gpus_per_node` GPUs on each."""

    gpu_type: str
    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)  # there are millions of them
class Cell:
    """One column of the allocation (Crius): a shape and a pipeline degree, with the best plan found for it.

    `goodput` = `throughput` (sequences/s) x statistical efficiency at the plan's global batch. `sync_s`: seconds of `step_s` in which
    it sends between nodes, with its links to itself (0: nothing, or not known).
    """

    shape: Shape
    plan: Plan
    throughput: float
    efficiency: float
    goodput: float
    step_s: float
    memory_bytes: int
    uncertainty: float = 0.0  # relative, one sigma
    sync_s: float = 0.0


@dataclass(frozen=True)
class Node:
    """A node as Slurm shows it. `gpus_used` counts GPUs given to any job, Synergy's or not."""

    name: str
    gpu_type: str
    gpus: int
    gpus_used: int = 0
    up: bool = True  # may take new jobs: not down, drained, failing or in maintenance
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    reason: str = ""
    leaf: str = ""  # its leaf switch, where Slurm knows the topology


def has_features(wanted: str, features: Container[str]) -> bool:
    """Does a node with `features` meet a --constraint of names joined by & or by |? ("" asks for none.)"""
    return not wanted or any(all(name in features for name in one.split("&")) for one in wanted.split("|"))


@dataclass(frozen=True)
class Cluster:
    """All nodes with GPUs."""

    nodes: tuple[Node, ...]

    @cached_property
    def kinds(self) -> tuple[tuple[str, int, bool, tuple[str, ...], int], ...]:
        """(GPU type, GPUs, up, partitions, number of such nodes), those with GPUs only, sorted."""
        counts = Counter((n.gpu_type, n.gpus, n.up, n.partitions) for n in self.nodes if n.gpus > 0)
        return tuple(sorted((*kind, count) for kind, count in counts.items()))

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {n.name: n for n in self.nodes}

    def gpu_types(self) -> tuple[str, ...]:
        return tuple(sorted({gpu_type for gpu_type, *_ in self.kinds}))


@dataclass(frozen=True)
class Job:
    """A Slurm job as one poll shows it.

    `shape` is what it holds (running) or asks for (pending); `asked` the shape of its sbatch line (the size it would
    have as a plain Slurm job); `node_names` only while it holds nodes. `begin_s` is Slurm's StartTime/eligible time
    while pending. `fixed` says why the job may not be resized ("" if it may).
    """

    job_id: int
    name: str
    user: str
    uid: int
    partition: str
    state: JobState
    reason: str
    submit_s: float
    start_s: float | None
    begin_s: float | None
    restarts: int
    shape: Shape
    asked: Shape
    node_names: tuple[str, ...] = ()
    held: bool = False  # priority 0: held by the user or an admin
    paused: bool = False  # `synergyctl pause`: Synergy leaves it as it is
    admin_comment: str = ""
    directive: Directive | None = None
    directive_error: str = ""
    fixed: str = ""
    account: str = ""
    qos: str = ""
    features: str = ""  # that its nodes must have (--constraint): names joined by & or by |
    priority: float = 0.0  # Slurm's, of a pending job


@dataclass(frozen=True)
class Measurement:
    """The step time that a plan had on a shape, smoothed over its `samples` reports."""

    plan: Plan
    shape: Shape
    step_s: float
    samples: int = 1


@dataclass(frozen=True)
class Profile:
    """What has been learnt of one job, or of one model on one GPU type, from reports.

    `speed` and `memory` are measured over predicted (1.0 = the model was right), smoothed; `samples` counts the
    reports behind them. `noise_scale` is the gradient noise scale in sequences (McCandlish et al. 2018, eq. 2.8), None if never
    reported: then the batch stays fixed.
    """

    speed: float = 1.0
    memory: float = 1.0
    samples: int = 0
    noise_scale: float | None = None
    resharding: bool = False  # the launcher said that its checkpoint can change tp and pp
    model: ModelSpec | None = None  # as the running job reported it
    global_batch: int | None = None  # as the running job reported it
    measured: tuple[Measurement, ...] = ()  # the latest plans, oldest first: what the model's parameters are refined by
    accepts: Accepts = NOTHING_MORE  # as the launcher read it from the script's arguments


@dataclass(frozen=True)
class Report:
    """One report of a job's agent, bounds already checked. Times of the job's own clock are not trusted."""

    job_id: int
    restarts: int
    step: int
    step_s: float | None = None
    loss: float | None = None
    tokens: int | None = None  # trained so far
    noise_scale: float | None = None
    peak_memory_bytes: int | None = None
    checkpoint_step: int | None = None
    checkpoint_requests: int = 0  # checkpoint requests of this incarnation that ended in a good checkpoint
    plan: Plan | None = None
    resharding: bool = False
    model: ModelSpec | None = None
    note: str = ""
    accepts: Accepts = NOTHING_MORE
    slow_nodes: tuple[str, ...] = ()  # that hold the job's other nodes up, by its ranks' own times
    stalled_s: float | None = None  # without a step for so long, which is longer than its steps take
    done: float | None = None  # examples trained so far of `total`
    total: float | None = None
    rebatching: bool = False  # it takes another batch of the same degrees between two steps, without a restart


@dataclass(frozen=True)
class Alternative:
    """A Cell that the job did not get, for `explain`."""

    cell: Cell
    why_not: str


@dataclass(frozen=True)
class SharedLink:
    """A link (`nic:NODE`: a node's own, `leaf:NAME`: a leaf switch's uplink) that a job shares with `jobs`."""

    link: str
    jobs: tuple[int, ...]


@dataclass(frozen=True)
class Sharing:
    """What the links that a job shares cost it: `slowdown` = expected step time over that with its links to itself; `worst` is
    the link that it waits for most, `links` all that it shares."""

    slowdown: float
    worst: str
    links: tuple[SharedLink, ...]


@dataclass(frozen=True)
class Decision:
    """One epoch's answer for one job; pure data, stored and shown as it is.

    `cell` is what the job should have (None while it waits); `node_names` the nodes it should have; `why` one or more sentences
    for the user; `relative_goodput` = goodput over that of the size asked for at sbatch (None if unknown). `worth` are the
    terms that the job adds to the objective, by name; `fairness` is its finish-time fairness (Themis), above 1 where it fares
    worse than on an equal share of the cluster. `sharing`: None where it shares no link, or nobody asked (LinkAware).
    """

    job_id: int
    action: Action
    cell: Cell | None
    node_names: tuple[str, ...]
    why: str
    relative_goodput: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    worth: tuple[tuple[str, float], ...] = ()
    fairness: float | None = None
    sharing: Sharing | None = None


@dataclass(frozen=True)
class Snapshot:
    """Everything an epoch's decision depends on. `jobs` holds Synergy's jobs (directive not None, or directive_error) only; other
    jobs' GPUs are in the nodes' `gpus_used`. `profiles` by job id."""

    time_s: float
    cluster: Cluster
    jobs: tuple[Job, ...]
    profiles: dict[int, Profile] = field(default_factory=dict)
