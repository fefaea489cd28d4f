"""Rows out of the objects of pyslurm's newer classes: `Nodes.load()` of 25.5, and `Jobs.load()` too of 25.11.

They leave out what the older classes told: GPUs in use by node are known only as far as AccountingStorageTRES counts them, a request
by job, task or socket only by its total. A request by GPU (--mem-per-gpu, --cpus-per-gpu) they don't tell: the property fails, or (25.11.2
on 25.11.7) is None while memory of a node has the number. With one GPU a node that is no different from --mem; else the totals tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from synergyd.slurm.client import SlurmError
from synergyd.slurm.columns import node_names
from synergyd.slurm.parsed.node_states import registered_state
from synergyd.slurm.parsed.rows import NAME_BYTES, REASON_BYTES, JobRow, SlurmNodeRow, job_state, node_state, shorten


def counts_gpus(config: Any) -> bool:
    """Return whether slurmctld counts GPUs in use. `config`: pyslurm.slurmctld.Config."""
    return any(name.split(":")[0] == "gres/gpu" for name in config.accounting_storage_tres)


def job_row(j: Any) -> JobRow:
    """Return the row of `j`, a pyslurm.Job.

    Raises SlurmError for a host list and a request by GPU, or IndexError where that fails in pyslurm.
    """
    job_id, limit_s = int(j.id), None if j.time_limit is None else 60.0 * j.time_limit
    tres = j.allocated_tres or j.requested_tres
    total = {name: _count(getattr(tres, name, None)) for name in ("node", "cpu", "mem")}
    gpus, by_node = _gpus(tres), _items(j.gres_per_node)
    array, het = j.array_id is not None, j.heterogeneous_id is not None
    of_node, unit = j.memory_per_node or 0, (j.sockets_per_node, j.cores_per_socket)
    if j.cpus_per_task is None or (
        of_node and total["mem"] and total["node"] and total["mem"] != of_node * total["node"]
    ):
        raise SlurmError(
            "pyslurm jobs", f"job {job_id} asks for CPUs or memory by GPU, of which it tells nothing", transient=False
        )
    return JobRow(
        job_id=job_id,
        name=shorten(read_text(j, "name"), NAME_BYTES),
        user=j.user_name,
        uid=j.user_id,
        partition=j.partition or "",
        state=job_state(j.state),
        reason=shorten(j.state_reason or "", REASON_BYTES),
        num_nodes=total["node"] or j.num_nodes or 0,
        num_cpus=total["cpu"] or j.cpus,
        num_tasks=j.ntasks,
        tres_per_node=by_node,
        tres_other=f"gres/gpu:{gpus}" if gpus and not by_node else "",
        node_names=node_names(j.allocated_nodes or "", job_id),
        submit_s=float(j.submit_time or 0),
        start_s=_time(j.start_time),
        eligible_s=_time(j.eligible_time),
        restarts=j.requeue_count,
        requeue=j.is_requeueable,
        priority=j.priority or 0,
        batch=j.is_batch_job,
        array=array,
        het=het,
        account=read_text(j, "account"),
        qos=j.qos or "",
        features=",".join(j.constraints),
        reservation=j.reservation or "",
        memory_mib=total["mem"],
        min_memory_mib=j.memory_per_cpu or of_node,
        memory_per_cpu=bool(j.memory_per_cpu),
        tres_gpus=gpus,
        memory_per_gpu_mib=j.memory_per_gpu or 0,
        cpus_per_task=j.cpus_per_task or 1,
        cpus_per_gpu=j.cpus_per_gpu or 0,
        min_cpus=j.min_cpus_per_node or 1,
        tasks_per_node=j.ntasks_per_node or 0,
        threads_per_core=j.threads_per_core or 0,
        sockets_cores="" if unit == (None, None) else ":".join("*" if x is None else str(x) for x in unit),
        tmp_disk_mib=j.temporary_disk_per_node or 0,
        max_nodes=j.max_nodes or j.num_nodes or 0,
        req_nodes=node_names(j.required_nodes or "", job_id),
        oversubscribe=j.resource_sharing or "",
        contiguous=j.requires_contiguous_nodes,
        core_spec=j.cores_reserved_for_system or j.threads_reserved_for_system or 0,
        licenses=",".join(j.licenses),
        switches=j.required_switches or 0,
        time_limit_s=limit_s,
        end_s=find_end_s(job_state(j.state), _time(j.start_time), limit_s, _time(j.end_time)),
        min_time_s=60.0 * (j.time_limit_min or 0),
        dependency=_dependency(j.dependencies),
        array_job_id=j.array_id or 0,
        array_task=_array_task(j) if array else "",
        het_job_id=j.heterogeneous_id or 0,
        # for other jobs it is a large number
        het_offset=(j.heterogeneous_offset or 0) if het else 0,
        nice=j.nice or 0,
    )


def node_row(n: Any) -> SlurmNodeRow:
    """Return the row of `n`, a pyslurm.Node. Raises SlurmError if it doesn't say of which type the GPUs in use are."""
    # slurm counts a typed GPU twice: as one of its type, and as one
    used_gres = {name: count for name, count in n.allocated_gres.items() if name.startswith("gpu:")}
    total = n.allocated_gres.get("gpu", 0)
    kinds = {name for name in n.configured_gres if name.startswith("gpu:")}
    if total and not used_gres and len(kinds) > 1:
        what = f"node {n.name} has GPUs of several types, and AccountingStorageTRES names none of them"
        raise SlurmError("pyslurm nodes", what, transient=False)
    return SlurmNodeRow(
        name=n.name,
        state=registered_state(node_state(n.state.lower()), n.slurm_version or ""),
        gres=_items(n.configured_gres),
        gres_used=_items(used_gres or dict.fromkeys(kinds or n.configured_gres, total)),
        features=tuple(n.active_features),
        partitions=tuple(sorted(n.partitions)),
        reason=shorten(n.reason or "", REASON_BYTES),
        cpus=n.total_cpus,
        cpus_alloc=n.allocated_cpus,
        memory_mib=n.real_memory or 0,
        memory_alloc_mib=n.allocated_memory,
        threads_per_core=n.threads_per_core or 1,
        tmp_disk_mib=n.temporary_disk or 0,
    )


