"""Reports of a job by its launchers and agent, as records.

Only the standard library is used, so that a compute node can load this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from synergy_core.accepts import NOTHING_MORE, Accepts
from synergy_core.field_marks import ADDED_AFTER_0_1
from synergy_core.kernels import Kernels
from synergy_core.node_check import NodeCheck
from synergy_core.reasons import Reason, format_reasons, nest_reason
from synergy_core.records import ModelSpec, Plan

#: a run that has so many steps behind it, or a checkpoint, is past its first ones
FIRST_STEPS = 10
#: times that a job comes back from a plan of Synergy's that failed within its first steps
MAX_RETURNS = 2
#: kinds of a Fault that say nothing of the run's plan
FAULTS_OF_NODES = ("disk", "gpu", "network")
#: losses by which a loss spike is judged, and steps for which explain shows it
SPIKE_WINDOW = 1000
#: what follows from a loss spike, each the code of a reason `spike-...`
SPIKE_ANSWERS = (
    *("new", "skipped", "not-allowed", "own-order", "no-checkpoint"),
    *("same-place", "too-often", "no-restart"),
)


@dataclass(frozen=True, kw_only=True)
class LossSpike:
    """A loss far above the run's own recent ones, or one that is not a number (synergy_launch.agent.loss_spike)."""

    #: its first step
    step: int
    #: the loss of that step; null: not a number
    loss: float | None = None
    #: mean of the losses before; null: too few
    usual: float | None = None
    #: what follows: `new` (not known yet), `skipped` or why the run goes on
    answer: str = "new"
    #: step of the checkpoint that the run was started again from
    checkpoint_step: int | None = None
    #: number, in the run's order, of the first example that it leaves out
    first_example: int | None = None
    #: number of the last one
    last_example: int | None = None

    def reason(self) -> Reason:
        """Return the spike and what follows from it, as a reason."""
        answer = Reason(
            f"spike-{self.answer}",
            {"checkpoint_step": self.checkpoint_step, "first": self.first_example, "last": self.last_example},
        )
        fields = {"step": self.step, "loss": self.loss, "usual": self.usual, "because": nest_reason(answer)}
        return Reason("loss-spike" if self.loss is not None else "loss-not-a-number", fields)

    def describe(self) -> str:
        """Return the spike and what follows from it, as a sentence."""
        return format_reasons((self.reason(),))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A cause of a run's end that neither its exit code nor its output shows, as the launcher of the node where it began saw it."""

    #: oom (host memory), disk (full), gpu, network (an adapter lost its link) or spike
    kind: str
    #: the run that it ended: the restarts inside the allocation before it
    run: int = 0
    #: where it began
    node: str = ""
    #: of kind gpu: number of the driver's error message; 0: none
    xid: int = 0
    #: of kind gpu: `DOMAIN:BUS:DEVICE`, as the driver's messages name it
    pci_address: str = ""
    #: of kind gpu: uncorrected ECC errors during the run
    ecc_errors: int = 0
    #: of kind disk
    folder: str = ""
    #: of kind disk: what is free for this user in that folder's file system; null: not known
    free_bytes: int | None = None
    #: of kind network: the adapter, and InfiniBand's port
    adapter: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: of kind spike: the run ended itself, to leave examples out
    spike: LossSpike | None = None

    def describe(self) -> str:
        """Return what happened, such as `GPU 0000:3b:00 failed with XID 79 on n2`."""
        if self.spike is not None:
            return self.spike.describe().removesuffix(".")
        where = f" on {self.node}" if self.node else ""
        if self.kind == "gpu":
            ecc = f"{self.ecc_errors} uncorrected ECC error{'s' * (self.ecc_errors != 1)}" if self.ecc_errors else ""
            what = " and ".join(filter(None, (f"XID {self.xid}" if self.xid else "", ecc)))
            return f"GPU{self.pci_address and f' {self.pci_address}'} failed{what and f' with {what}'}{where}"
        if self.kind == "disk":
            free = f" ({self.free_bytes / 2**30:.1f} GiB free)" if self.free_bytes is not None else ""
            return f"disk full: {self.folder or 'a folder'}{free}{where}"
        if self.kind == "network":
            return f"network adapter{self.adapter and f' {self.adapter}'} lost its link{where}"
        return f"out of host memory: the kernel killed a process of the run{where}"


@dataclass(frozen=True, kw_only=True)
class EarlyFailure:
    """A run that ended within its first steps, as its launcher saw it."""

    #: one of wire.report.FAILURES, and none of FAULTS, which releases before 0.3 would refuse
    kind: str
    #: exit code; 128 + the number of a signal
    code: int
    #: number of the run in this incarnation, from 1
    number: int
    #: its plan; null: the user's own arguments
    plan: Plan | None = None
    #: it restarted at once in the same allocation
    goes_on: bool = False
    #: the plan of that restart; null: the user's own arguments
    next_plan: Plan | None = None


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """The restarts of a job's processes inside its allocation, in this incarnation."""

    #: restarts so far, for any cause
    number: int = 0
    #: number of the last order that it followed; 0: none
    order: int = 0
    #: restarts after a crash
    crashes: int = 0
    #: exit code of the latest crash, 128 + the number of a signal; 0: the loss of a node
    code: int = 0
    #: step of the latest crash
    step: int = 0
    #: nodes other than the first can leave the run
    live: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: nodes can join the run
    grows: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: number of the last answered order to bring in nodes; 0: none
    joined: int = field(default=0, metadata=ADDED_AFTER_0_1)
    #: why these nodes can't be had; "": they have joined
    join_refusal: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: Slurm had granted these nodes: they, or the way to them, are at fault
    join_granted: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: kind of the latest crash, as `kind` of EarlyFailure; "": the loss of a node, or not known
    cause: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: nodes where the latest crash began, if known
    crash_nodes: tuple[str, ...] = field(default=(), metadata=ADDED_AFTER_0_1)
    #: lost nodes, without which the run goes on
    lost_nodes: tuple[str, ...] = field(default=(), metadata=ADDED_AFTER_0_1)

    def describe_crash(self) -> str:
        """Return what the latest crash was, such as `ended with exit code 137 (killed) on n2 at step 120`."""
        nodes = ", ".join(self.crash_nodes)
        if not self.code:
            return f"lost {nodes or 'a node'} at step {self.step}"
        cause = f" ({self.cause})" if self.cause not in ("", "exit") else ""
        return f"ended with exit code {self.code}{cause}{nodes and f' on {nodes}'} at step {self.step}"


