"""The plain jobs with GPUs of a queue, and those of them that a dry run decides about as if they had a `#SYNERGY` line."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from synergy_core.records import Directive, Job, JobState

from synergyd.daemon.usage_look import gpus_of_job
from synergyd.jobmodel.prior_cells import hypothetical
from synergyd.slurm.parsed.job_forms import is_pending_array_remainder
from synergyd.slurm.parsed.needs import placement_obstacle
from synergyd.slurm.parsed.rows import JobRow, PartitionRow, gpu_items, parse_gpus
from synergyd.slurm.parsed.snapshot import SubmittedJob, is_managed, job_from_row, shape_from_row, state_from_row

_QUEUED = (JobState.PENDING, JobState.RUNNING)


def plain_rows(rows: Iterable[JobRow], ours: Container[int], partitions: tuple[str, ...]) -> Iterator[JobRow]:
    """Yield the rows with GPUs that wait or run among the jobs that the setting Partitions names, and are not `ours`."""
    for row in rows:
        if (
            row.job_id not in ours
            and state_from_row(row) in _QUEUED
            and is_managed(row, partitions)
            and gpus_of_job(row)
        ):
            yield row


def held_gpus(rows: Iterable[JobRow]) -> int:
    """Return the GPUs that the running ones of `rows` hold."""
    return sum(gpus_of_job(row) for row in rows if state_from_row(row) is JobState.RUNNING)


def hypothetical_jobs(
    rows: Iterable[JobRow], gpu_types: Mapping[str, str], limits: Mapping[str, PartitionRow], topology: bool
) -> Iterator[Job]:
    """Yield the plain `rows` that could have a `#SYNERGY` line, as jobs with one.

    These are batch jobs on several GPUs that they ask for by node, as the forecast counts them. That a script would have to start its
    training through synergy-launch, and be fit for a requeue, is assumed. `limits`: partitions by name.
    """
    for row in rows:
        by_node = parse_gpus(row.tres_per_node)[1] and not gpu_items(row.tres_other)
        if not by_node or not row.batch or row.het or is_pending_array_remainder(row) or gpus_of_job(row) < 2:
            continue
        if placement_obstacle(row, topology):
            continue
        launched = replace(row, num_tasks=row.num_nodes, requeue=True)
        requested_shape = shape_from_row(launched, gpu_types if row.node_names else {})
        cpus = max(1, row.num_cpus // max(1, row.num_nodes))
        submitted_job = SubmittedJob(Directive(), "", requested_shape, cpus, nodelist=row.req_nodes, uid=row.uid)
        job = job_from_row(launched, submitted_job, gpu_types, is_paused=False, partitions=limits, topology=topology)
        if job.directive is not None and not job.fixed:
            yield hypothetical(job)
