"""Workloads of the Pollux artifact: name,time,application,num_replicas,batch_size, in order of time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from synergy_core.errors import UsageError

from synergy_sim.pollux_truth import read_application
from synergy_sim.records import TraceJob, Truth
from synergy_sim.tables import TableRow, application_folder, in_order, read_table

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
# The reference lets nobody change the batch of this application.
FIXED_BATCH = {"ncf": 32768}


def read(path: Path, profiles: Path | None, gpu_type: str = "t4") -> tuple[TraceJob, ...]:
    """Read the jobs of a workload.

    `profiles` holds a folder for each application (default: traces/ beside the workload's own folder). Raises UsageError.
    """
    folder = profiles or path.parent.parent / "traces"
    return read_jobs(path, lambda row: read_application(application_folder(row, folder), gpu_type), gpu_type)


class Application(Truth, Protocol):
    """The truth of an application's jobs, and the largest batch of one GPU."""

    @property
    def largest_local(self) -> int: ...


def read_jobs(path: Path, application: Callable[[TableRow], Application], gpu_type: str) -> tuple[TraceJob, ...]:
    """Read the jobs of a workload. `application` is called at the first row of each; `gpu_type` "" stands for any. Raises UsageError."""
    rows = read_table(path, COLUMNS)
    in_order(rows, "time", lambda row: row.number("time", 0))
    applications: dict[str, Application] = {}
    jobs = []
    for row in rows:
        kind = row.text("application")
        if kind not in applications:
            applications[kind] = application(row)
        truth = applications[kind]
        batch = row.whole_number("batch_size", 1)
        if not truth.low <= batch <= truth.high:
            right = f"{kind} was measured from {truth.low} to {truth.high}"
            raise row.wrong("batch_size", f"{batch} was not measured", right)
        jobs.append(
            TraceJob(
                row.text("name"),
                kind,
                row.number("time", 0),
                row.whole_number("num_replicas", 1, 100_000),
                FIXED_BATCH.get(kind, batch),
                truth,
                row.where,
                gpu_type,
                batch_fixed=kind in FIXED_BATCH,
                max_micro_batch=truth.largest_local,  # the reference's jobs state it too
            )
        )
    if not jobs:
        raise UsageError(str(path), "has no jobs")
    return tuple(jobs)