def find_end_s(state: str, start_s: float | None, limit_s: float | None, end_s: float | None) -> float | None:
    """Return the job's end as squeue has it.

    In libslurm a job has one even before a start is planned, and without a limit one that is 1 or 136 years away.
    """
    has_end = limit_s is not None or state == "COMPLETING"
    return end_s if has_end and not (state == "PENDING" and start_s is None) else None


def read_text(owner: Any, name: str) -> str:
    """Return an attribute that a user has written, which need not be UTF-8: pyslurm then raises what it could not decode."""
    try:
        return getattr(owner, name) or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _time(value: int | None) -> float | None:
    return None if value is None else float(value)


def _count(tres: Any) -> int:
    return 0 if tres is None else int(tres.count)


def _gpus(tres: Any) -> int:
    gres = getattr(tres, "gres", {})
    return (
        _count(gres["gpu"]) if "gpu" in gres else sum(_count(x) for name, x in gres.items() if name.startswith("gpu:"))
    )


def _items(counts: Mapping[str, int]) -> str:
    """Return {gres/gpu:a100: 4} as `gres/gpu:a100:4`."""
    return ",".join(f"{name}:{count}" for name, count in counts.items())


def _array_task(j: Any) -> str:
    """Return the waiting tasks with their limit, as squeue shows them, else the task's number. pyslurm leaves the number out if it is 0."""
    if j.array_tasks_waiting:
        limit = j.array_tasks_parallel
        return f"{j.array_tasks_waiting}%{limit}" if limit else str(j.array_tasks_waiting)
    return str(j.array_task_id or 0)


def _dependency(columns: Mapping[str, Any] | None) -> str:
    """Return pyslurm's table as squeue's words."""
    if not columns:
        return ""
    jobs: Iterable[str] = (
        f"{kind}:{':'.join(map(str, ids))}" for kind, ids in columns.items() if isinstance(ids, list) and ids
    )
    words = [*jobs, *(["singleton"] if columns.get("singleton") else [])]
    return ("?" if columns.get("satisfy") == "any" else ",").join(words)
