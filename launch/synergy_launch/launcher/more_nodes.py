"""More nodes for a running job: a second allocation of the same user, with launchers that join the job's own.

Stock Slurm can't grow a running job. So the first node's launcher asks, as the job's user, for an allocation like the job's own on the
nodes that the daemon has named, immediately or not at all, and starts the launcher there as an ordinary step. The launchers there have
the job's identity from JOINED, connect to the first node (group/launcher_group.py), and wait for its next run. The allocation ends with
its step: at the end of the job, at an order that its nodes leave, or when the first node is gone (`release`).
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

from synergy_core.errors import SynergyError, UsageError, one_line
from synergy_core.wire.expander import expander_name
from synergy_core.wire.hostlist import expand

from synergy_launch.launcher.job.allocation import JobAllocation, slurm_name
from synergy_launch.launcher.job.allocation import read as read_allocation

JOINED = "SYNERGY_JOINED"  # for a launcher beside the job's own allocation: which job, and what it has missed
EXPANDER = "SYNERGY_EXPANDER"  # the allocation that such a launcher runs in
#: seconds until all launchers of the new nodes must be connected: Python's start from a slow shared file system is most of it
JOIN_S = 60.0
#: seconds until nodes that have joined must be of use: the daemon waits for a checkpoint in between, for 300 s unless an admin says more
UNUSED_S = 900.0
#: seconds after which a launcher that has lost the first node ends: an orphan must not keep its GPUs
ORPHAN_S = 10.0
_IMMEDIATE_S = 5  # seconds for slurmctld's answer: nodes that are free are given in 0.1 s
_COMMAND_S = 20.0
#: what says where a user's own salloc or srun would go, or describes the allocation that this process runs in; an array task's name is
#: the job's own
_SLURMS = re.compile(
    r"(?!SLURM_CONF$|SLURM_ARRAY_)(SLURM|SALLOC|SBATCH|PMI|PMIX)_|CUDA_VISIBLE_DEVICES$|ROCR_VISIBLE_DEVICES$"
)
#: set in containers by Slurm's own (OCI), Apptainer, Singularity and enroot; in others there are no commands of Slurm's as a rule
_CONTAINERS = ("SLURM_CONTAINER", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "ENROOT_ROOTFS")


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What a launcher beside the job's own allocation is told at its start.

    `members`: all nodes that the job has or had, by rank, this launcher's among them. `run`, `order`: the latest of the run so far.
    """

    job_id: int
    restarts: int
    step: str
    run: int
    order: int
    members: tuple[str, ...]

    def text(self) -> str:
        return f"{self.job_id} {self.restarts} {self.step or '-'} {self.run} {self.order} {','.join(self.members)}"


def membership(environment: Mapping[str, str]) -> Membership | None:
    """Return what JOINED says, or None where it is not set. Raises UsageError for anything but what this module writes."""
    text = environment.get(JOINED, "")
    if not text:
        return None
    words = text.split(" ")
    if len(words) != 6 or not all(words[i].isdecimal() and len(words[i]) < 11 for i in (0, 1, 3, 4)):
        raise UsageError(JOINED, f"is {text[:80]!r}", "unset it: synergy-launch sets it for nodes that join a job")
    job_id, restarts, run, order = (int(words[i]) for i in (0, 1, 3, 4))
    step = "" if words[2] == "-" else words[2]
    return Membership(
        job_id=job_id, restarts=restarts, step=step, run=run, order=order, members=expand(words[5], JOINED)
    )


def read_joined_allocation(member: Membership, environment: Mapping[str, str]) -> JobAllocation:
    """Return the job's allocation as this launcher, which is beside it, sees it. Raises UsageError where its node is no member."""
    here, node = read_allocation(environment), environment.get("SLURMD_NODENAME", "")
    if node not in member.members:
        raise UsageError(JOINED, f"does not name {node or 'this node'}", "unset it: synergy-launch sets it")
    rank = member.members.index(node)
    job = replace(here, job_id=member.job_id, restarts=member.restarts, nodes=member.members, node_rank=rank)
    return replace(job, in_step=True, leader=False, het_group=None, step=member.step)


