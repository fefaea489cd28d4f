"""Slurm's rows and what is known of each job -> the records that decisions are made from. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from synergyd.records import Cluster, Directive, Job, JobState, Node, Shape
from synergyd.slurm.rows import JobRow, NodeRow, gpu_items, gpus_of

_STATES = {
    "PENDING": JobState.PENDING, "RUNNING": JobState.RUNNING, "COMPLETING": JobState.COMPLETING, "SUSPENDED": JobState.SUSPENDED,
    "CONFIGURING": JobState.RUNNING, "RESIZING": JobState.RUNNING, "SIGNALING": JobState.RUNNING, "STAGE_OUT": JobState.COMPLETING,
    "STOPPED": JobState.SUSPENDED, "REQUEUED": JobState.PENDING, "REQUEUE_HOLD": JobState.PENDING, "REQUEUE_FED": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING, "RESV_DEL_HOLD": JobState.PENDING, "POWER_UP_NODE": JobState.RUNNING,
    **dict.fromkeys(
        ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
        JobState.DONE,
    ),
}  # fmt: skip
_SIMPLE = re.compile(r"[^&|\[\]()*:]+(&[^&|\[\]()*:]+)*|[^&|\[\]()*:]+(\|[^&|\[\]()*:]+)*")
_BAD_NODE = (
    "down",
    "drain",
    "fail",
    "maint",
    "unknown",
    "not_responding",
    "reboot",
    "power",
    "inval",
    "planned_down",
    "future",
    "reserved",
    "blocked",
)


@dataclass(frozen=True)
class Known:
    """What was learnt of a job when it was first seen: its directive, or why that is wrong; the size of its sbatch line."""

    directive: Directive | None
    error: str
    asked: Shape
    cpus_per_node: int
    # tasks of its sbatch line where they are more than one a node: such a job keeps its size
    own_tasks: int | None = None
    note: str = ""  # an operator's own AdminComment, kept


def state_of(row: JobRow) -> JobState:
    """Slurm's state, as far as Synergy tells them apart.

    A state that is not known (of a newer Slurm) counts as COMPLETING: such a job is neither forgotten nor written to.
    """
    return _STATES.get(row.state.split("+")[0].upper(), JobState.COMPLETING)


def node_of(row: NodeRow) -> Node:
    """One node; `up` only in states that take new jobs."""
    gpu_type, gpus = gpus_of(row.gres)
    used = sum(count for kind, count in gpu_items(row.gres_used) if kind in ("", gpu_type))
    state = row.state.lower()
    bad = any(word in state for word in _BAD_NODE) or any(mark in state for mark in "*~#!%$@^")
    return Node(row.name, gpu_type or "gpu", gpus, min(used, gpus), not bad, row.partitions, row.features, row.reason)


def cluster_of(
    rows: Iterable[NodeRow], partitions: tuple[str, ...] = (), leaves: Mapping[str, str] | None = None
) -> Cluster:
    """All nodes with GPUs, of the partitions named (all, where none is). `leaves`: leaf switch by node name."""
    nodes = (replace(node_of(r), leaf=(leaves or {}).get(r.name, "")) for r in rows)
    return Cluster(tuple(n for n in nodes if n.gpus and (not partitions or set(partitions) & set(n.partitions))))


def shape_of(row: JobRow, gpu_type_of_node: Mapping[str, str]) -> Shape:
    """What the job holds or asks for; type '' where it asks for any and has none yet."""
    kind, count = gpus_of(row.tres_per_node)
    if row.node_names:
        kind = gpu_type_of_node.get(row.node_names[0], kind)
    return Shape(kind, max(1, row.num_nodes), count)


def not_resizable(row: JobRow, directive: Directive) -> str:
    """Why this job keeps the size it asked for, or ''."""
    if not directive.resize:
        return "its directive says resize=no"
    if row.het:
        return "it is part of a heterogeneous job, whose parts keep their sizes"
    if not row.batch:
        return "it is no batch job (salloc or srun)"
    if not row.requeue:
        return "it may not be requeued (--no-requeue)"
    if gpus_of(row.tres_per_node)[1] == 0 or gpu_items(row.tres_other):
        return "it asks for GPUs by job, task or socket, or for none: ask by node, --gres=gpu:N"
    if row.num_tasks > row.num_nodes:
        return f"it has {row.num_tasks} tasks on {row.num_nodes} nodes: one task a node is needed (srun synergy-launch)"
    return ""


def beyond_placing(row: JobRow) -> str:
    """Why Synergy can't name nodes for this job, or ''."""
    if row.reservation:
        return f"it is in the reservation {row.reservation}, whose nodes Slurm names"
    if row.features and not _SIMPLE.fullmatch(row.features):
        return f"its --constraint={row.features} is more than names joined by & or by |"
    return ""


def crowded_partitions(rows: Iterable[JobRow], ours: Container[int]) -> frozenset[str]:
    """Partitions in which jobs that are not Synergy's wait for GPUs now: there, no Synergy job may grow beyond what it asked for."""
    waiting = frozenset(("Resources", "Priority", "None", ""))
    return frozenset(
        partition
        for r in rows
        if r.job_id not in ours and r.state == "PENDING" and r.priority > 0 and r.reason.strip("()") in waiting
        if gpus_of(r.tres_per_node)[1] or gpus_of(r.tres_other)[1]
        for partition in r.partition.split(",")
    )


def held_to_asked(job: Job) -> Job:
    """The job, in a crowded partition: at most the size it asked for."""
    if job.directive is None:
        return job
    most = max(job.asked.gpus, job.directive.min_gpus or 1)
    return replace(job, directive=replace(job.directive, max_gpus=min(most, job.directive.max_gpus or most)))


def job_of(row: JobRow, known: Known, gpu_type_of_node: Mapping[str, str], *, paused: bool) -> Job:
    """One Synergy job as Slurm shows it."""
    state = state_of(row)
    directive, error = known.directive, known.error
    if directive is not None and state is JobState.PENDING and (beyond := beyond_placing(row)):
        directive, error = None, f"Synergy leaves the job to Slurm: {beyond}"
    fixed = ""
    if directive is not None:
        typed = gpus_of(row.tres_per_node)[0]
        if typed:  # Slurm keeps a typed request's type for ever: an update to another leaves the job unrunnable
            directive = replace(directive, gpu_types=(typed,))
        fixed = not_resizable(row, directive)
    shape = shape_of(row, gpu_type_of_node)
    return Job(
        job_id=row.job_id,
        name=row.name,
        user=row.user,
        uid=row.uid,
        partition=row.partition,
        state=state,
        reason=row.reason,
        submit_s=row.submit_s,
        start_s=row.start_s if state is not JobState.PENDING else None,
        begin_s=row.eligible_s if state is JobState.PENDING else None,
        restarts=row.restarts,
        shape=shape,
        asked=known.asked if known.asked.gpu_type else replace(known.asked, gpu_type=shape.gpu_type),
        node_names=row.node_names,
        held=state is JobState.PENDING and row.priority == 0,
        paused=paused,
        directive=directive,
        directive_error=error,
        fixed=fixed,
        account=row.account,
        qos=row.qos,
        features=row.features,
        priority=float(row.priority),
    )
