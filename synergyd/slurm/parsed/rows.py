"""Slurm's own view of jobs and nodes, as every backend returns it: one row each, types checked, no meaning added."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_TEXTS = 4096  # kept of what texts mean: most jobs of a queue are alike
_WHOLE = re.compile(r"[0-9]{1,9}\Z")
NAME_BYTES, REASON_BYTES = 64, 128  # names and reasons are for people: every backend cuts them here


@dataclass(frozen=True)
class JobRow:
    """One job of a bulk read. Times are seconds since 1970; None where Slurm has none (yet).

    `num_nodes`, `num_cpus` are what the job holds or asks for: of a pending job they come from its TRES, since NumNodes
    shows the old number until it starts. `tres_per_node` as Slurm prints it (`gres:gpu:a100:4`). `name` and `reason`
    are cut, see `shorten`. A job's --exclude is not here: squeue's long format has no column for it (`node_lists`).
    """

    job_id: int
    name: str
    user: str
    uid: int
    partition: str
    state: str
    reason: str
    num_nodes: int
    num_cpus: int
    num_tasks: int
    tres_per_node: str
    tres_other: str  # requests by job, socket or task, which can't be resized
    node_names: tuple[str, ...]
    submit_s: float
    start_s: float | None
    eligible_s: float | None  # when a pending job may start at the earliest
    restarts: int
    requeue: bool
    priority: int
    batch: bool
    array: bool
    het: bool
    account: str = ""
    qos: str = ""
    features: str = ""
    reservation: str = ""
    # memory of all nodes together, from its TRES; of a job that names none: whole nodes'. 0 where Slurm counts none
    memory_mib: int = 0
    #: MinMemory: of a node (--mem), or of a CPU where `memory_per_cpu`; 0: its partition's default
    min_memory_mib: int = 0
    memory_per_cpu: bool = False
    memory_per_gpu_mib: int = 0
    cpus_per_task: int = 1
    cpus_per_gpu: int = 0
    min_cpus: int = 1  # of a node
    tasks_per_node: int = 0  # --ntasks-per-node, 0 where it was not said
    threads_per_core: int = 0  # usable threads (--threads-per-core, --hint=nomultithread), 0: all
    sockets_cores: str = ""  # per node, as `2:8` if it asks for either; `*` for the one it does not ask for
    tmp_disk_mib: int = 0
    max_nodes: int = 0  # 0 where there is no number
    req_nodes: tuple[str, ...] = ()  # ReqNodeList: its user's --nodelist, or what was written into it
    oversubscribe: str = "OK"  # OK, YES, NO (whole nodes), USER, MCS
    contiguous: bool = False
    core_spec: int = 0
    licenses: str = ""
    switches: int = 0  # most leaf switches (--switches), 0: any
    time_limit_s: float | None = None  # None: unlimited, or its partition's
    end_s: float | None = None  # when its limit ends it, suspended time included
    min_time_s: float = 0.0  # --time-min, 0 where it was not said
    dependency: str = ""
    array_job_id: int = 0  # 0: no array
    array_task: str = ""  # `7`, or of tasks that pend `1-9%2`
    het_job_id: int = 0  # 0: not heterogeneous
    het_offset: int = 0
    nice: int = 0
    #: its record was shown with other tasks' in it: `array_task` has no throttle, whether there is one or not
    merged: bool = False
    tres_gpus: int = 0  # on all nodes, as Slurm counts them (AccountingStorageTRES); 0: it does not


@dataclass(frozen=True)
class SlurmNodeRow:
    """One node of a bulk read; `gres` and `gres_used` as Slurm prints them ('' for none), `state` from `node_state`."""

    name: str
    state: str
    gres: str
    gres_used: str
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    reason: str
    cpus: int = 0
    cpus_alloc: int = 0
    memory_mib: int = 0
    memory_alloc_mib: int = 0  # 0 for ever where Slurm's selection does not count memory
    threads_per_core: int = 1
    tmp_disk_mib: int = 0


@dataclass(frozen=True, kw_only=True)
class PartitionRow:
    """A partition's limits and defaults, the cluster's own where it has none. None: no limit; empty lists: everybody."""

    name: str
    state: str = "UP"
    max_nodes: int | None = None
    max_time_s: float | None = None
    max_cpus_per_node: int | None = None
    #: memory of a job that names none, MiB: of a node, of a CPU, of a GPU; all None: whole nodes'
    def_mem_per_node_mib: int | None = None
    def_mem_per_cpu_mib: int | None = None
    def_mem_per_gpu_mib: int | None = None
    max_mem_per_node_mib: int | None = None
    def_cpus_per_gpu: int = 0
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] = ()
    oversubscribe: str = "NO"
    exclusive_user: bool = False
    grace_s: float = 0.0
    qos: str = ""
    #: its nodes, shown or not
    nodes: tuple[str, ...] = ()
    #: GPUs of all of them; None where Slurm does not count them (AccountingStorageTRES)
    gpus: int | None = None
    #: Slurm's time for a node to power up, seconds; None: it says nothing
    resume_timeout_s: float | None = None
    #: does Slurm count memory here (SelectTypeParameters CR_*_Memory)?
    counts_memory: bool = False
    #: every job gets whole nodes (OverSubscribe=EXCLUSIVE, select/linear)
    whole_nodes: bool = False
    #: CPUs are given out by whole cores (CR_Core, CR_Socket, or nothing said)
    whole_cores: bool = True


def shorten(text: str, limit: int) -> str:
    """Return `text` cut to `limit` bytes of UTF-8, whole characters only, without white space around it."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore").strip()


