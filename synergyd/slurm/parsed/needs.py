"""The job's needs on each node besides GPUs, and which of its partitions would take it, from Slurm's rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from synergy_core.constraint import constraint_obstacle
from synergy_core.node_needs import NO_ROOM, NodeNeeds, Room

from synergyd.slurm.parsed.rows import JobRow, PartitionRow, SlurmNodeRow, gres_items

_COUNT = re.compile(r"([0-9]{1,12})([KMGT]?)\Z")
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
MORE_NODES, MORE_TIME = (
    "PartitionMaxNodes",
    "PartitionTimeLimit",
)  # a QOS with the flag comes over the partition's limit
_SHUT = ("DOWN", "INACTIVE")  # a partition that drains still starts what waits in it


def needs_of(row: JobRow, cpus_per_node: int, partitions: Sequence[PartitionRow]) -> NodeNeeds:
    """Return what Slurm would charge on each node.

    `cpus_per_node`: from its sbatch line, which our updates keep; `partitions`: those that it may run in; the
    strictest of several counts.
    """
    cpus = max(cpus_per_node, row.min_cpus, row.tasks_per_node * row.cpus_per_task)
    cpus_per_gpu = row.cpus_per_gpu or max((p.def_cpus_per_gpu for p in partitions), default=0)
    defaults = [p.def_mem_per_gpu_mib for p in partitions if p.def_mem_per_gpu_mib]
    per_gpu = row.memory_per_gpu_mib or (max(defaults, default=0) if not row.min_memory_mib else 0)
    # with one CPU a node squeue's figures don't tell: the memory is then per CPU if its partition's default is
    same = row.num_cpus == row.num_nodes and any(p.def_mem_per_cpu_mib == row.min_memory_mib for p in partitions)
    node = cpu = 0
    if not per_gpu:
        node, cpu = (0, row.min_memory_mib) if row.memory_per_cpu or same else (row.min_memory_mib, 0)
    is_memory_counted = any(p.counts_memory for p in partitions)
    others = other_gres(row.tres_per_node)
    return NodeNeeds(
        cpus=cpus,
        cpus_per_gpu=cpus_per_gpu,
        memory_mib=node if is_memory_counted else 0,
        memory_per_cpu_mib=cpu if is_memory_counted else 0,
        memory_per_gpu_mib=per_gpu if is_memory_counted else 0,
        whole_memory=is_memory_counted and not (node or cpu or per_gpu),
        whole_nodes=row.oversubscribe in ("NO", "USER", "MCS")
        or any(p.whole_nodes or p.exclusive_user for p in partitions),
        one_thread=row.threads_per_core == 1,
        gres=tuple(sorted(others.items())),
        total_memory_mib=max(node, cpu * cpus),
        tmp_disk_mib=row.tmp_disk_mib,
        max_cpus=min((p.max_cpus_per_node for p in partitions if p.max_cpus_per_node), default=0),
        max_memory_mib=min((p.max_mem_per_node_mib for p in partitions if p.max_mem_per_node_mib), default=0),
    )


def open_partitions(
    row: JobRow,
    asked_nodes: int,
    partitions: Mapping[str, PartitionRow],
    groups: frozenset[str] | None = None,
    qos_flags: frozenset[str] | None = None,
) -> tuple[tuple[str, ...], str]:
    """Return (the job's partitions that would take it at the size it asked for, "" or why none would).

    A partition that is not known would. `groups`: its user's, `qos_flags`: its QOS's; None: not known.
    """
    names, shut = [], []
    for name in row.partition.split(","):
        why = _shut(row, asked_nodes, partitions.get(name), groups, qos_flags)
        if why:
            shut.append(f"{name}: {why}")
        else:
            names.append(name)
    return tuple(names), "" if names else f"no partition of its takes it now ({'; '.join(shut)})"


def _shut(
    row: JobRow,
    asked_nodes: int,
    p: PartitionRow | None,
    groups: frozenset[str] | None,
    qos_flags: frozenset[str] | None,
) -> str:
    if p is None:
        return ""
    if p.state in _SHUT:
        return f"it is {p.state}"
    if p.max_nodes is not None and p.max_nodes < asked_nodes and MORE_NODES not in (qos_flags or ()):
        return f"MaxNodes={p.max_nodes}"
    if p.max_time_s is not None and qos_flags is not None and MORE_TIME not in qos_flags:
        # EnforcePartLimits concerns sbatch alone; a limit that an admin has raised beyond it shows nowhere (22.05)
        least_s = row.min_time_s or row.time_limit_s
        if least_s is not None and least_s > p.max_time_s:
            return f"MaxTime={p.max_time_s / 60:g} min"
    account, qos = row.account.lower(), row.qos.lower()
    if account and ((p.allow_accounts and account not in _low(p.allow_accounts)) or account in _low(p.deny_accounts)):
        return f"account {row.account} is not allowed"
    if qos and ((p.allow_qos and qos not in _low(p.allow_qos)) or qos in _low(p.deny_qos)):
        return f"QOS {row.qos} is not allowed"
    if p.allow_groups and row.uid and groups is not None and not groups.intersection(p.allow_groups):
        return f"none of {row.user}'s groups is allowed"
    return ""


def placement_obstacle(row: JobRow, topology: bool = False) -> str:
    """Return why Synergy can't name nodes for this job, or ''. `topology`: the nodes' leaf switches are known."""
    if row.licenses:
        return f"it asks for licences ({row.licenses}), which Slurm counts"
    if row.switches and not topology:
        return f"it asks for at most {row.switches} leaf switch{'es' * (row.switches != 1)} (--switches)"
    if row.contiguous:
        return "it asks for nodes side by side (--contiguous)"
    if row.core_spec:
        return "it reserves cores for the system (--core-spec)"
    if row.sockets_cores:
        return f"it asks for sockets and cores ({row.sockets_cores})"
    return constraint_obstacle(row.features)


def read_room(row: SlurmNodeRow) -> tuple[Room | None, Room]:
    """Return (what the node has besides GPUs, what of it is in use), or (None, nothing) if Slurm did not say."""
    if not row.cpus:
        return None, NO_ROOM
    total, used_gres = (tuple(sorted(other_gres(text).items())) for text in (row.gres, row.gres_used))
    return Room(row.cpus, row.memory_mib, total), Room(row.cpus_alloc, row.memory_alloc_mib, used_gres)


def other_gres(gres: str) -> dict[str, int]:
    """Return counts of what is no GPU in a GRES text, by name: `gres:nic:ib:2,gpu:4` -> {nic: 2}.

    Anything not consumed is left out.
    """
    counts: dict[str, int] = {}
    for item in gres_items(gres):
        words = item.partition("(")[0].replace("/", ":").replace("=", ":").split(":")
        words = words[1:] if words[0] == "gres" else words
        if not words or words[0] in ("", "gpu") or "no_consume" in words:
            continue
        number = _COUNT.match(words[-1]) if len(words) > 1 else None
        counts[words[0]] = counts.get(words[0], 0) + (int(number[1]) * _UNITS[number[2]] if number else 1)
    return counts


def _low(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}
