"""Slurm's rows of one look as the queue that forecasts are made of: needs by node, time limits, limits that are reached. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from synergy_core.records import Action, Decision, Job, JobState

from synergyd.control.state.time_view import Reservation
from synergyd.slurm.parsed.job_forms import is_pending_array_remainder
from synergyd.slurm.parsed.node_states import read_offer
from synergyd.slurm.parsed.rows import JobRow, PartitionRow, SlurmNodeRow, gpu_items, parse_gpus
from synergyd.slurm.parsed.snapshot import state_from_row
from synergyd.start_times.records import Amounts, Cap, PendingJob, Program, Queue, QueueNode, RunningJob

START_S = 10.0  # from a decision to the job's start
CHANGE_S = 60.0  # from a decision to when a job has given nodes back: a checkpoint, and Slurm's own time
_TASKS = 100  # tasks of one array that are looked at
_AFTER = re.compile(r"after\w*:([0-9]+)")
_SPAN = re.compile(r"([0-9]+)(?:-([0-9]+))?(?::([0-9]+))?\Z")


@dataclass(frozen=True, kw_only=True)
class QueueLook:
    """One look at Slurm.

    `decided`: the waiting jobs that Synergy starts, as an epoch sees them; `decisions`: of that epoch, by job; `began_s`: when a job first
    ran, where that is not its present start.
    """

    at_s: float
    rows: Sequence[JobRow]
    nodes: Sequence[SlurmNodeRow]
    partitions: Mapping[str, PartitionRow]
    reservations: Sequence[Reservation] = ()
    decided: Mapping[int, Job] = field(default_factory=dict)
    decisions: Mapping[int, Decision] = field(default_factory=dict)


def queue_of(look: QueueLook, began_s: Mapping[int, float]) -> Queue:
    """Return the queue. `began_s`: when a job first ran, where that is not its present start."""
    rows = [row for row in look.rows if not (row.het and row.het_offset)]
    waiting = [_pending(row, look) for row in rows if state_from_row(row) is JobState.PENDING]
    priority = {row.job_id: (-row.priority, row.submit_s, row.job_id) for row in rows}
    waiting.sort(key=lambda job: priority[job.job_id])
    caps = {job.cap for job in waiting if job.cap is not None}
    held_jobs = [job for job in waiting if _is_held(job, look)]
    held_ids = {job.job_id for job in held_jobs}
    states = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
    running = (
        job
        for row in rows
        if state_from_row(row) in states and row.node_names
        for job in _running(row, look, began_s, caps)
    )
    return Queue(
        now_s=look.at_s,
        nodes=tuple(_nodes(look)),
        running=tuple(running),
        pending=tuple(job for job in waiting if job.job_id not in held_ids),
        held=tuple(held_jobs),
    )


def program_of(row: JobRow, partitions: Mapping[str, PartitionRow]) -> Program:
    """Return what tells the runs that are like this one."""
    limits = [p.max_time_s for name in row.partition.split(",") if (p := partitions.get(name)) and p.max_time_s]
    limit_s = row.time_limit_s or min(limits, default=None)
    return Program(row.user, row.account, name_of_program(row.name), limit_s)


def name_of_program(name: str) -> str:
    """Return a job's name but for a number at its end, by which runs of one program differ."""
    return name.rstrip("0123456789").rstrip("-_.") or name


def _nodes(look: QueueLook) -> Iterable[QueueNode]:
    counts_memory = any(p.counts_memory for p in look.partitions.values())
    for row in look.nodes:
        offer = read_offer(row.state)
        if not (offer.up or offer.wakeable or offer.reserved):
            continue
        kinds = gpu_items(row.gres)
        gpus, used_gpus = sum(count for _, count in kinds), sum(count for _, count in gpu_items(row.gres_used))
        total = Amounts(gpus, row.cpus, row.memory_mib if counts_memory else 0)
        free = Amounts(
            max(0, gpus - used_gpus), max(0, row.cpus - row.cpus_alloc), max(0, total.memory_mib - row.memory_alloc_mib)
        )
        closed = tuple((r.start_s, r.end_s, r.name) for r in look.reservations if r.bars and row.name in r.nodes)
        yield QueueNode(
            name=row.name,
            total=total,
            free=free if counts_memory else replace(free, memory_mib=0),
            gpu_type=next((kind for kind, count in kinds if kind and count), ""),
            partitions=frozenset(row.partitions),
            features=frozenset(row.features),
            closed=closed,
        )


