"""Records that all rooms share. Frozen, without behaviour beyond what can be derived from their own fields.

Times are seconds since 1970 (`_s`), memory is bytes, GPU counts are whole GPUs. Nothing here imports a folder, and only the
standard library is used, so that a compute node can load this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from synergy_core.accepts import NOTHING_MORE, Accepts
from synergy_core.exchange import exchange_today, kinds_today
from synergy_core.field_marks import ADDED_AFTER_0_1
from synergy_core.kernels import Kernels
from synergy_core.node_needs import GPUS_ONLY, NO_ROOM, NodeNeeds, Room
from synergy_core.reasons import Reason, format_reasons
from synergy_core.restarts import RestartTimes
from synergy_core.shared_links import Sharing


class JobState(StrEnum):
    """Slurm's base states, as far as Synergy tells them apart."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    SUSPENDED = "SUSPENDED"
    DONE = "DONE"  # completed, failed, cancelled, timed out: anything that will not run again


class Action(StrEnum):
    """The action that an epoch decides for one job."""

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
    continues: int = 0  # times that it goes on with a new time limit where one ends
    notify: tuple[str, ...] = ()  # the events that its owner wants mail of (synergy_core.notice.EVENTS)
    #: how a script with a loop of its own keeps its batch and resumes (synergy_launch.auto.own_loop)
    loop: str = field(default="", metadata=ADDED_AFTER_0_1)
    adapt: bool = False  # Synergy chooses the range of its batch, within the bound that the admin sets
    #: after a loss spike the run may go back and leave out the examples that led to it (synergy_launch.agent.loss_spike)
    skip_spikes: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: kinds of less communication that it allows (synergy_core.exchange)
    comm: tuple[str, ...] = field(default=(), metadata={"today": kinds_today})


@dataclass(frozen=True)
class ModelSpec:
    """A transformer as the performance and memory models see it."""

    #: the preset's name, or the job's own
    name: str
    #: transformer layers
    layers: int
    #: width of the hidden state
    hidden: int
    #: attention heads
    heads: int
    #: heads of keys and values
    kv_heads: int
    #: width of one MLP branch (with experts: of one expert)
    ffn: int
    #: vocabulary size
    vocab: int
    #: sequence length
    seq: int
    #: the MLP has a gate (SwiGLU)
    gated: bool = False
    #: input and output embedding are shared
    tied_embeddings: bool = True
    #: experts per layer; 0: a dense model
    experts: int = 0
    #: experts per token
    top_k: int = 0
    #: width of the shared expert; 0: none
    shared_ffn: int = 0
    #: one layer in this many has experts
    moe_every: int = 1
    #: width of a head; 0: hidden / heads
    head_dim: int = 0
    #: false: an encoder (full scores)
    causal: bool = True
    #: dense layers before the first with experts
    dense_layers: int = 0
    #: MLP width of dense layers; 0: ffn
    dense_ffn: int = 0
    #: compressed width of keys and values (multi-head latent attention); 0: not compressed
    kv_lora: int = 0
    #: compressed width of queries; 0: not compressed
    q_lora: int = 0
    #: width for rotary positions of each head, besides head_dim (multi-head latent attention)
    rope_dim: int = 0
    #: width of a value head (multi-head latent attention)
    value_dim: int = 0
    #: layers for multi-token prediction
    mtp_layers: int = 0


#: the values of Plan.cp_comm
CP_COMMS = ("p2p", "a2a")


