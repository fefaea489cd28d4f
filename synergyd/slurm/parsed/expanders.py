"""Allocations that jobs' launchers got beside the jobs' own: their nodes are the jobs'."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from synergy_core.records import JobState
from synergy_core.wire.expander import job_of_expander

from synergyd.slurm.parsed.rows import JobRow
from synergyd.slurm.parsed.snapshot import state_from_row

_ROUNDED_S = 120.0  # limits are in minutes, and salloc takes its own seconds


@dataclass(frozen=True, kw_only=True)
class JoinedNodes:
    """The nodes that the launchers of a job's incarnation `restarts` were asked to bring in."""

    restarts: int
    names: frozenset[str]


def find_expanders(rows: Iterable[JobRow], joined: Mapping[int, JoinedNodes]) -> dict[int, tuple[JobRow, ...]]:
    """Return the running allocations beside each job's own.

    The name of such an allocation says whose it is, and anybody can give a job this name. So it counts only with the job's own user, and
    on nodes that the job's launchers were asked for.
    """
    rows = tuple(rows)
    jobs = {row.job_id: row for row in rows if row.job_id in joined}
    beside: dict[int, tuple[JobRow, ...]] = {}
    for row in rows:
        job_and_restarts = job_of_expander(row.name) if joined else None
        job = jobs.get(job_and_restarts[0]) if job_and_restarts is not None else None
        if job_and_restarts is None or job is None or row.uid != job.uid or state_from_row(row) is not JobState.RUNNING:
            continue
        joined_nodes = joined[job.job_id]
        if (
            job_and_restarts[1] == job.restarts == joined_nodes.restarts
            and row.node_names
            and set(row.node_names) <= joined_nodes.names
        ):
            beside[job.job_id] = (*beside.get(job.job_id, ()), row)
    return beside


def find_unclaimed(
    rows: Iterable[JobRow], beside: Mapping[int, tuple[JobRow, ...]], at_rest: Collection[int]
) -> Iterator[int]:
    """Yield the running allocations that bear such a name and have no run: `find_expanders` has returned `beside` for these rows.

    `at_rest`: the jobs that run and are not being changed. Such an allocation has no batch script: nothing that a user would miss.
    """
    rows = tuple(rows)
    claimed = {other.job_id for others in beside.values() for other in others}
    running = {r.job_id: r for r in rows if state_from_row(r) in (JobState.RUNNING, JobState.SUSPENDED)}
    for row in running.values():
        job_and_restarts = None if row.batch or row.job_id in claimed else job_of_expander(row.name)
        if job_and_restarts is not None:
            job = running.get(job_and_restarts[0])
            has_run = job is not None and (job.uid, job.restarts) == (row.uid, job_and_restarts[1])
            if not has_run or job_and_restarts[0] in at_rest:
                yield row.job_id


def find_short_limits(rows: Iterable[JobRow], beside: Mapping[int, tuple[JobRow, ...]]) -> Iterator[tuple[int, str]]:
    """Yield the allocations of `beside` (`find_expanders`) that would end before their job's own, with the TimeLimit that they need.

    They were made with the rest of the job's limit, which an admin may have raised since.
    """
    for row in rows:
        # a job that waits again has no end either
        for other in beside.get(row.job_id, ()) if state_from_row(row) is JobState.RUNNING else ():
            if other.end_s is None or other.start_s is None:
                continue
            if row.end_s is None:
                yield other.job_id, "UNLIMITED"
            elif row.end_s - other.end_s > _ROUNDED_S:
                yield other.job_id, str(math.ceil((row.end_s - other.start_s) / 60))


def with_expanders(row: JobRow, beside: Iterable[JobRow]) -> JobRow:
    """Return the row of a running job with what it has in the allocations `beside` its own."""
    for other in beside if state_from_row(row) in (JobState.RUNNING, JobState.SUSPENDED) else ():
        row = replace(
            row,
            node_names=(*row.node_names, *other.node_names),
            num_nodes=row.num_nodes + other.num_nodes,
            num_cpus=row.num_cpus + other.num_cpus,
            num_tasks=row.num_tasks + other.num_tasks,
            memory_mib=row.memory_mib + other.memory_mib,
            tres_gpus=row.tres_gpus + other.tres_gpus,
        )
    return row


def as_whole_jobs(rows: Iterable[JobRow], beside: Mapping[int, tuple[JobRow, ...]]) -> tuple[JobRow, ...]:
    """Return the rows with each job's allocations as one row."""
    if not beside:
        return tuple(rows)
    parts = {other.job_id for others in beside.values() for other in others}
    return tuple(with_expanders(r, beside.get(r.job_id, ())) for r in rows if r.job_id not in parts)
