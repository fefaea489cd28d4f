"""Heterogeneous jobs: which component is resized, what names it to Slurm, and where it has room. Pure.

A write to the leader's id reaches every component, so start time, time limit and requeue go there. A size is written by the
component's own id. The leader has no such id: scontrol refuses NumNodes and ReqNodeList for `LEADER+0` (22.05,
update_job.c: _is_single_job). Slurm gives no two components of a job the same node, and places them in their order without
looking at what the later ones require: so no nodes are named either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from synergy_core.records import Cluster, Job, JobState

from synergyd.slurm.parsed.rows import JobRow, SlurmNodeRow, gpu_items

Parts = Mapping[int, tuple[JobRow, ...]]  # by the leader's job id: a heterogeneous job's components, by offset


def group_components(rows: Iterable[JobRow]) -> dict[int, tuple[JobRow, ...]]:
    """Return the components of each heterogeneous job."""
    by_leader: dict[int, list[JobRow]] = defaultdict(list)
    for row in rows:
        if row.het:
            by_leader[row.het_job_id].append(row)
    return {leader: tuple(sorted(parts, key=lambda r: r.het_offset)) for leader, parts in by_leader.items()}


def is_resized(row: JobRow, parts: tuple[JobRow, ...]) -> bool:
    """Return whether this is the component that the directive is about, or (if there is none such) the one that tells why."""
    with_gpus = [r for r in parts if _asks(r)]
    component = with_gpus[0] if len(with_gpus) == 1 else parts[0] if parts else row
    return component.job_id == row.job_id


def resize_obstacle(parts: tuple[JobRow, ...]) -> str:
    """Return why Synergy leaves the heterogeneous job of these components to Slurm, or ''."""
    if not parts or parts[0].het_offset:
        return "not all of its components are known"
    with_gpus = [r for r in parts if _asks(r)]
    if len(with_gpus) != 1:
        return f"{len(with_gpus) or 'none'} of its components ask{'s' * (not with_gpus)} for GPUs: one can be resized"
    if not with_gpus[0].het_offset:
        return "its first component asks for the GPUs, and Slurm sets the size of later ones only: let it come second"
    if not parts[0].requeue:
        return "it may not be requeued (--no-requeue)"
    if len({r.time_limit_s for r in parts}) > 1:
        return "its components have different time limits, of which a restart keeps one"
    return ""


def with_leader(row: JobRow, parts: Parts) -> JobRow:
    """Return a component with what Slurm holds the whole job by: dependencies and start times may be another component's."""
    whole = parts.get(row.het_job_id, ()) if row.het else ()
    if not whole:
        return row
    eligible_s = [r.eligible_s for r in whole if r.eligible_s is not None]
    dependency = row.dependency or next((r.dependency for r in whole if r.dependency), "")
    return replace(row, dependency=dependency, eligible_s=max(eligible_s, default=row.eligible_s))


def avoid_other_components(job: Job, row: JobRow, parts: Parts, cluster: Cluster, nodes: Iterable[SlurmNodeRow]) -> Job:
    """Keep the job off the nodes that its other components hold, and off as many as they will need. `nodes`: all that Slurm has."""
    if not row.het or job.directive is None:
        return job
    others = [r for r in parts.get(row.het_job_id, ()) if r.job_id != row.job_id]
    held_nodes = {name for r in others for name in r.node_names} if job.state is JobState.RUNNING else set()
    own = set(row.partition.split(","))
    mine = [n for n in cluster.nodes if (n.up or n.name in job.node_names) and own & set(n.partitions)]
    names, kinds = {n.name for n in mine} - held_nodes, {n.gpu_type for n in mine}
    theirs = {p for r in others for p in r.partition.split(",")}
    aside = {n.name for n in nodes if theirs & set(n.partitions)} - names
    room = max(1, len(names) - max(0, sum(r.num_nodes for r in others) - len(aside)))
    why_fixed = job.fixed
    if not why_fixed and len(kinds) > 1 and not any(kind for kind, _ in gpu_items(row.tres_per_node)):
        why_fixed = "its partition has several types of GPUs, and Slurm places components of heterogeneous jobs itself"
    return replace(
        job,
        exclude=tuple(sorted({*job.exclude, *held_nodes})),
        max_nodes=min(room, job.max_nodes or room),
        fixed=why_fixed,
        placed_by_slurm=True,
    )


def _asks(row: JobRow) -> bool:
    return any(count for text in (row.tres_per_node, row.tres_other) for _, count in gpu_items(text))