@dataclass(frozen=True, slots=True)  # there are millions of them
class Plan:
    """The way in which a job uses its GPUs.

    `tp * pp * cp * dp` is the GPU count and `global_batch % (dp * micro_batch) == 0`.
    """

    #: tensor-parallel degree
    tp: int = 1
    #: pipeline-parallel degree
    pp: int = 1
    #: data-parallel degree
    dp: int = 1
    #: sequences of a micro-batch
    micro_batch: int = 1
    #: sequences of a step
    global_batch: int = 1
    #: activations computed again: none, selective (the attention's core), full, or modules of a layer, joined by +
    recompute: str = "none"
    #: Megatron's sequence parallelism
    sequence_parallel: bool = False
    #: what data-parallel ranks shard: 0 nothing, 1 the optimizer (Megatron's distributed optimizer), 2 also gradients, 3 also
    #: parameters (FSDP)
    zero_stage: int = 1
    #: virtual pipeline stages per GPU
    vpp: int = 1
    #: context-parallel degree
    cp: int = 1
    #: expert-parallel ranks, a divisor of dp
    ep: int = 1
    #: bf16, fp16, fp32 or fp8
    precision: str = "bf16"
    #: the exchange of data-parallel replicas (synergy_core.exchange): exact, local:8, compressed:bf16, ...
    exchange: str = field(default="exact", metadata={**ADDED_AFTER_0_1, "today": exchange_today})
    #: number of layers of each virtual stage, from the first, that full recompute covers; 0: all
    recompute_layers: int = field(default=0, metadata=ADDED_AFTER_0_1)
    #: ranks that shard the parts of `zero_stage`, a divisor of dp * cp (HSDP, MiCS); 0: all
    shard: int = field(default=0, metadata=ADDED_AFTER_0_1)
    #: exchange of context-parallel ranks: p2p (a ring of keys and values) or a2a (heads for tokens, as in DeepSpeed-Ulysses)
    cp_comm: str = field(default="p2p", metadata=ADDED_AFTER_0_1)

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def shard_ranks(self) -> int:
        """Return the number of ranks that share what `zero_stage` says."""
        return self.shard or self.dp * self.cp

    @property
    def distributed_optimizer(self) -> bool:
        return self.zero_stage >= 1

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches each data-parallel replica works through in one step."""
        return self.global_batch // (self.dp * self.micro_batch)


# numbers of a plan for which 0 means something
MAY_BE_0 = frozenset(("zero_stage", "recompute_layers", "shard"))


@dataclass(frozen=True, slots=True)  # there are millions of them
class Shape:
    """A request for GPUs: nodes of one type with the same number of GPUs each."""

    #: its name in Slurm
    gpu_type: str
    #: nodes
    nodes: int
    #: whole GPUs per node
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def is_inside(self, job_shape: Shape, nodes: int) -> bool:
        """Return whether this shape fits into `job_shape`, the GPUs that a job holds, on at most `nodes` of its nodes."""
        return (
            self.gpu_type == job_shape.gpu_type
            and self.nodes <= nodes
            and self.gpus_per_node <= job_shape.gpus_per_node
        )


@dataclass(frozen=True, slots=True)  # there are millions of them
class Cell:
    """One column of the allocation (Crius): a shape and a pipeline degree, with the best plan found for it."""

    #: the GPUs
    shape: Shape
    #: the best plan found on them
    plan: Plan
    #: sequences per second
    throughput: float
    #: statistical efficiency at the plan's global batch, times that of its exchange: 0 to 1
    efficiency: float
    #: throughput x efficiency x the probability that the memory suffices
    goodput: float
    #: step time
    step_s: float
    #: peak memory of a GPU
    memory_bytes: int
    #: the prediction's relative uncertainty, one sigma
    uncertainty: float = 0.0
    #: part of a step in which it sends between nodes, on links of its own (0: nothing, or not known)
    sync_s: float = 0.0


@dataclass(frozen=True)
class Node:
    """A node as Slurm shows it, once for each type of GPUs that it has.

    `gpus_used` counts GPUs given to any job, Synergy's or not; `used` likewise. `room` None: its resources besides GPUs
    are not known, and count as plenty.
    """

    name: str
    gpu_type: str
    gpus: int
    gpus_used: int = 0
    up: bool = True  # may take new jobs: not down, drained, failing or in maintenance
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    reason: str = ""
    leaf: str = ""  # its leaf switch, where Slurm knows the topology
    room: Room | None = None
    used: Room = NO_ROOM
    threads_per_core: int = 1  # 1 too where Slurm gives out single threads
    tmp_disk_mib: int = 0
    wakeable: bool = False  # powered down or powering up: Slurm lets jobs have it, which begin when it is up
    waking: bool = False  # it powers up already
    wake_s: float = 0.0  # a wakeable node: seconds until it is expected to be up
    reserved: bool = False  # in a reservation that has begun: for its jobs alone
    leaked: int = 0  # GPUs that Slurm counts as in use and no job holds


@dataclass(frozen=True)
class Cluster:
    """The nodes of a cluster that have GPUs."""

    nodes: tuple[Node, ...]

    @cached_property
    def kinds(self) -> tuple[tuple[str, int, bool, tuple[str, ...], int], ...]:
        """Return (GPU type, GPUs, up or woken for a job, partitions, number of such nodes), those with GPUs only, sorted."""
        counts = Counter((n.gpu_type, n.gpus, n.up or n.wakeable, n.partitions) for n in self.nodes if n.gpus > 0)
        return tuple(sorted((*kind, count) for kind, count in counts.items()))

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Return the nodes by name; for a node with several types of GPUs, its first."""
        return {n.name: n for n in reversed(self.nodes)}

    @cached_property
    def keys(self) -> dict[tuple[str, str], str]:
        """Return (node, GPU type) -> a name of its own for the second and further types of a node; no other nodes."""
        first = {n.name: n.gpu_type for n in reversed(self.nodes)}
        return {(n.name, n.gpu_type): f"{n.name}:{n.gpu_type}" for n in self.nodes if first[n.name] != n.gpu_type}

    def node(self, name: str, gpu_type: str) -> Node | None:
        """Return the node by its name, as it is seen for one of its types of GPUs."""
        if (name, gpu_type) in self.keys:
            return next(n for n in self.nodes if (n.name, n.gpu_type) == (name, gpu_type))
        return self.by_name.get(name)

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
    held: bool = False  # priority 0: held by the user, an admin, or (`launch_failed`) by Slurm after a failed start
    paused: bool = False  # `synergyctl pause`: Synergy leaves it as it is
    admin_comment: str = ""
    directive: Directive | None = None
    directive_error: str = ""
    fixed: str = ""
    account: str = ""
    qos: str = ""
    features: str = ""  # its nodes must have them (--constraint)
    needs: NodeNeeds = GPUS_ONLY
    nodelist: tuple[str, ...] = ()  # nodes that it must have (--nodelist)
    exclude: tuple[str, ...] = ()  # nodes that it must not have (--exclude)
    open_partitions: str = ""  # those of `partition` that would take it, where they are not all
    max_nodes: int | None = None  # the limit of its partitions
    priority: float = 0.0  # Slurm's, of a pending job
    gives_back: str = ""  # why it must give GPUs back, if it runs on more than it may keep
    keeps: tuple[str, ...] = ()  # nodes that it keeps then; empty: any of its own
    launch_failed: bool = False
    avoid: tuple[str, ...] = ()  # nodes that it may not have for now: its last start failed there
    time_limit_s: float | None = None  # as Slurm has it now
    time_left_s: float | None = None  # until its time limit ends it for good
    cut_s: float | None = None  # when a reservation takes its nodes while it runs, or its own ends
    cut_why: str = ""  # the reservation, in words
    free_again_s: float | None = None  # when a reservation that takes its nodes ends
    reservation: str = ""  # its reservation (--reservation)
    within: tuple[str, ...] = ()  # nodes of that reservation, sorted: it may have no others
    barred: tuple[str, ...] = ()  # nodes that it must not start on, for reservations
    barred_why: str = ""  # sentences, each with a blank before it
    slurm_name: str = ""  # given where it is not the id: 123_4, 123_[5-9], 123+1
    placed_by_slurm: bool = False  # its nodes are Slurm's choice, a component's of a heterogeneous job
    lost: tuple[str, ...] = ()  # nodes that it lost while it ran; it waits since
    lost_shape: Shape | None = None  # the shape that it ran on before
    shun: tuple[str, ...] = ()  # nodes that it takes last: it hung there, or they hold its other nodes up
    slowed: float = 1.0  # its slowest node's factor: times that its ranks there take for the same work
    idle_s: float | None = None  # for so long it has used next to no CPU time and no GPU, and made no step
    batches: tuple[int, int] | None = None  # range of its batch, where that is not its directive's
    batch_cap: int = 0  # the largest batch allowed, since its loss did worse above it; 0: no such bound
    own_plan: bool = False  # it runs as its script says: no plan of Synergy's is applied, and none is shown
    #: why its replicas exchange every gradient, whatever its directive allows; "": nothing keeps them from less
    exact: str = ""

    @property
    def batch_range(self) -> tuple[int, int] | None:
        """Return the (low, high) sequences that the job's batch may have; None: it stays."""
        return self.batches or (self.directive.global_batch if self.directive else None)


