"""Bulk reads through pyslurm, the same rows as the command line's without starting a process for each.

Its old classes `job` (22.5 to 25.5) and `node` (22.5 to 24.11) are read by `get()`, which tells all. Where they are
gone, `Jobs.load()` and `Nodes.load()` are used, see pyslurm_objects. It never writes: `Job.modify` ignores fields and
`Job.hold` ends the process.
"""

from __future__ import annotations

import importlib
import pwd
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from synergyd.slurm import pyslurm_objects
from synergyd.slurm.client import SlurmError
from synergyd.slurm.columns import count, node_names, nodes_and_cpus, tres_counts
from synergyd.slurm.commands import TRANSIENT
from synergyd.slurm.parsed.node_states import registered_state
from synergyd.slurm.parsed.rows import (
    NAME_BYTES,
    REASON_BYTES,
    JobRow,
    SlurmNodeRow,
    memory_is_per_cpu,
    node_state,
    parse_mib,
    per_gpu,
    shorten,
)

T = TypeVar("T")

# Fields that may differ from the command line's rows, and why. All others are equal; the contract tests hold both to it.
DIFFERENCES: Mapping[str, str] = {
    "JobRow.tres_per_node": "pyslurm's newer class writes the count of one too",
    "JobRow.tres_other": "pyslurm's newer class gives the GPUs of a request by job, task or socket in all",
    "JobRow.reason": "pyslurm writes underscores for the spaces of a long reason",
    "SlurmNodeRow.state": "pyslurm gives MAINT, REBOOT, PLANNED or RESERVED in place of the state with that flag, and mixed "
    "for a full node that keeps cores for the system",
    "SlurmNodeRow.gres_used": "pyslurm's newer class does not name the GPUs themselves (IDX)",
}

# squeue shows none of these unless it is asked to
_GONE = {
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    "REVOKED", "STAGE_OUT",
}  # fmt: skip
# slurm_node_state_string's marks, as the flags that the complete state spells out
_MARKS = {
    "*": "not_responding", "~": "powered_down", "#": "powering_up", "!": "power_down", "%": "powering_down",
    "$": "maintenance", "@": "reboot_requested", "^": "reboot_issued", "-": "planned",
}  # fmt: skip
_NO_VALUE = (0, 0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF)


class PyslurmReader:
    """Reads of the cluster that this process's own SLURM_CONF names: libslurm reads it once, when pyslurm is imported.

    An import where Slurm has no configuration ends the process, and a call holds the interpreter until slurmctld has
    answered or Slurm's MessageTimeout is over: so pyslurm_process runs it. Calls are counted in `calls`.
    Raises SlurmError from every method, and from the constructor when pyslurm can't be imported.
    """

    name = "pyslurm"

    def __init__(self) -> None:
        try:
            self._pyslurm: Any = importlib.import_module("pyslurm")
        except ImportError as error:
            raise SlurmError("pyslurm", f"can't be imported: {error}", transient=False) from None
        self.calls = 0

    def version(self) -> str:
        """Return libslurm's release; no call to slurmctld is made."""
        return release(self._read("version", self._pyslurm.slurm_api_version))

    def made_for(self) -> tuple[str, str]:
        """Return (pyslurm's own version, libslurm's); both are empty if it does not say."""
        try:
            return str(self._pyslurm.__version__), release(self._pyslurm.slurm_api_version())
        except (AttributeError, TypeError, ValueError):
            return "", ""

    def jobs(self) -> tuple[JobRow, ...]:
        """Return all jobs, in one RPC."""

        def rows() -> tuple[JobRow, ...]:
            if not hasattr(self._pyslurm, "job"):
                return tuple(_new_row(j) for j in self._pyslurm.Jobs.load().values() if j.state not in _GONE)
            jobs = self._pyslurm.job().get()
            users: dict[int, str] = {}
            return tuple(_job_row(j, users) for j in jobs.values() if j["job_state"] not in _GONE)

        return self._read("jobs", rows)

    def nodes(self) -> tuple[SlurmNodeRow, ...]:
        """Return all nodes that are in a partition, as sinfo has it. Up to three RPCs are made: nodes, partitions, settings."""

        def rows() -> tuple[SlurmNodeRow, ...]:
            if not hasattr(self._pyslurm, "node"):
                if not pyslurm_objects.counts_gpus(self._pyslurm.slurmctld.Config.load()):
                    what = "it tells GPUs in use only where AccountingStorageTRES has gres/gpu"
                    raise SlurmError("pyslurm nodes", what, transient=False)
                return tuple(pyslurm_objects.node_row(n) for n in self._pyslurm.Nodes.load().values() if n.partitions)
            nodes = self._pyslurm.node().get()
            return tuple(_node_row(n) for n in nodes.values() if n["partitions"])

        return self._read("nodes", rows)

    def _read(self, what: str, read: Callable[[], T]) -> T:
        """Read from pyslurm. Whatever goes wrong in it, of any type, becomes a SlurmError."""
        self.calls += 1
        try:
            return read()
        except SlurmError:
            raise
        except (
            Exception
        ) as error:  # ValueError(text, errno) or RPCError(text) of an RPC; a KeyError of another pyslurm than ours
            rpc = isinstance(error, ValueError) or type(error).__name__ == "RPCError"
            text = str(error.args[0]) if rpc and error.args else repr(error)
            raise SlurmError(f"pyslurm {what}", text, transient=bool(TRANSIENT.search(text))) from None