def _gpus_of_node(row: JobRow, nodes: int) -> int:
    gpus_per_node = parse_gpus(row.tres_per_node)[1]
    return gpus_per_node or -(-(row.tres_gpus or parse_gpus(row.tres_other)[1]) // nodes)


def _need(row: JobRow, look: QueueLook, nodes: int) -> Amounts:
    counts_memory = any(p.counts_memory for p in look.partitions.values())
    memory = -(-row.memory_mib // nodes) if counts_memory else 0
    return Amounts(_gpus_of_node(row, nodes), max(1, -(-row.num_cpus // nodes)), memory)


def _pending(row: JobRow, look: QueueLook) -> PendingJob:
    names = frozenset(row.partition.split(","))
    limits = [look.partitions[name] for name in names if name in look.partitions]
    nodes = max(1, row.num_nodes)
    job = PendingJob(
        job_id=row.job_id,
        program=program_of(row, look.partitions),
        nodes=nodes,
        need=_need(row, look, nodes),
        partitions=names,
        gpu_type=parse_gpus(row.tres_per_node)[0] or parse_gpus(row.tres_other)[0],
        features=row.features,
        node_names=frozenset(row.req_nodes),
        whole_nodes=row.oversubscribe in ("NO", "USER", "MCS") or any(p.whole_nodes for p in limits),
        reservation=row.reservation,
        submit_s=row.submit_s,
        may_start_s=row.eligible_s or 0.0,
        after=tuple(int(number) for number in _AFTER.findall(row.dependency)),
        cap=_cap(row),
        tasks=_tasks(row),
        slurm_reason=row.reason.strip("()"),
        note=row.dependency or row.licenses,
    )
    decided = look.decided.get(row.job_id)
    return job if decided is None else _as_decided(job, decided, look)


def _as_decided(job: PendingJob, decided: Job, look: QueueLook) -> PendingJob:
    """Return a job that Synergy starts, with what it has decided, or with the least that it can start on."""
    decision = look.decisions.get(job.job_id)
    begin_s = decided.begin_s or look.at_s
    if decision is not None and decision.action is Action.START and decision.cell is not None:
        shape = decision.cell.shape
        job = _on(job, shape.nodes, shape.gpus_per_node)
        return replace(job, gpu_type=shape.gpu_type, planned_s=look.at_s + START_S, may_start_s=0.0, cap=None)
    least = decided.directive.min_gpus if decided.directive is not None else None
    if least and job.need.gpus and least < job.need.gpus * job.nodes:
        each = min(least, job.need.gpus)
        job = _on(job, -(-least // each), each)
    return replace(job, may_start_s=begin_s, cap=None)


def _on(job: PendingJob, nodes: int, gpus: int) -> PendingJob:
    """Return the job on other GPUs, with as much of the rest for each of them."""
    need, share = job.need, gpus / max(1, job.need.gpus)
    amounts = Amounts(gpus, max(1, round(need.cpus * share)), round(need.memory_mib * share))
    return replace(job, nodes=nodes, need=amounts)


def _running(row: JobRow, look: QueueLook, began_s: Mapping[int, float], caps: set[Cap]) -> Iterable[RunningJob]:
    start_s = began_s.get(row.job_id, row.start_s or look.at_s)
    decision = look.decisions.get(row.job_id)
    leaving: tuple[str, ...] = ()
    if decision is not None and decision.action is Action.RESIZE and decision.node_names:
        leaving = tuple(name for name in row.node_names if name not in decision.node_names)
    ending = state_from_row(row) is JobState.COMPLETING
    whose = {("user", row.user), ("account", row.account), ("qos", row.qos), ("array", str(row.array_job_id))}
    job = RunningJob(
        job_id=row.job_id,
        program=program_of(row, look.partitions),
        start_s=start_s,
        limit_end_s=row.end_s if row.time_limit_s is not None or ending else None,
        nodes=tuple(name for name in row.node_names if name not in leaving),
        need=_need(row, look, len(row.node_names)),
        freed_s=look.at_s + START_S if ending else None,
        caps=frozenset(cap for cap in caps if cap[:2] in whose),
        asked=_pending(row, look),
    )
    if job.nodes:
        yield job
    if leaving:
        yield replace(job, nodes=leaving, freed_s=look.at_s + CHANGE_S)


def _cap(row: JobRow) -> Cap | None:
    """Return the limit that Slurm's reason names, if it is free again as soon as others have less."""
    reason = row.reason.strip("()")
    if reason == "JobArrayTaskLimit":
        return ("array", str(row.array_job_id), "jobs")
    if not reason.startswith(("QOS", "Assoc", "MaxJobs", "MaxGRES")) or _is_used_up(reason):
        return None
    measures = {"GRES": "gpus", "Gres": "gpus", "Cpu": "cpus", "CPU": "cpus", "Node": "nodes", "Jobs": "jobs"}
    other = "gpus" if parse_gpus(row.tres_per_node)[1] or row.tres_gpus else "cpus"
    measure = next((kind for word, kind in measures.items() if word in reason), other)
    if "Grp" in reason:
        return ("qos", row.qos, measure) if reason.startswith("QOS") else ("account", row.account, measure)
    return (
        ("account", row.account, measure) if "PerAccount" in reason or "PA" in reason else ("user", row.user, measure)
    )


def _is_used_up(reason: str) -> bool:
    """Return whether more than the end of other jobs is needed: a budget is spent, or the job itself is too large."""
    return (
        "PerJob" in reason
        or "Wall" in reason
        or ("Minutes" in reason and "RunMinutes" not in reason)
        or "Submit" in reason
    )


def _is_held(job: PendingJob, look: QueueLook) -> bool:
    """Return whether somebody must do something before the job can start, or Synergy has not decided to start it."""
    decided = look.decided.get(job.job_id)
    if decided is not None:
        return decided.held or decided.paused
    reason = job.slurm_reason
    shut = any(p.state in ("DOWN", "INACTIVE") for name in job.partitions if (p := look.partitions.get(name)))
    limit = reason.startswith(("QOS", "Assoc", "Partition")) and job.cap is None
    return (
        reason.startswith(("JobHeld", "DependencyNeverSatisfied", "BadConstraints", "launch_failed")) or shut or limit
    )


def _tasks(row: JobRow) -> int:
    if not is_pending_array_remainder(row):
        return 1
    count = 0
    for part in row.array_task.partition("%")[0].split(","):
        if match := _SPAN.match(part):
            low, high, step = int(match[1]), int(match[2] or match[1]), max(1, int(match[3] or 1))
            count += len(range(low, min(high, low + _TASKS * step) + 1, step))
    return max(1, min(_TASKS, count))
