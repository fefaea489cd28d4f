"""The last day of the queue, folded from what epochs' summaries keep (synergyd/control/queue_history.py writes them)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from synergy_core.errors import UnavailableError
from synergy_core.formatting import format_plan

from synergyd.control.queue_history import WHOLE_S
from synergyd.store.store import Store
from synergyd.views.chart_records import (
    ClusterJson,
    DecidedSize,
    Holding,
    JobBar,
    JobHistoryJson,
    NodeNow,
    Occupancy,
    Point,
    QueueHistoryJson,
    Total,
)

WINDOW_S = 86_400.0
READ_S = 2.0  # between two looks at the database
MOST_TOTALS = 480  # of a day: one each three minutes
MOST_DECISIONS = 200
JOB_KEYS = frozenset({"job", "gpus", "asked", "nodes", "type", "restarts", "name", "user", "account"})
NODE_KEYS = frozenset({"node", "type", "gpus", "used", "up", "reason"})
Visible = Callable[[str, str], bool]  # (user, account) -> may the caller know of such a job?


@dataclass
class _Job:
    row: Mapping[str, Any]
    holdings: list[list[Any]] = field(default_factory=list)  # [from, to or None, GPUs, restarts]
    points: list[tuple[float, list[Any]]] = field(default_factory=list)
    is_gone: bool = False


class Timeline:
    """The timeline, which reads on from where it stood. For several threads. Its methods raise SynergyError while the database is away."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._read_s = -READ_S
        self._last_id, self._last_s = 0, 0.0
        self._jobs: dict[int, _Job] = {}
        self._nodes: dict[str, Mapping[str, Any]] = {}
        self._totals: list[Total] = []

    def edition(self) -> int:
        """Return a number that changes whenever there is something new."""
        with self._lock:
            self._read()
            return self._last_id

    def cluster(self, visible: Visible, reasons: bool) -> ClusterJson:
        """Return the nodes now. With `reasons` the reasons that Slurm shows of nodes, which may name jobs, are included."""
        with self._lock:
            self._read()
            holders: dict[str, list[Occupancy]] = {}
            for job_id, job in self._jobs.items():
                row = job.row
                if not job.is_gone and row["gpus"] and row["nodes"] and visible(row["user"], row["account"]):
                    each = row["gpus"] // len(row["nodes"])
                    for name in row["nodes"]:
                        holders.setdefault(f"{name} {row['type']}", []).append(Occupancy(job_id=job_id, gpus=each))
            nodes = tuple(_node(row, holders.get(key, ()), reasons) for key, row in self._nodes.items())
            last = self._totals[-1] if self._totals else None
        return ClusterJson(
            epoch_s=last.at_s if last else None,
            goodput_gpus=last.goodput_gpus if last else None,
            plain_gpus=last.plain_gpus if last else None,
            nodes=nodes,
        )

    def history(self, visible: Visible) -> QueueHistoryJson:
        """Return the cluster's last day: its goodput, and each job's sizes."""
        with self._lock:
            self._read()
            bars = tuple(
                JobBar(
                    job_id=job_id,
                    name=job.row["name"],
                    user=job.row["user"],
                    asked_gpus=job.row["asked"],
                    held=self._holdings(job),
                )
                for job_id, job in self._jobs.items()
                if visible(job.row["user"], job.row["account"])
            )
            return QueueHistoryJson(
                from_s=self._last_s - WINDOW_S, to_s=self._last_s, totals=thin_out(self._totals), jobs=bars
            )

    def job(self, job_id: int) -> JobHistoryJson:
        """Return one job's last day, empty if nothing is kept of it."""
        with self._lock:
            self._read()
            job, to_s = self._jobs.get(job_id), self._last_s
            holdings = self._holdings(job) if job else ()
            points = tuple(_point(at_s, p) for at_s, p in job.points) if job else ()
        sizes = tuple(
            DecidedSize(
                at_s=d.at_s,
                gpus=cell.shape.gpus,
                goodput=cell.goodput,
                relative_goodput=d.decision.relative_goodput,
                global_batch=cell.plan.global_batch if cell.goodput > 0 else None,
                plan=format_plan(cell.plan) if cell.goodput > 0 else "its script's own",
            )
            for d in reversed(self._store.decisions_of(job_id, MOST_DECISIONS))
            if (cell := d.decision.cell) is not None
        )
        return JobHistoryJson(job_id=job_id, to_s=to_s, held=holdings, points=points, decided=sizes)

    def _holdings(self, job: _Job) -> tuple[Holding, ...]:
        return tuple(
            Holding(from_s=f, to_s=self._last_s if to is None else to, gpus=gpus, restarts=restarts)
            for f, to, gpus, restarts in job.holdings
        )

    def _read(self) -> None:
        now_s = time.monotonic()
        if now_s - self._read_s < READ_S:
            return
        since_s = self._clock() - WINDOW_S - WHOLE_S
        try:
            epochs = self._store.epochs_since(self._last_id, since_s)
            if not epochs and self._last_id and self._put_back():
                self._last_id, self._jobs, self._nodes, self._totals = 0, {}, {}, []
                epochs = self._store.epochs_since(0, since_s)
        except UnavailableError:
            if not self._totals:
                raise
            epochs = []  # what is known is as old as the database's absence
        for epoch_id, at_s, summary in epochs:
            self._last_id = max(self._last_id, epoch_id)
            try:
                self.add(at_s, summary)
            except (KeyError, TypeError, ValueError, AttributeError):  # of another version: the next whole one mends it
                continue
        self._read_s = now_s
        self._forget(self._last_s - WINDOW_S)

    def _put_back(self) -> bool:
        """Return whether a copy has been put in the database's place: its epochs are numbered anew from the copy's last on."""
        newest = self._store.version()[0]
        return not isinstance(newest, int) or newest < self._last_id

    def add(self, at_s: float, summary: Mapping[str, Any]) -> None:
        """Add one epoch. Ignore an epoch from before these records. Raise KeyError for one of a later version with other records."""
        if "goodput_gpus" not in summary:
            return
        for rows, keys in (("job_changes", JOB_KEYS), ("node_changes", NODE_KEYS)):
            if any(keys - row.keys() for row in summary.get(rows, ())):
                raise KeyError(rows)
        goodput, plain, gpus = (float(summary[k]) for k in ("goodput_gpus", "plain_gpus", "gpus"))
        self._last_s = at_s
        self._totals.append(Total(at_s=at_s, goodput_gpus=goodput, plain_gpus=plain, gpus=gpus))
        changes = summary.get("job_changes", ())
        gone_ids = set(summary.get("jobs_gone", ()))
        if summary.get("whole"):
            changed_ids = {row["job"] for row in changes}
            gone_ids |= {job_id for job_id, job in self._jobs.items() if not job.is_gone and job_id not in changed_ids}
            self._nodes = {}
        for job_id in gone_ids:
            if (leaving := self._jobs.get(job_id)) is not None:
                _end(leaving, at_s)
                leaving.is_gone = True
        for row in changes:
            job = self._jobs.setdefault(row["job"], _Job(row))
            before = job.holdings[-1] if job.holdings and job.holdings[-1][1] is None else None
            new_nodes = [n for n in row["nodes"] if n not in job.row["nodes"]]
            job.row, job.is_gone = row, False
            if before is None or before[2:] != [row["gpus"], row["restarts"]] or new_nodes:
                _end(job, at_s)
                job.holdings.append([at_s, None, row["gpus"], row["restarts"]])
        for key in summary.get("nodes_gone", ()):
            self._nodes.pop(key, None)
        self._nodes.update({f"{row['node']} {row['type']}": row for row in summary.get("node_changes", ())})
        for job_id, *numbers in summary.get("points", ()):
            if job_id in self._jobs:
                self._jobs[job_id].points.append((at_s, numbers))

    def _forget(self, before_s: float) -> None:
        self._totals = [t for t in self._totals if t.at_s >= before_s]
        for job in self._jobs.values():
            job.holdings = [h for h in job.holdings if h[1] is None or h[1] >= before_s]
            job.points = [p for p in job.points if p[0] >= before_s]
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if not job.is_gone or job.holdings}


