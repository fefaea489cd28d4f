"""Arrivals and lengths as clusters log them: philly.csv (Microsoft's trace) and sacct's output.

How the jobs scale is not in them: see sim/scaling_truth.py for what is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from synergy_core.errors import UsageError

from synergy_sim.records import PlacedGpus, TraceJob
from synergy_sim.scaling_truth import ScalingTruth
from synergy_sim.tables import TableRow, read_table
from synergyd.jobmodel.unknown_model import largest_divisor

PHILLY = ("timestamp", "duration", "num_gpus")
SACCT = ("JobID", "Submit", "ElapsedRaw", "AllocTRES")
_SEQUENCES = 32  # a GPU at the size asked for: what a fixed batch is taken to be
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::[^=,]+)?=(\d+)")
_MOST_GPUS = 1_000_000  # of a job


def read_philly(path: Path, gpu_type: str, gpus_per_node: int, most: int | None = None) -> tuple[TraceJob, ...]:
    """Read philly.csv: timestamp,duration,num_gpus; times count from the first one. `most`: only the first rows."""
    rows = [row for row in read_table(path, PHILLY)[:most] if row.number("duration", 0) > 0]
    rows.sort(key=lambda row: _parse_time(row, "timestamp"))  # the published file is in no order
    return _jobs(
        rows, "timestamp", "duration", lambda row: row.whole_number("num_gpus", 1, _MOST_GPUS), gpu_type, gpus_per_node
    )


def read_sacct(path: Path, gpu_type: str, gpus_per_node: int) -> tuple[TraceJob, ...]:
    """Read the jobs with GPUs that ran from `sacct -X --parsable2 --format=JobID,Submit,ElapsedRaw,AllocTRES`."""
    rows = [row for row in read_table(path, SACCT, "|") if _gpus(row) and row.number("ElapsedRaw", 0) > 0]
    rows.sort(key=lambda row: _parse_time(row, "Submit"))  # sacct sorts by job id
    return _jobs(rows, "Submit", "ElapsedRaw", _gpus, gpu_type, gpus_per_node)


def _gpus(row: TableRow) -> int:
    # a typed and an untyped count of the same GPUs may both stand there
    counts = _GPUS.findall(row.values.get("AllocTRES") or "")
    if any(len(n) > 9 or int(n) > _MOST_GPUS for n in counts):
        raise row.wrong("AllocTRES", "too many GPUs", f"at most {_MOST_GPUS}")
    return max(map(int, counts), default=0)


def _parse_time(row: TableRow, column: str) -> float:
    text = row.text(column)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):  # a year that this machine's clock does not know
        raise row.wrong(column, f"{text!r} is not a time", "such as 2026-03-01T12:00:00") from None


def _jobs(
    rows: Sequence[TableRow],
    submit: str,
    length: str,
    gpus: Callable[[TableRow], int],
    gpu_type: str,
    gpus_per_node: int,
) -> tuple[TraceJob, ...]:
    if not rows:
        raise UsageError("--trace", "has no jobs with GPUs that ran")
    first_s = _parse_time(rows[0], submit)
    jobs = []
    for row in rows:
        count = gpus(row)
        each = largest_divisor(count, gpus_per_node)
        placement = PlacedGpus(gpu_type, (each,) * (count // each))
        batch = _SEQUENCES * count
        truth = ScalingTruth((gpu_type,), row.number(length, 0), placement, batch)
        name = row.values.get("JobID") or f"line {row.line}"
        jobs.append(TraceJob(name, "log", _parse_time(row, submit) - first_s, count, batch, truth, row.where, gpu_type))
    return tuple(jobs)