@dataclass(frozen=True)
class Measurement:
    """The step time that a plan had on a shape, smoothed over its `samples` reports.

    `comm_efficiency`: an example's worth relative to an exchange of every gradient, smoothed likewise; None: not
    measured.
    """

    plan: Plan
    shape: Shape
    step_s: float
    samples: int = 1
    comm_efficiency: float | None = None


@dataclass(frozen=True)
class Profile:
    """The measurements of one job, or of one model on one GPU type, from reports.

    `speed` and `memory` are measured over predicted (1.0 = the model was right), smoothed; `samples` counts the reports
    behind them. `noise_scale` is the gradient noise scale in sequences (McCandlish et al. 2018, eq. 2.8), None if never
    reported: then the batch stays fixed.
    """

    speed: float = 1.0
    memory: float = 1.0
    samples: int = 0
    noise_scale: float | None = None
    resharding: bool = False  # the launcher said that its checkpoint can change tp and pp
    model: ModelSpec | None = None  # as the running job reported it
    global_batch: int | None = None  # as the running job reported it
    measured: tuple[Measurement, ...] = ()  # the latest plans, oldest first: they refine the model's parameters
    accepts: Accepts = NOTHING_MORE  # as the launcher read it from the script's arguments
    restarts: tuple[RestartTimes, ...] = ()  # those of a program's jobs, the latest last
    rebatching: bool = False  # as the running job reported it: its batch can change between two steps
    base_batch: int | None = None  # likewise: the script's own, that its learning rate was tuned for
    kernels: Kernels | None = field(default=None, metadata=ADDED_AFTER_0_1)  # as its launcher or agent detected them