def job_state(text: str) -> str:
    """Return Slurm's word for a job's state, except for one of 25.11.

    EXPEDITING is PENDING, with priority over all others (--requeue=expedite).
    """
    return "PENDING" if text == "EXPEDITING" else text


def node_state(text: str) -> str:
    """Return Slurm's full state with its flags in one order: `MIXED+PLANNED+DRAIN` -> `mixed+drain+planned`."""
    base, *flags = text.lower().split("+")
    return "+".join([base, *sorted(set(flags))])


@lru_cache(_TEXTS)
def parse_seconds(text: str) -> float | None:
    """Return the seconds of a duration as Slurm prints it: `1-02:03:04`, `02:03:04`, `3:04`. Return None for other text (`UNLIMITED`)."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if len(parts) > 3 or (dash and len(days) > 6) or not all(_WHOLE.match(x) for x in (*parts, days or "0")):
        return None
    if len(parts) == 1 or (dash and len(parts) == 2):  # no seconds: minutes, or days-hours and minutes
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return float(int(days or 0) * 86400 + seconds)


_UNITS_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


@lru_cache(_TEXTS)
def parse_mib(text: str) -> int:
    """Return the MiB of `62.50G`, `1500M` or `64000` (MiB), or 0 for other text."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS_MIB else (text, "M")
    whole, _, part = number.partition(".")
    if not (_WHOLE.match(whole) and (not part or _WHOLE.match(part))):
        return 0
    return round(float(number) * _UNITS_MIB[unit])


@lru_cache(_TEXTS)
def per_gpu(tres: str) -> int:
    """Return the count that `gres:gpu:4`, of cpus-per-tres or mem-per-tres, names for each GPU, or 0 for none."""
    return next((count for _, count in gpu_items(tres)), 0)


def memory_is_per_cpu(min_memory_mib: int, memory_mib: int, cpus: int, nodes: int) -> bool:
    """Return whether MinMemory is per CPU: squeue does not say so, but the job's TRES (all its memory) do."""
    if cpus == nodes or not min_memory_mib:
        return False  # the same
    return abs(memory_mib - min_memory_mib * cpus) < abs(memory_mib - min_memory_mib * nodes)


def gres_items(gres: str) -> list[str]:
    """Return a GRES text's parts; commas inside `(IDX:0,2-3)` do not separate."""
    depth, part, parts = 0, "", []
    for c in gres:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [p for p in (*parts, part) if p]


def gpu_items(gres: str) -> list[tuple[str, int]]:
    """Return (type, count) of each part of a GRES text that is about GPUs: `gpu:a100:4(S:0-1)`, `gres:gpu:2`, `gres/gpu=2`, `gpu`.

    The type is '' if none is named.
    """
    items = []
    for item in gres_items(gres):
        words = item.partition("(")[0].replace("/", ":").replace("=", ":").split(":")
        if words[0] == "gres":
            words = words[1:]
        if not words or words[0] != "gpu":
            continue
        count = int(words[-1]) if _WHOLE.match(words[-1]) else 1
        items.append((words[1] if len(words) > 1 and not _WHOLE.match(words[1]) else "", count))
    return items


@lru_cache(_TEXTS)
def parse_gpus(gres: str) -> tuple[str, int]:
    """Return (type, count) of the GPUs in a GRES text, or ('', 0) if there are none.

    If one node has several types, the first with a count is taken, and one that is named before the untyped total.
    """
    items = sorted(gpu_items(gres), key=lambda item: (item[1] == 0, item[0] == ""))
    return items[0] if items else ("", 0)


def config_values(text: str) -> dict[str, str]:
    """Return the values by key. Each key=value ends at the first `=`; no value has white space at its ends that matters."""
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in text.splitlines())}
