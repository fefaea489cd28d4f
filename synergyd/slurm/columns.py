"""The columns that squeue and sinfo are asked for, and rows out of their text. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from synergy_core.errors import UsageError
from synergy_core.wire.hostlist import expand

from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.node_states import registered_state
from synergyd.slurm.parsed.rows import (
    NAME_BYTES,
    REASON_BYTES,
    JobRow,
    SlurmNodeRow,
    job_state,
    memory_is_per_cpu,
    node_state,
    parse_mib,
    parse_seconds,
    per_gpu,
    shorten,
)

# Fixed widths, so that a job name with a newline or a separator in it can't shift or forge a row. A name is cut after
# its column is read, at a whole character: so its column is a character wider.
JOB_FIELDS: tuple[tuple[str, int], ...] = (
    ("JobID", 12), ("ArrayJobID", 12), ("ArrayTaskID", 72), ("HetJobID", 12), ("HetJobOffset", 6), ("State", 20),
    ("Reason", REASON_BYTES + 4), ("UserID", 12),
    ("UserName", 40), ("Partition", 64), ("NumNodes", 12), ("NumCPUs", 12), ("NumTasks", 12), ("tres-alloc", 160),
    ("tres-per-node", 96), ("tres-per-job", 48), ("tres-per-socket", 48), ("tres-per-task", 48), ("NodeList", 1024),
    ("SubmitTime", 14), ("StartTime", 14), ("EligibleTime", 14), ("RestartCnt", 8), ("Requeue", 4),
    ("PriorityLong", 14), ("BatchFlag", 4), ("Account", 64), ("QOS", 64), ("Feature", 256), ("Reservation", 128), ("Name", NAME_BYTES + 4),
    ("MinMemory", 16), ("mem-per-tres", 48), ("cpus-per-tres", 48), ("cpus-per-task", 8), ("MinCpus", 8), ("NTPerNode", 8),
    ("SCT", 24), ("MinTmpDisk", 14), ("MaxNodes", 12), ("ReqNodes", 256), ("OverSubscribe", 8), ("Contiguous", 4),
    ("CoreSpec", 8), ("Licenses", 96), ("ReqSwitch", 12), ("TimeLimit", 18), ("EndTime", 14),
    ("MinTime", 18), ("Dependency", 128), ("Nice", 14),
)  # fmt: skip
NODE_FIELDS: tuple[tuple[str, int], ...] = (
    ("NodeList", 128), ("StateComplete", 128), ("Gres", 256), ("GresUsed", 256), ("Features", 256),
    ("PartitionName", 64), ("Reason", REASON_BYTES + 4), ("CPUsState", 44), ("Memory", 16), ("AllocMem", 16),
    ("Threads", 8), ("Disk", 16), ("Version", 24),
)  # fmt: skip
# Further columns by the first release that has them; any is an error to those before.
JOB_FIELDS_FROM = {(26, 5): (("Exclusive", 8),)}
# hidden partitions too; memory in MiB, not rounded to G
JOB_OPTIONS = ("-a", "--noconvert")
# Columns that mean something else when they are cut: rows that fill one are read again with these widths.
JOB_WIDE = {
    "UserName": 256, "Partition": 4096, "Account": 256, "QOS": 256, "Feature": 4096, "Reservation": 1024,
    "tres-per-node": 4096, "tres-per-job": 4096, "tres-per-socket": 4096, "tres-per-task": 4096, "NodeList": 65536,
    "mem-per-tres": 4096, "cpus-per-tres": 4096, "ReqNodes": 65536, "Licenses": 4096, "Dependency": 4096,
}  # fmt: skip
NODE_WIDE = {"NodeList": 256, "Gres": 8192, "GresUsed": 8192, "Features": 8192, "PartitionName": 256}
_SIGNED = re.compile(r"-?[0-9]{1,10}\Z")


def job_fields(release: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    """Return the columns to ask squeue of `release` for."""
    return JOB_FIELDS + tuple(x for since, fields in JOB_FIELDS_FROM.items() if release >= since for x in fields)


def count(text: str) -> int:
    """Return a count as Slurm prints it: `12`, `1-4`, `2K`, `N/A`."""
    head = text.partition("-")[0]
    if head[-1:] in "KM" and head[:-1].replace(".", "", 1).isdigit():
        return int(float(head[:-1]) * (1024 if head[-1] == "K" else 1024**2))
    return int(head) if head.isdigit() else 0


def value(text: str) -> str:
    return "" if text in ("N/A", "(null)") else text


def parse_time(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def job_row(f: Mapping[str, str]) -> JobRow:
    """Return one row of squeue. Raises SlurmError."""
    if not (f["JobID"].isdecimal() and f["UserID"].isdecimal()):
        raise SlurmError("squeue", f"answer not understood (job {f['JobID']!r}, user {f['UserID']!r})", transient=False)
    job_id = int(f["JobID"])
    # some releases show memory of a GPU there too
    min_memory = 0 if per_gpu(f["mem-per-tres"]) else parse_mib(f["MinMemory"])
    memory = parse_mib(tres_counts(f["tres-alloc"]).get("mem", ""))
    sockets, cores, threads = (f["SCT"].split(":") + ["*"] * 3)[:3]
    array, het = value(f["ArrayTaskID"]) != "", value(f["HetJobID"]) != ""
    per = (value(f[k]) for k in ("tres-per-job", "tres-per-socket", "tres-per-task"))
    nodes, cpus = nodes_and_cpus(f["tres-alloc"])
    return JobRow(
        job_id=job_id,
        name=shorten(f["Name"], NAME_BYTES),
        user=f["UserName"],
        uid=int(f["UserID"]),
        partition=f["Partition"],
        state=job_state(f["State"]),
        reason=shorten(f["Reason"], REASON_BYTES),
        num_nodes=nodes or count(f["NumNodes"]),
        num_cpus=cpus or count(f["NumCPUs"]),
        num_tasks=count(f["NumTasks"]),
        tres_per_node=value(f["tres-per-node"]),
        tres_other=",".join(x for x in per if x),
        node_names=node_names(f["NodeList"], job_id),
        submit_s=parse_time(f["SubmitTime"]) or 0.0,
        start_s=parse_time(f["StartTime"]),
        eligible_s=parse_time(f["EligibleTime"]),
        restarts=count(f["RestartCnt"]),
        requeue=f["Requeue"] == "1",
        priority=count(f["PriorityLong"]),
        batch=count(f["BatchFlag"]) > 0,  # Slurm adds 1 at a requeue after a failed node or start
        array=array,
        het=het,
        account=value(f["Account"]),
        qos=value(f["QOS"]),
        features=value(f["Feature"]),
        reservation=value(f["Reservation"]),
        memory_mib=memory,
        min_memory_mib=min_memory,
        memory_per_cpu=memory_is_per_cpu(min_memory, memory, cpus or 1, nodes or 1),
        memory_per_gpu_mib=per_gpu(f["mem-per-tres"]),
        cpus_per_task=count(f["cpus-per-task"]) or 1,
        cpus_per_gpu=per_gpu(f["cpus-per-tres"]),
        min_cpus=count(f["MinCpus"]) or 1,
        tasks_per_node=count(f["NTPerNode"]),
        threads_per_core=count(threads),
        sockets_cores="" if (sockets, cores) == ("*", "*") else f"{sockets}:{cores}",
        tmp_disk_mib=parse_mib(f["MinTmpDisk"]),
        max_nodes=count(f["MaxNodes"]),
        req_nodes=node_names(value(f["ReqNodes"]), job_id),
        oversubscribe=_sharing(f),
        contiguous=f["Contiguous"] == "1",
        core_spec=count(f["CoreSpec"]),
        licenses=value(f["Licenses"]),
        switches=count(f["ReqSwitch"]),
        time_limit_s=parse_seconds(f["TimeLimit"]),
        end_s=parse_time(f["EndTime"]),
        min_time_s=parse_seconds(f["MinTime"]) or 0.0,
        dependency=value(f["Dependency"]),
        array_job_id=count(f["ArrayJobID"]) if array else 0,
        array_task=value(f["ArrayTaskID"]),
        het_job_id=count(f["HetJobID"]) if het else 0,
        het_offset=count(f["HetJobOffset"]),
        tres_gpus=count(tres_counts(f["tres-alloc"]).get("gres/gpu", "")),
        nice=int(f["Nice"]) if _SIGNED.match(f["Nice"]) else 0,
    )


def _sharing(f: Mapping[str, str]) -> str:
    """Return `JobRow.oversubscribe`.

    From 26.05 on the words for whole nodes are a column of their own, and OverSubscribe=NO says less.
    """
    if "Exclusive" not in f:
        return f["OverSubscribe"]
    return {"NODE": "NO", "TOPO": "NO", "NO": "OK"}.get(f["Exclusive"], f["Exclusive"])


def tres_counts(tres: str) -> dict[str, str]:
    """Return the counts of `cpu=2,mem=125G,node=2` by name."""
    return dict(x.partition("=")[::2] for x in tres.split(","))


@lru_cache(4096)  # most jobs of a queue are alike
def nodes_and_cpus(tres: str) -> tuple[int, int]:
    """Return the counts of nodes and CPUs in `cpu=2,mem=125G,node=2,billing=2`, or 0 if it has none."""
    counts = tres_counts(tres)
    return count(counts.get("node", "")), count(counts.get("cpu", ""))


def node_names(text: str, job_id: int) -> tuple[str, ...]:
    """Return the names of a host list of job `job_id`. Raises SlurmError."""
    return expand_names(text, f"job {job_id}")


def expand_names(text: str, where: str) -> tuple[str, ...]:
    try:
        return expand(text, where)
    except UsageError as error:
        raise SlurmError(where, error.what, transient=False) from None


def parse_node_state(f: Mapping[str, str]) -> str:
    """Return a node's state from the columns StateComplete and Version."""
    return registered_state(node_state(f["StateComplete"]), value(f["Version"]))


def node_row(f: Mapping[str, str], partitions: tuple[str, ...]) -> SlurmNodeRow:
    """Return one row of sinfo, which has one for each partition of a node: `partitions` are those of the rows before."""
    cpus = f["CPUsState"].split("/")  # allocated/idle/other/total
    return SlurmNodeRow(
        name=f["NodeList"],
        state=parse_node_state(f),
        gres=value(f["Gres"]),
        gres_used=value(f["GresUsed"]),
        features=tuple(x for x in value(f["Features"]).split(",") if x),
        partitions=tuple(sorted({*partitions, f["PartitionName"]})),
        reason="" if f["Reason"] == "none" else shorten(f["Reason"], REASON_BYTES),
        cpus=count(cpus[-1]),
        cpus_alloc=count(cpus[0]),
        memory_mib=parse_mib(f["Memory"]),
        memory_alloc_mib=parse_mib(f["AllocMem"]),
        threads_per_core=count(f["Threads"]) or 1,
        tmp_disk_mib=parse_mib(f["Disk"]),
    )