def _end(job: _Job, at_s: float) -> None:
    if job.holdings and job.holdings[-1][1] is None:
        job.holdings[-1][1] = at_s


def _node(row: Mapping[str, Any], occupancies: Iterable[Occupancy], reasons: bool) -> NodeNow:
    jobs = tuple(occupancies)
    return NodeNow(
        name=row["node"],
        gpu_type=row["type"],
        gpus=row["gpus"],
        up=row["up"],
        reason=row["reason"] if reasons else "",
        group=row.get("group", ""),
        jobs=jobs,
        other_gpus=max(0, row["used"] - sum(h.gpus for h in jobs)),
    )


def _point(at_s: float, numbers: list[Any]) -> Point:
    step, loss, noise_scale, batch, step_s, restarts = numbers
    return Point(
        at_s=at_s, step=step, loss=loss, noise_scale=noise_scale, global_batch=batch, step_s=step_s, restarts=restarts
    )


def thin_out(totals: list[Total]) -> tuple[Total, ...]:
    """Return at most MOST_TOTALS totals, each the mean of its neighbours, at the time of the last of them."""
    size = -(-len(totals) // MOST_TOTALS) or 1
    parts = [totals[i : i + size] for i in range(0, len(totals), size)]
    return tuple(
        Total(
            at_s=part[-1].at_s,
            goodput_gpus=sum(t.goodput_gpus for t in part) / len(part),
            plain_gpus=sum(t.plain_gpus for t in part) / len(part),
            gpus=part[-1].gpus,
        )
        for part in parts
    )