def environment_of_job(member: Membership, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what names the job in the environment of processes that run beside its allocation."""
    job = str(member.job_id)
    own = environment.get("SLURM_JOB_ID", "")
    return {"SLURM_JOB_ID": job, "SLURM_JOBID": job, "SLURM_RESTART_COUNT": str(member.restarts), EXPANDER: own}


def release(environment: Mapping[str, str]) -> None:
    """End the allocation beside the job's own that this process runs in: nobody else would, if the first node is gone."""
    if environment.get(EXPANDER, "").isdecimal():
        _ask(["scancel", environment[EXPANDER]], environment)


def can_start_steps(environment: Mapping[str, str]) -> bool:
    """Return whether Slurm's commands are here, and what they start elsewhere is as this process: not outside its container."""
    contained = any(name in environment for name in _CONTAINERS)
    return not contained and all(shutil.which(name) for name in ("salloc", "srun", "scontrol"))


def make_salloc_options(
    job: Mapping[str, str], allocation: JobAllocation, nodes: Sequence[str], number: int, now_s: float
) -> list[str]:
    """Return salloc's options for an allocation on `nodes` that is like the job's own, whose record is `job` (scontrol's fields).

    Raises UsageError where no such allocation can be described.
    """
    if allocation.job_id is None or allocation.het_group is not None:
        raise UsageError("more nodes", "this job is none of Slurm's, or a heterogeneous one")
    cpus = int(job.get("NumCPUs", "0")) // max(1, int(job.get("NumNodes", "1").partition("-")[0]))
    options = [
        f"--immediate={_IMMEDIATE_S}",
        "--quiet",
        "--no-bell",
        f"--job-name={expander_name(allocation.job_id, allocation.restarts, number)}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
    ]
    if cpus:
        options.append(f"--cpus-per-task={cpus}")
    if allocation.gpus:
        options.append(f"--gres={_gres(job, allocation.gpus)}")
    for field, option in (
        ("Partition", "partition"),
        ("Account", "account"),
        ("QOS", "qos"),
        ("Reservation", "reservation"),
    ):
        if (value := job.get(field, "")) not in ("", "(null)", "N/A"):
            options.append(f"--{option}={value.partition(',')[0]}")
    if (features := job.get("Features", "")) not in ("", "(null)"):
        options.append(f"--constraint={features}")
    if (per_node := job.get("MinMemoryNode", "0")) not in ("0", ""):
        options.append(f"--mem={per_node}")
    elif (per_cpu := job.get("MinMemoryCPU", "0")) not in ("0", ""):
        options.append(f"--mem-per-cpu={per_cpu}")
    if job.get("OverSubscribe") == "NO":
        options.append("--exclusive")
    if (left_s := _left_s(job, now_s)) is not None:
        if left_s < 120.0:
            raise UsageError("more nodes", "the job's time limit is less than two minutes away")
        options.append(f"--time={math.ceil(left_s / 60)}")
    return options


class MoreNodes:
    """One growth of a running job: the allocation, and the launchers in it. `names`: the nodes, by the daemon's order `number`.

    Call `poll` often. `refusal` says why there is none; the job then goes on as it is.
    """

    def __init__(
        self,
        number: int,
        names: tuple[str, ...],
        member: Membership,
        allocation: JobAllocation,
        environment: Mapping[str, str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number, self.names, self.refusal, self.is_complete, self.used = number, names, "", False, False
        self._member, self._allocation, self._environment = member, allocation, dict(environment)
        self._monotonic = monotonic
        self._connected = False  # some of the nodes' launchers were
        self._asked_s: float | None = None
        self._refused_s = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._until = monotonic() + JOIN_S
        self._error = b""
        self._copies: list[threading.Thread] = []
        self._start = threading.Thread(target=self._ask_slurm, name="more nodes", daemon=True)
        self._start.start()

    @property
    def is_answered(self) -> bool:
        """Return whether it is known if the nodes join."""
        return self.is_complete or bool(self.refusal)

    @property
    def is_granted(self) -> bool:
        """Return whether Slurm has granted the nodes: salloc, which gives up soon by itself and says so, was there for longer."""
        asked_s = self._asked_s
        lasted = asked_s is not None and self._refused_s > asked_s + 2 * _IMMEDIATE_S
        return self._connected or (lasted and not self._error)

    @property
    def is_over(self) -> bool:
        """Return whether the allocation has ended, or was never there."""
        return not self._start.is_alive() and (self._child is None or self._child.poll() is not None)

    def poll(self, connected: frozenset[str]) -> None:
        """Take in which nodes' launchers are `connected`."""
        now = self._monotonic()
        if self.refusal or self._start.is_alive():
            return
        self._connected = self._connected or bool(set(self.names) & connected)
        if self._child is not None and self._child.poll() is not None:
            self._refuse(self._why(self._child.returncode))
        elif not self.is_complete and set(self.names) <= connected:
            self.is_complete, self._until = True, now + UNUSED_S
        elif now >= self._until:
            what = "were of no use" if self.is_complete else "did not join"
            self.end(f"{', '.join(self.names[:3])} {what} in time")

    def use(self) -> None:
        """Note that the job runs on the nodes."""
        self.used, self._until = True, float("inf")

    def end(self, why: str) -> None:
        """Give the allocation back."""
        self._refuse(self.refusal or why)
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()  # salloc gives its allocation back

    # -- inside --------------------------------------------------------------------------------------------------------

    def _refuse(self, why: str) -> None:
        self._refused_s = self._refused_s or self._monotonic()
        self.refusal = why

    def _ask_slurm(self) -> None:
        """Start salloc with the launchers' step."""
        environment = {k: v for k, v in self._environment.items() if not _SLURMS.match(k)}
        try:
            name = slurm_name(self._allocation.job_id or 0, self._environment)
            record = _record(_ask(["scontrol", "show", "job", "-o", name], environment))
            options = make_salloc_options(record, self._allocation, self.names, self.number, time.time())
            step = ["srun", "--kill-on-bad-exit=0", *options_of_step(options), *launcher_command()]
            environment[JOINED] = self._member.text()
            self._asked_s = self._monotonic()
            self._child = subprocess.Popen(
                ["salloc", *options, *step], env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except (SynergyError, OSError, ValueError) as error:
            self.refusal = one_line(str(error), 200)
            return
        if self.refusal:  # ended meanwhile
            self._child.terminate()
        assert self._child.stderr is not None
        copy = threading.Thread(target=self._copy, args=(self._child.stderr,), name="more nodes' errors", daemon=True)
        self._copies.append(copy)
        copy.start()

    def _copy(self, source: IO[bytes]) -> None:
        """Copy the error output to this process's own, but keep what salloc itself says."""
        with source:
            for line in source:
                if line.startswith(b"salloc:"):
                    self._error = line
                else:
                    os.write(2, line)

    def _why(self, code: int) -> str:
        for thread in self._copies:
            thread.join(1.0)
        message = self._error.decode("utf-8", "replace").replace("salloc: error:", "").strip()
        return one_line(message, 200) or f"the launchers there ended with exit code {code}"


def options_of_step(options: Sequence[str]) -> list[str]:
    """Return those of salloc's options that its step has to repeat: srun's default is one CPU a task."""
    return [o for o in options if o.startswith(("--nodes=", "--ntasks", "--cpus-per-task=", "--gres="))]


def launcher_command() -> list[str]:
    """Return the command line of this launcher, to be started elsewhere."""
    if sys.argv[0].endswith((".pyz", "synergy-launch")):
        return [sys.executable, *sys.argv]
    return [sys.executable, "-m", "synergy_launch.launcher.command", *sys.argv[1:]]


def _record(text: str) -> dict[str, str]:
    """Return the fields of one line of `scontrol show job -o`; values with spaces, such as the command, are cut."""
    return {k: v for word in text.split() for k, separator, v in [word.partition("=")] if separator}


def _gres(job: Mapping[str, str], gpus: int) -> str:
    """Return the job's generic resources of a node, with so many GPUs of its type, if it has one."""
    items = [re.sub(r"^gres[:/]", "", item) for item in job.get("TresPerNode", "").split(",")]
    others = [item for item in items if item and item != "(null)" and item.split(":")[0] != "gpu"]
    kind = next((item.split(":")[1] for item in items if re.fullmatch(r"gpu:[A-Za-z0-9_.\-]+:[0-9]+", item)), "")
    return ",".join([f"gpu:{kind}:{gpus}" if kind else f"gpu:{gpus}", *others])


def _left_s(job: Mapping[str, str], now_s: float) -> float | None:
    """Return the seconds until the job's time limit; None where it has none."""
    if job.get("TimeLimit", "UNLIMITED") in ("UNLIMITED", "Partition_Limit"):
        return None
    try:
        return time.mktime(time.strptime(job.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S")) - now_s
    except ValueError:
        return None


def _ask(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return a Slurm command's output. Raises UsageError with its first line of errors."""
    try:
        done = subprocess.run(
            list(command), env=dict(environment), capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(shlex.join(command[:2]), one_line(str(error), 150)) from None
    if done.returncode:
        raise UsageError(shlex.join(command[:2]), one_line(done.stderr.strip(), 150))
    return done.stdout
