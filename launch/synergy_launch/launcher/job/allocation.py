"""The allocation that Slurm really gave this job: nodes, GPUs, rank of this node. Stale variables of a resize are never read.

On 22.05 a resized job still sees the SLURM_NTASKS, SLURM_NPROCS, SLURM_NTASKS_PER_NODE and SLURM_GPUS* of its sbatch line. Only
SLURM_JOB_NODELIST, SLURM_JOB_NUM_NODES, SLURM_GPUS_ON_NODE and the step's own variables are used. In a heterogeneous job the first
two are the step's nodes, and SLURM_JOB_ID is the leader's: a component's own end in _HET_GROUP_n.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from synergy_core.errors import UsageError
from synergy_core.records import Shape
from synergy_core.wire.hostlist import expand

STALE = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET", "SLURM_NNODES", "SLURM_DISTRIBUTION", "SLURM_TRES_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
    "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_VERBOSE",
)  # fmt: skip
FIRST_PORT, PORTS = 15000, 17000  # below the ephemeral range
MAX_HET_SIZE = 128  # components of one job: Slurm's own bound (MAX_HET_JOB_COMPS)


@dataclass(frozen=True, kw_only=True)
class JobAllocation:
    """A job's nodes as one task of a step sees them."""

    #: None outside Slurm
    job_id: int | None
    restarts: int
    nodes: tuple[str, ...]
    node_rank: int
    #: on this node; 0: Slurm gave no number, and one process is run
    gpus: int
    #: this process belongs to a step that covers every node once
    in_step: bool
    #: the one process that may start a step of its own
    leader: bool
    #: the component of a heterogeneous job that this is; None: it is none
    het_group: int | None = None
    #: Slurm's number of this process's step; "": it is in none
    step: str = ""

    @property
    def launcher(self) -> str:
        """Return the name of this node's launcher, which is unique among all launchers of the incarnation."""
        return f"{self.step or 0}.{self.node_rank}"

    @property
    def processes(self) -> int:
        """Return the number of training processes on this node."""
        return max(1, self.gpus)

    @property
    def world(self) -> int:
        """Return the number of training processes of the whole job."""
        return self.processes * len(self.nodes)

    def has_size(self, shape: Shape | None) -> bool:
        """Return whether the job has as many nodes, and GPUs on each, as `shape`, whatever their type; never as None."""
        return shape is not None and (shape.nodes, shape.gpus_per_node) == (len(self.nodes), self.gpus)


def read(environment: Mapping[str, str]) -> JobAllocation:
    """Read the allocation from the environment. Raises UsageError for an environment that Slurm did not make."""
    gpus = _gpus(environment)
    text = environment.get("SLURM_JOB_ID")
    if not text:
        here = (socket.gethostname(),)
        return JobAllocation(job_id=None, restarts=0, nodes=here, node_rank=0, gpus=gpus, in_step=True, leader=True)
    het_group = _het_group(environment)
    suffix = "" if het_group is None else f"_HET_GROUP_{het_group}"
    job_id = _number(environment, f"SLURM_JOB_ID{suffix}")
    nodes = expand(environment.get(f"SLURM_JOB_NODELIST{suffix}", ""), "SLURM_JOB_NODELIST")
    if not nodes:
        raise UsageError(
            "SLURM_JOB_NODELIST", "is not set", "run synergy-launch inside a Slurm job, or with no SLURM_JOB_ID set"
        )
    in_step = environment.get("SLURM_STEP_ID", "").isdigit() and "SLURM_PROCID" in environment
    covers = (
        in_step
        and environment.get("SLURM_STEP_NUM_NODES") == str(len(nodes))
        and environment.get("SLURM_STEP_NUM_TASKS") == str(len(nodes))
    )
    if het_group == 0 and not in_step and not gpus:
        raise UsageError(
            "synergy-launch",
            "the batch script of this heterogeneous job runs in component 0, which has no GPUs",
            "start it with srun --het-group=N, N being the component with GPUs",
        )
    leader = not in_step or environment.get("SLURM_PROCID") == "0"
    if in_step and het_group is not None:  # the step may be one of several components together
        step = expand(environment.get("SLURM_STEP_NODELIST", ""), "SLURM_STEP_NODELIST")
        covers = covers and set(step) == set(nodes)
        first = next((node for node in step if node in nodes), "")
        leader = environment.get("SLURMD_NODENAME") == first and environment.get("SLURM_LOCALID") == "0"
    rank = _number(environment, "SLURM_NODEID") if in_step else 0
    restarts = _number(environment, "SLURM_RESTART_COUNT", 0)
    return JobAllocation(
        job_id=job_id,
        restarts=restarts,
        nodes=nodes,
        node_rank=rank,
        gpus=gpus,
        in_step=covers,
        leader=leader,
        het_group=het_group,
        step=environment["SLURM_STEP_ID"] if in_step else "",
    )