@dataclass(frozen=True, kw_only=True)
class GpuActivity:
    """The activity of the job's GPUs on the reporting node, as its launcher samples it. Shares are 0 to 1.

    Recent means are over the GPUs and at most the last 30 samples, one each 10 s. `run_` names are means of the whole run.
    """

    #: sampled GPUs
    gpus: int
    #: samples in the recent means
    samples: int
    #: share of time in which a kernel ran (also if it waited for other ranks), recent mean
    utilisation: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: largest use of a GPU
    memory_bytes: int | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: watts per GPU, recent mean
    power_w: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: share of active SMs, recent mean; null before Hopper
    sm: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: share of time with active tensor cores, recent mean; null before Hopper
    tensor: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: time from this run's first sample to its latest
    run_s: float = 0.0
    #: share of time in which a kernel ran
    run_utilisation: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: watts per GPU
    run_power_w: float | None = field(default=None, metadata=ADDED_AFTER_0_1)


@dataclass(frozen=True)
class Report:
    """One report of a job's agent, within the checked bounds."""

    #: Slurm's job id
    job_id: int
    #: incarnation that reports
    restarts: int
    #: newest step
    step: int
    #: smoothed step time
    step_s: float | None = None
    #: the loss of the newest step
    loss: float | None = None
    #: tokens trained on so far
    tokens: int | None = None
    #: gradient noise scale, sequences
    noise_scale: float | None = None
    #: peak memory of a GPU
    peak_memory_bytes: int | None = None
    #: step of the newest good checkpoint
    checkpoint_step: int | None = None
    checkpoint_requests: int = 0  # completed checkpoint requests of this incarnation
    #: the plan that it runs with
    plan: Plan | None = None
    #: its checkpoint can change tp and pp
    resharding: bool = False
    #: as the training program describes it
    model: ModelSpec | None = None
    #: what the job says of itself
    note: str = ""
    #: degrees that its script accepts
    accepts: Accepts = NOTHING_MORE
    slow_nodes: tuple[str, ...] = ()  # nodes that delay the job's other nodes, by its ranks' own times
    stalled_s: float | None = None  # time without a step, if longer than a step takes
    done: float | None = None  # examples trained so far of `total`
    #: examples to train on in all
    total: float | None = None
    rebatching: bool = False  # its batch can change between two steps, without a restart
    #: this incarnation's latest failure within a run's first steps
    failure: EarlyFailure | None = None
    #: time since this run's training began
    trained_s: float | None = None
    #: duration of its first step
    first_step_s: float | None = None
    #: time for which the newest checkpoint stopped training
    checkpoint_s: float | None = None
    #: the size of the newest checkpoint
    checkpoint_bytes: int | None = None
    #: for each of `slow_nodes`, its ranks' own step time relative to their peers'
    slow_times: tuple[float, ...] = ()
    #: time for which its processes on this node have used almost no CPU time, and no GPU
    idle_s: float | None = None
    #: only the launcher has reported yet, not the training program
    silent: bool = False
    #: restarts inside its allocation; null: its launchers can't
    in_place: InPlace | None = None
    #: global batch in sequences for which the script's learning rate is tuned
    base_batch: int | None = None
    #: how its replicas exchange gradients (synergy_core.exchange); "": all in every step
    comm: str = ""
    #: an example's progress relative to that with every gradient exchanged; null: not measured
    comm_efficiency: float | None = None
    #: largest global batch in sequences: above it the loss was not a number
    batch_bound: int | None = None
    #: the reporting launcher, `STEP.NODE`: the numbers of its Slurm step and of the node in it
    launcher: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: its launcher takes checkpoint requests from answers to its reports; false: older than 0.3, only SIGUSR2
    listens: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: the latest checkpoint request passed on to its processes
    requested: int = field(default=0, metadata=ADDED_AFTER_0_1)
    #: its run is over: no process takes a checkpoint request before the next report
    ended: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: what its GPUs do; null if not sampled
    gpu_activity: GpuActivity | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: what ended its latest run that has ended, where that is known beyond its exit code
    fault: Fault | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: the latest loss spike
    spike: LossSpike | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: the kernels that its steps use; null: its launcher is older than 0.3, or nothing trains yet
    kernels: Kernels | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: checks of its nodes before a run, some at a time
    node_checks: tuple[NodeCheck, ...] = field(default=(), metadata=ADDED_AFTER_0_1)


def is_by_agent(report: Report) -> bool:
    """Return whether the training program itself speaks in the report: an agent in it, or Megatron-LM's log. Only these know their plan."""
    return report.plan is not None and not report.silent
