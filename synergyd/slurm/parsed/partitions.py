"""`scontrol show partition --oneliner` and `scontrol show config` -> the partitions' limits and defaults. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from synergy_core.errors import UsageError
from synergy_core.wire.hostlist import expand

from synergyd.slurm.parsed.rows import PartitionRow, config_values, parse_seconds

_NONE = ("", "ALL", "NONE", "N/A", "(null)", "UNLIMITED", "INFINITE")


def partition_rows(partitions: str, config: str) -> tuple[PartitionRow, ...]:
    """Return one row for each line of `partitions`.

    Values that a partition does not give itself are the cluster's, from `config`. No value in either has white
    space that matters here, and each key=value ends at the first `=`.
    """
    cluster = config_values(config)
    rows = []
    for line in partitions.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if fields.get("PartitionName"):
            rows.append(_row(fields, cluster))
    return tuple(rows)


def _row(f: Mapping[str, str], cluster: Mapping[str, str]) -> PartitionRow:
    own = f.get("SelectTypeParameters", "")
    select = (cluster.get("SelectTypeParameters", "") if own in _NONE else own).upper()
    per_gpu = dict(x.partition("=")[::2] for x in f.get("JobDefaults", "").split(","))
    for word in cluster.get("JobDefaults", "").split(","):
        per_gpu.setdefault(*word.partition("=")[::2])
    defaults, most = _memory("Def", f, cluster), _memory("Max", f, cluster)
    exclusive = f.get("Exclusive", "")  # from 26.05, in place of OverSubscribe=EXCLUSIVE and ExclusiveUser
    return PartitionRow(
        name=f["PartitionName"],
        state=f.get("State", "UP"),
        max_nodes=_number(f.get("MaxNodes", "")),
        max_time_s=parse_seconds(f.get("MaxTime", "")),
        max_cpus_per_node=_number(f.get("MaxCPUsPerNode", "")),
        def_mem_per_node_mib=defaults.get("Node"),
        def_mem_per_cpu_mib=defaults.get("CPU"),
        def_mem_per_gpu_mib=_number(per_gpu.get("DefMemPerGPU", "")),
        max_mem_per_node_mib=most.get("Node"),
        def_cpus_per_gpu=_number(per_gpu.get("DefCpuPerGPU", "")) or 0,
        allow_accounts=_names(f.get("AllowAccounts", "")),
        deny_accounts=_names(f.get("DenyAccounts", "")),
        allow_qos=_names(f.get("AllowQos", "")),
        deny_qos=_names(f.get("DenyQos", "")),
        allow_groups=_names(f.get("AllowGroups", "")),
        oversubscribe=f.get("OverSubscribe", "NO"),
        exclusive_user=f.get("ExclusiveUser", "NO") == "YES" or exclusive == "USER",
        grace_s=float(_number(f.get("GraceTime", "")) or 0),
        nodes=_nodes(f.get("Nodes", "")),
        gpus=_number(dict(x.partition("=")[::2] for x in f.get("TRES", "").split(",")).get("gres/gpu", "")),
        resume_timeout_s=_seconds(f.get("ResumeTimeout", "")) or _seconds(cluster.get("ResumeTimeout", "")),
        qos="" if f.get("QoS", "") in _NONE else f["QoS"],
        counts_memory="MEMORY" in select,
        whole_nodes=f.get("OverSubscribe", "") == "EXCLUSIVE"
        or exclusive in ("NODE", "TOPO")
        or cluster.get("SelectType", "") == "select/linear",
        whole_cores=not any(x.startswith("CR_CPU") for x in select.split(",")),
    )


def _memory(kind: str, f: Mapping[str, str], cluster: Mapping[str, str]) -> dict[str, int]:
    """Return {Node or CPU: MiB} of `DefMemPerNode=...`, `MaxMemPerCPU=...`, or {} if there is neither default nor limit."""
    for where in (f, cluster):
        for unit in ("Node", "CPU"):
            mib = _number(where.get(f"{kind}MemPer{unit}", ""))
            if mib:
                return {unit: mib}
    return {}


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _seconds(text: str) -> float | None:
    """Return the seconds of `60` or `60 sec`, or None for other words (`GLOBAL`)."""
    number = _number(text.removesuffix("sec").strip())
    return None if number is None else float(number)


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return tuple(expand(text, "a partition's nodes")) if text not in _NONE else ()
    except UsageError:
        return ()


def _names(text: str) -> tuple[str, ...]:
    return () if text in _NONE else tuple(x for x in text.split(",") if x)