def _het_group(environment: Mapping[str, str]) -> int | None:
    """Return the component whose nodes this process runs on; Slurm gives each node to one component only.

    The batch script runs on the nodes of the first component. srun starts steps there too unless it is told otherwise.
    """
    size = environment.get("SLURM_HET_SIZE", "")
    if not size.isdecimal() or not 1 < int(size) <= MAX_HET_SIZE:
        return None
    node = environment.get("SLURMD_NODENAME", "")
    for n in range(int(size)):
        if node in expand(
            environment.get(f"SLURM_JOB_NODELIST_HET_GROUP_{n}", ""), f"SLURM_JOB_NODELIST_HET_GROUP_{n}"
        ):
            return n
    return None


def step_command(allocation: JobAllocation, environment: Mapping[str, str], command: list[str]) -> list[str]:
    """Return the srun line that starts `command` once on every node of the allocation, whatever the stale variables say."""
    n = len(allocation.nodes)
    argv = ["srun", f"--nodes={n}", f"--ntasks={n}", "--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=1"]
    if allocation.het_group is not None:
        argv.append(f"--het-group={allocation.het_group}")
    if environment.get("SLURM_CPUS_ON_NODE", "").isdigit():
        argv.append(f"--cpus-per-task={environment['SLURM_CPUS_ON_NODE']}")  # a step's default is one CPU a task
    if allocation.gpus:
        argv.append(f"--gres=gpu:{allocation.gpus}")
    return [*argv, *command]


def without_stale(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that describe another size or another step."""
    return {k: v for k, v in environment.items() if k not in STALE}


def environment_of_run(allocation: JobAllocation, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what describes the nodes of a run to scripts that read Slurm's variables, if those describe others.

    Slurm sets them once: they are the ones of the step's start after nodes have left, and another allocation's on nodes that have joined.
    """
    nodes, rank = allocation.nodes, str(allocation.node_rank)
    suffix = "" if allocation.het_group is None else f"_HET_GROUP_{allocation.het_group}"
    if allocation.job_id is None or expand(environment.get(f"SLURM_JOB_NODELIST{suffix}", ""), "nodes") == nodes:
        return {}
    lists = dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"), ",".join(nodes))
    counts = (
        "SLURM_JOB_NUM_NODES",
        "SLURM_NNODES",
        "SLURM_STEP_NUM_NODES",
        "SLURM_NTASKS",
        "SLURM_NPROCS",
        "SLURM_STEP_NUM_TASKS",
    )
    ranks = {
        "SLURM_NODEID": rank,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": "0",
        "SLURM_TASKS_PER_NODE": f"1(x{len(nodes)})",
    }
    return {**lists, **dict.fromkeys(counts, str(len(nodes))), **ranks}


def find_address(node: str) -> str:
    """Return an address that other nodes can connect to: the node's name where it resolves, else its NodeAddr in Slurm."""
    try:
        socket.getaddrinfo(node, None)
        return node
    except OSError:
        pass
    if shutil.which("sinfo"):
        try:
            done = subprocess.run(
                ["sinfo", "-h", "-N", "-n", node, "-o", "%o"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return node
        if done.returncode == 0 and done.stdout.split():
            return done.stdout.split()[0]
    return node


def slurm_name(job_id: int, environment: Mapping[str, str]) -> str:
    """Return the name that means only this job to Slurm's commands.

    The last task of an array has the id of the array, and that id names all tasks. Any other id already names one job; array variables of
    another id came from the job that submitted this one. The leader of a heterogeneous job has the id of the whole job.
    """
    if environment.get("SLURM_JOB_ID_HET_GROUP_0", "") == str(job_id):
        return f"{job_id}+0"
    array, task = (environment.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
    digits = all(text.isascii() and text.isdecimal() for text in (array, task))
    return f"{job_id}_{int(task)}" if digits and int(array) == job_id else str(job_id)


def requeued_name(job_id: int, environment: Mapping[str, str]) -> str:
    """Return the name that means, to Slurm's commands, everything requeued with this job: the leader of a heterogeneous job."""
    leader = environment.get("SLURM_JOB_ID_HET_GROUP_0", "")
    return leader if leader.isdecimal() else slurm_name(job_id, environment)


def rendezvous_port(job_id: int, restarts: int, run: int = 0) -> int:
    """Return a port that all nodes of this incarnation, and anybody else, can work out; each run gets another one."""
    return FIRST_PORT + (job_id * 8 + restarts % 8 + 1699 * run) % PORTS


def _gpus(environment: Mapping[str, str]) -> int:
    text = environment.get("SLURM_GPUS_ON_NODE", "")
    if text.isdecimal():
        return int(text)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return len([x for x in visible.split(",") if x.strip()]) if visible and visible != "NoDevFiles" else 0


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "")
    if text.isdecimal():
        return int(text)
    if not text and default is not None:
        return default
    raise UsageError(name, f"is {text!r}", "Slurm sets it to a number")
