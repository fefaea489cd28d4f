"""Traces of Gavel's form (Shockwave's too) with its throughput tables as ground truth.

A trace has one job a line, twelve fields with tabs between: job type, command, folder, name of the steps' argument, needs
data (0 or 1), steps, GPUs asked for, mode, weight, deadline (-1: none), duration, arrival in seconds. The tables hold steps/s
of every (job type, GPUs) alone ("null") on each GPU type; those of "<type>_unconsolidated" are of GPUs on several nodes.

Taken as follows: the steps of all workers count, as in the tables; a size that is not in them can't be run; the batch of a
step is fixed at 8 workers' batches (so that 1, 2, 4 and 8 GPUs divide it), whatever the mode: how accordion and gns jobs
change their batch is not in the tables.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from synergy_core.errors import UsageError
from synergy_core.ordinary_file import read_bytes, read_lines
from synergy_core.records import Plan, Shape

from synergy_sim.records import Floats, PlacedGpus, TraceJob, TrainingSpeed
from synergy_sim.tables import JSON_LIMIT_BYTES, LIMIT_BYTES, TableRow, in_order

FIELDS = (
    *("job_type", "command", "folder", "steps_argument", "needs_data", "steps", "scale_factor", "mode"),
    *("weight", "deadline", "duration", "arrival"),
)
_KEY = re.compile(r"^\('(.+)', (\d{1,6})\)$")
_BATCH = re.compile(r"\(batch size ([1-9][0-9]{0,8})\)")
_WORKERS = 8  # whose batches are one optimizer step's
Rates = Mapping[tuple[str, int], float]  # (GPU type, GPUs) -> steps/s


@dataclass(frozen=True)
class TabledTruth:
    """A `Truth` of one job: `steps` of one worker each; a unit of progress is `_WORKERS` of them, one optimizer step."""

    rates: Rates
    steps: float
    worker_batch: int
    stages: int = 1

    @property
    def low(self) -> int:
        return _WORKERS * self.worker_batch

    @property
    def high(self) -> int:
        return self.low

    @property
    def unit(self) -> float:
        return float(self.low)

    def end(self, stage: int) -> float:
        return self.steps / _WORKERS

    def executed_plan(self, plan: Plan) -> Plan:
        return plan

    def pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        if plan.gpus != placement.gpus:
            return None
        rate = self._rate(placement)
        return TrainingSpeed(rate, 1 / rate, None) if rate else None

    def _rate(self, placement: PlacedGpus) -> float:
        """Return the optimizer steps a second."""
        spread = "_unconsolidated" if len(placement.per_node) > 1 else ""
        return self.rates.get((placement.gpu_type + spread, placement.gpus), 0.0) / _WORKERS

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        if self.low % shape.gpus:
            return ()
        return (Plan(dp=shape.gpus, micro_batch=self.low // shape.gpus, global_batch=self.low, zero_stage=0),)

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        rate = self._rate(PlacedGpus(shape.gpu_type, (shape.gpus_per_node,) * shape.nodes))
        return np.array([rate]) if rate and self.plans(shape) else None


def read_rates(path: Path) -> dict[str, dict[tuple[str, int], float]]:
    """Read job type -> Rates. Raises UsageError."""
    try:
        data = json.loads(read_bytes(path, JSON_LIMIT_BYTES))
        rates_by_kind: dict[str, dict[tuple[str, int], float]] = {}
        for gpu_type, table in data.items():
            for key, values in table.items():
                match = _KEY.match(key)
                if match is None:
                    raise UsageError(str(path), f"{gpu_type}: {key!r} is not ('job type', GPUs)")
                rate = float(values["null"])
                if 0 < rate < math.inf:
                    rates_by_kind.setdefault(match[1], {})[gpu_type, int(match[2])] = rate
        return rates_by_kind
    except OSError as error:
        raise UsageError(str(path), f"can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(str(path), f"is no table of throughputs ({type(error).__name__}: {error})") from None


def read(path: Path, profiles: Path | None, gpu_type: str) -> tuple[TraceJob, ...]:
    """Read the jobs of a trace.

    `profiles` is the table, or a folder with one *throughputs.json (default: the trace's own). Raises UsageError.
    """
    place = profiles or path.parent
    tables = sorted(place.glob("*throughputs.json")) if place.is_dir() else [place]
    if len(tables) != 1:
        raise UsageError(str(place), f"has {len(tables)} *throughputs.json", "give --profiles FILE")
    rates_by_kind = read_rates(tables[0])
    jobs = []
    rows = _rows(path)
    in_order(rows, "arrival", lambda row: row.number("arrival", 0))
    for row in rows:
        kind, gpus = row.text("job_type"), row.whole_number("scale_factor", 1, 100_000)
        rates = rates_by_kind.get(kind, {})
        spread = any((t, gpus) in rates for t in (gpu_type, f"{gpu_type}_unconsolidated"))
        if not spread:
            have = sorted({f"{t} x {n}" for t, n in rates if not t.endswith("_unconsolidated")})
            right = f"it has {', '.join(have)}" if have else f"{tables[0].name} has {', '.join(sorted(rates_by_kind))}"
            raise row.wrong("job_type", f"{tables[0].name} has no {kind!r} on {gpus} {gpu_type}", right)
        match = _BATCH.search(kind)
        batch = int(match[1]) if match else 1
        truth = TabledTruth(rates, row.number("steps", 1), batch)
        submit_s, weight = row.number("arrival", 0), row.number("weight", 1e-9)
        # the table's sizes end somewhere
        most = max(n for t, n in rates if t.startswith(gpu_type))
        jobs.append(
            TraceJob(
                f"line {row.line}",
                kind,
                submit_s,
                gpus,
                truth.low,
                truth,
                row.where,
                gpu_type,
                batch_fixed=True,
                max_gpus=min(most, _WORKERS),
                weight=weight,
            )
        )
    if not jobs:
        raise UsageError(str(path), "has no jobs")
    return tuple(jobs)


def _rows(path: Path) -> list[TableRow]:
    try:
        lines = list(read_lines(path, LIMIT_BYTES))
    except OSError as error:
        raise UsageError(str(path), f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(str(path), f"is not text: {error}") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            values = line.rstrip("\r\n").split("\t")
            if len(values) != len(FIELDS):
                what = f"{len(values)} fields instead of {len(FIELDS)}"
                raise UsageError(f"{path}:{number}: column {min(len(values), len(FIELDS))}", what, "tabs between them")
            rows.append(TableRow(path, number, dict(zip(FIELDS, values, strict=True))))
    return rows