#: the event, and its words, that tell a job's name in Slurm
NAMED, CALLED = "Named", "Slurm calls it {}"


@dataclass(frozen=True)
class Alternative:
    """A Cell that the job did not get, for `explain`."""

    #: the cell that the job would have had
    cell: Cell
    #: why the job did not get it
    reason: Reason

    @property
    def why_not(self) -> str:
        """Return the reason as a sentence that names all jobs."""
        return format_reasons((self.reason,))


@dataclass(frozen=True)
class Decision:
    """One epoch's answer for one job; pure data, stored and shown as it is."""

    #: Slurm's job id
    job_id: int
    #: the action to take
    action: Action
    #: the cell that the job should have; null while it waits, and in `explain --json` where its script's own plan is used
    cell: Cell | None
    #: the job's new nodes
    node_names: tuple[str, ...]
    #: why, as data
    reasons: tuple[Reason, ...]
    #: predicted goodput relative to the requested size
    relative_goodput: float | None = None
    #: the best Cells that it did not get
    alternatives: tuple[Alternative, ...] = ()
    #: the job's terms of the objective, by name
    worth: tuple[tuple[str, float], ...] = ()
    #: finish-time fairness (Themis): above 1 if slower than on an equal share of the cluster
    fairness: float | None = None
    #: null if it shares no link, or LinkAware is off
    sharing: Sharing | None = None

    @property
    def why(self) -> str:
        """Return the reasons as sentences that name all jobs: for the job's story and an admin's eyes."""
        return format_reasons(self.reasons)


@dataclass(frozen=True)
class Snapshot:
    """Everything that an epoch's decision depends on.

    `jobs` holds Synergy's jobs (directive not None, or directive_error) only; other jobs' GPUs are in the nodes'
    `gpus_used`. `profiles` by job id.
    """

    time_s: float
    cluster: Cluster
    jobs: tuple[Job, ...]
    profiles: dict[int, Profile] = field(default_factory=dict)
    penalties: Mapping[str, float] = field(default_factory=dict)  # bad nodes' penalties, by name: 0 to 1
