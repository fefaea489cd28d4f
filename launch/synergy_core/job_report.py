"""Reports of a job by its launchers and agent, as records.

Only the standard library is used, so that a compute node can load this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from synergy_core.accepts import NOTHING_MORE, Accepts
from synergy_core.field_marks import ADDED_AFTER_0_1
from synergy_core.records import ModelSpec, Plan

#: a run that has so many steps behind it, or a checkpoint, is past its first ones
FIRST_STEPS = 10
#: times that a job comes back from a plan of Synergy's that failed within its first steps
MAX_RETURNS = 2


@dataclass(frozen=True, kw_only=True)
class EarlyFailure:
    """A run that ended within its first steps, as its launcher saw it."""

    #: one of wire.report.FAILURES
    kind: str
    #: exit code: 128 + the signal where one ended it
    code: int
    #: the number of the run in this incarnation, 1 for the first
    number: int
    #: the plan of Synergy's that it ran with; null: the user's own arguments
    plan: Plan | None = None
    #: it was started again at once, in the same allocation
    goes_on: bool = False
    #: the plan it was started again with; null: the user's own arguments
    next_plan: Plan | None = None


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """The restarts of a job's processes inside its allocation, in this incarnation, as its launchers report them."""

    #: restarts so far, for whatever cause
    number: int = 0
    #: the daemon's order that was followed last; 0: none
    order: int = 0
    #: restarts after a crash
    crashes: int = 0
    #: exit code of the latest crash, 128 + the signal where one ended it; 0: it was the loss of a node
    code: int = 0
    #: step at which it came
    step: int = 0
    #: nodes other than the first can leave the run at an order
    live: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: it can bring nodes in that the job does not have, at an order
    grows: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: the order to bring nodes in that was answered last; 0: none
    joined: int = field(default=0, metadata=ADDED_AFTER_0_1)
    #: why these nodes can't be had; empty: they are there
    join_refusal: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: what the latest crash was: one of wire.report.FAILURES; empty: the loss of a node, or not known
    cause: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: nodes where the latest crash began, as far as that is known
    crash_nodes: tuple[str, ...] = field(default=(), metadata=ADDED_AFTER_0_1)
    #: nodes of the job that the run goes on without, because they were lost
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
    """The activity of the job's GPUs on the node that reports, as its launcher samples it. Shares are 0 to 1.

    Recent means are over the GPUs and over the last samples, at most 30, one each 10 s.
    """

    #: GPUs that are sampled
    gpus: int
    #: samples in the recent means
    samples: int
    #: share of the time in which a kernel ran, recent mean; one that waits for other ranks counts as running
    utilisation: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: bytes in use on the GPU that uses most
    memory_bytes: int | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: watts a GPU, recent mean
    power_w: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: share of the SMs that were active, recent mean; null on GPUs before Hopper
    sm: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: share of the time in which the tensor cores were active, recent mean; null on GPUs before Hopper
    tensor: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: seconds from this run's first sample to its latest
    run_s: float = 0.0
    #: share of the time in which a kernel ran, mean of the whole run
    run_utilisation: float | None = field(default=None, metadata=ADDED_AFTER_0_1)
    #: watts a GPU, mean of the whole run
    run_power_w: float | None = field(default=None, metadata=ADDED_AFTER_0_1)


@dataclass(frozen=True)
class Report:
    """One report of a job's agent, bounds already checked. Times of the job's own clock are not trusted."""

    #: Slurm's job id
    job_id: int
    #: incarnation that reports
    restarts: int
    #: newest step
    step: int
    #: seconds of a step, smoothed
    step_s: float | None = None
    #: the loss of the newest step
    loss: float | None = None
    #: tokens trained on so far
    tokens: int | None = None
    #: gradient noise scale, sequences
    noise_scale: float | None = None
    #: peak bytes of a GPU
    peak_memory_bytes: int | None = None
    #: step of the newest good checkpoint
    checkpoint_step: int | None = None
    checkpoint_requests: int = 0  # checkpoint requests of this incarnation that ended in a good checkpoint
    #: the plan that it runs with
    plan: Plan | None = None
    #: its checkpoint can change tp and pp
    resharding: bool = False
    #: as the training program describes it
    model: ModelSpec | None = None
    #: a remark by the job about itself
    note: str = ""
    #: degrees that its script accepts
    accepts: Accepts = NOTHING_MORE
    slow_nodes: tuple[str, ...] = ()  # nodes that hold the job's other nodes up, by its ranks' own times
    stalled_s: float | None = None  # seconds without a step, once longer than its steps take
    done: float | None = None  # examples trained so far of `total`
    #: examples to train on in all
    total: float | None = None
    rebatching: bool = False  # it takes another batch of the same degrees between two steps, without a restart
    #: the latest failure within a run's first steps in this incarnation
    failure: EarlyFailure | None = None
    #: seconds since this run's training began
    trained_s: float | None = None
    #: seconds that its first step took
    first_step_s: float | None = None
    #: seconds for which the newest checkpoint held training up
    checkpoint_s: float | None = None
    #: the size of the newest checkpoint
    checkpoint_bytes: int | None = None
    #: for each of `slow_nodes`: its ranks' own time for a step over their peers'
    slow_times: tuple[float, ...] = ()
    #: seconds for which its processes on this node have used almost no CPU time, and no GPU
    idle_s: float | None = None
    #: only the launcher reports: the training program has not yet
    silent: bool = False
    #: restarts inside its allocation; null: its launchers can't do that
    in_place: InPlace | None = None
    #: global batch that its script's own learning rate is tuned for, sequences
    base_batch: int | None = None
    #: how its replicas exchange gradients (synergy_core.exchange); empty: all of them in every step
    comm: str = ""
    #: an example's progress relative to an exchange of every gradient; null: not measured
    comm_efficiency: float | None = None
    #: largest global batch from now on, sequences: above it the loss was not a number
    batch_bound: int | None = None
    #: the launcher that reports, `STEP.NODE`: the numbers of its Slurm step and of the node in it
    launcher: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: its launcher takes checkpoint requests from the answers to its reports; false: it is older than 0.3 and takes only SIGUSR2
    listens: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: the latest checkpoint request that it has passed on to its processes
    requested: int = field(default=0, metadata=ADDED_AFTER_0_1)
    #: its run is over: no process takes a checkpoint request until the launcher reports again
    ended: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: what its GPUs do; null where they are not sampled
    gpu_activity: GpuActivity | None = field(default=None, metadata=ADDED_AFTER_0_1)


def is_by_agent(report: Report) -> bool:
    """Return whether the training program itself speaks in the report: an agent in it, or Megatron-LM's log. Only these know their plan."""
    return report.plan is not None and not report.silent