def _new_row(j: Any) -> JobRow:
    try:
        return pyslurm_objects.job_row(j)
    except (IndexError, TypeError, ValueError) as error:
        raise SlurmError("pyslurm jobs", f"job {j.id} can't be read ({error!r})", transient=False) from None


def release(version: tuple[int, int, int]) -> str:
    """Return `22.05.8` for (22, 5, 8)."""
    major, minor, micro = version
    return f"{major}.{minor:02d}.{micro}"


def _time(value: int) -> float | None:
    return None if value in _NO_VALUE else float(value)


def _count(value: int | None) -> int:
    """Return the count, or 0 if Slurm has none. pyslurm then says None, or with some releases' Slurm the number that means none (65534)."""
    return 0 if value is None or value in _NO_VALUE else value


def _user(uid: int, users: dict[int, str]) -> str:
    """Return the user's name as squeue prints it. `users` keeps the names of one read."""
    if uid not in users:
        try:
            users[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            users[uid] = "nobody"
    return users[uid]


def _job_row(j: Mapping[str, Any], users: dict[int, str]) -> JobRow:
    job_id = int(j["job_id"])
    tres = j["tres_alloc_str"] or j["tres_req_str"] or ""
    nodes, cpus = nodes_and_cpus(tres)
    memory, of_gpu = parse_mib(tres_counts(tres).get("mem", "")), per_gpu(j["mem_per_tres"] or "")
    min_memory = 0 if of_gpu else int(j["pn_min_memory"])  # from 24.11 on that of a GPU too
    limit_s = 60.0 * j["time_limit"] if isinstance(j["time_limit"], int) else None
    unit = [None if x in _NO_VALUE else x for x in (j["sockets_per_node"], j["cores_per_socket"])]
    return JobRow(
        job_id=job_id,
        name=shorten(j["name"] or "", NAME_BYTES),
        user=_user(j["user_id"], users),
        uid=j["user_id"],
        partition=j["partition"] or "",
        state=j["job_state"],
        reason=shorten(j["state_reason"] or "", REASON_BYTES),
        num_nodes=nodes or j["num_nodes"],
        num_cpus=cpus or j["num_cpus"],
        num_tasks=_count(j["num_tasks"]),
        tres_per_node=j["tres_per_node"] or "",
        tres_other=",".join(x for x in (j["tres_per_job"], j["tres_per_socket"], j["tres_per_task"]) if x),
        node_names=node_names(j["nodes"] or "", job_id),
        submit_s=_time(j["submit_time"]) or 0.0,
        start_s=_time(j["start_time"]),
        eligible_s=_time(j["eligible_time"]),
        restarts=j["restart_cnt"],
        requeue=j["requeue"],
        priority=j["priority"],
        batch=bool(j["batch_flag"]),
        array=j["array_job_id"] is not None,
        het=j["het_job_id"] is not None,
        account=j["account"] or "",
        qos=j["qos"] or "",
        features="&".join(j["features"] or ()),
        reservation=j["resv_name"] or "",
        memory_mib=memory,
        min_memory_mib=min_memory,
        memory_per_cpu=memory_is_per_cpu(min_memory, memory, cpus or 1, nodes or 1),
        tres_gpus=count(tres_counts(tres).get("gres/gpu", "")),
        memory_per_gpu_mib=of_gpu,
        cpus_per_task=j["cpus_per_task"] if isinstance(j["cpus_per_task"], int) else 1,
        cpus_per_gpu=per_gpu(j["cpus_per_tres"] or ""),
        min_cpus=max(1, j["pn_min_cpus"]),
        tasks_per_node=_count(j["ntasks_per_node"]),
        threads_per_core=_count(j["threads_per_core"]),
        sockets_cores="" if unit == [None, None] else ":".join("*" if x is None else str(x) for x in unit),
        tmp_disk_mib=j["pn_min_tmp_disk"],
        max_nodes=j["max_nodes"] or j["num_nodes"],
        req_nodes=node_names(",".join(j["req_nodes"] or ()), job_id),
        oversubscribe={"0": "NO", "1": "YES"}.get(j["shared"], j["shared"]),
        contiguous=j["contiguous"],
        core_spec=_count(j["core_spec"]),
        licenses=",".join(f"{name}:{count}" for name, count in (j["licenses"] or {}).items()),
        switches=j["req_switch"],
        time_limit_s=limit_s,
        end_s=pyslurm_objects.find_end_s(j["job_state"], _time(j["start_time"]), limit_s, _time(j["end_time"])),
        min_time_s=60.0 * j["time_min"],
        dependency=j["dependency"] or "",
        array_job_id=j["array_job_id"] or 0,
        array_task=j["array_task_str"] or ("" if j["array_task_id"] is None else str(j["array_task_id"])),
        het_job_id=j["het_job_id"] or 0,
        het_offset=j["het_job_offset"] or 0,
        nice=j["nice"],
    )


def _node_row(n: Mapping[str, Any]) -> SlurmNodeRow:
    return SlurmNodeRow(
        name=n["name"],
        state=registered_state(_state(n["state"]), n["version"] or ""),
        gres=",".join(n["gres"] or ()),
        gres_used=",".join(n["gres_used"] or ()),
        features=tuple(x for x in (n["features"] or "").split(",") if x),
        partitions=tuple(sorted(n["partitions"])),
        reason=shorten(n["reason"] or "", REASON_BYTES),
        cpus=n["cpus"],
        cpus_alloc=n["alloc_cpus"],
        memory_mib=n["real_memory"],
        memory_alloc_mib=n["alloc_mem"],
        threads_per_core=n["threads"],
        tmp_disk_mib=n["tmp_disk"],
    )


def _state(text: str) -> str:
    """Return pyslurm's `IDLE*+DRAIN+POWER` as sinfo's `idle+drain+not_responding+powered_down`."""
    flags = []
    while text[-1:] in _MARKS or "+" in text:
        if text[-1] in _MARKS:
            flags.append(_MARKS[text[-1]])
            text = text[:-1]
            continue
        text, _, flag = text.rpartition("+")
        flags.append({"power": "powered_down"}.get(flag.lower(), flag.lower()))
    return node_state("+".join([text, *flags]))
