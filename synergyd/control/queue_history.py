"""The part of each epoch's summary that charts of the queue need: who holds how much, how far jobs are, the allocation's worth.

Only changes are written, and everything again each WHOLE_S, so that a reader needs no more of the past than its window
and that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from synergy_core.job_report import Report
from synergy_core.records import Cluster, Decision, Job, JobState, Node, Shape, Snapshot

WHOLE_S = 3600.0
POINT_SHARE = 1 / 60  # a job's next point comes after this share of its age: about 400 in its first ten hours
POINT_S = 600.0  # and at the latest after so long


class QueueHistory:
    """A memory of what was written last: a new one, after a restart or a take-over, writes all of it."""

    def __init__(self) -> None:
        self._whole_s: float | None = None
        self._jobs: dict[int, dict[str, Any]] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._points: dict[int, tuple[float, float, Report]] = {}  # first and last point's time, the report

    def epoch(
        self, snapshot: Snapshot, decisions: Iterable[Decision], reports: Mapping[int, Report], now_s: float
    ) -> dict[str, Any]:
        """Return the keys of this epoch's summary; see synergyd/views/timeline.py, which reads them."""
        whole = self._whole_s is None or not 0 <= now_s - self._whole_s < WHOLE_S
        if whole:
            self._whole_s, self._jobs, self._nodes = now_s, {}, {}
        jobs = {job.job_id: job_row(job) for job in snapshot.jobs}
        nodes = {f"{n.name} {n.gpu_type}": node_row(n) for n in snapshot.cluster.nodes if n.gpus > 0}
        absent_ids = [job_id for job_id in self._jobs if job_id not in jobs]
        summary = {
            "whole": whole,
            "goodput_gpus": decided_gpus(snapshot.jobs, decisions),
            "plain_gpus": plain_gpus(snapshot),
            "job_changes": [row for job_id, row in jobs.items() if self._jobs.get(job_id) != row],
            "jobs_gone": absent_ids,
            "node_changes": [row for key, row in nodes.items() if self._nodes.get(key) != row],
            "nodes_gone": [key for key in self._nodes if key not in nodes],
            "points": [report_point(r) for job_id in jobs if (r := reports.get(job_id)) and self._is_due(r, now_s)],
        }
        self._jobs, self._nodes = jobs, nodes
        self._points = {job_id: point for job_id, point in self._points.items() if job_id in jobs}
        return {key: value for key, value in summary.items() if value is not False and value != []}

    def _is_due(self, report: Report, now_s: float) -> bool:
        first_s, last_s, last = self._points.get(report.job_id, (now_s, now_s, None))
        if last is not None:
            if (last.step, last.restarts) == (report.step, report.restarts):
                return False
            if last.restarts == report.restarts and 0 <= now_s - last_s < min(
                POINT_S, POINT_SHARE * abs(now_s - first_s)
            ):
                return False
        self._points[report.job_id] = (first_s, now_s, report)
        return True


def job_row(job: Job) -> dict[str, Any]:
    """Return a job's row: what it holds (0 GPUs if it waits)."""
    return {
        "job": job.job_id,
        "gpus": 0 if job.state is JobState.PENDING else job.shape.gpus,
        "asked": job.asked.gpus,
        "nodes": [] if job.state is JobState.PENDING else list(job.node_names),
        "type": job.shape.gpu_type,
        "restarts": job.restarts,
        "name": job.name,
        "user": job.user,
        "account": job.account,
    }


def node_row(node: Node) -> dict[str, Any]:
    """Return a node's row, one for each type of its GPUs."""
    return {
        "node": node.name,
        "type": node.gpu_type,
        "gpus": node.gpus,
        "used": node.gpus_used,
        "up": node.up,
        "reason": node.reason,
        "group": node.leaf or next(iter(node.partitions), ""),
    }


def report_point(report: Report) -> list[float | int | None]:
    """Return [job, step, loss, noise scale, batch, seconds of a step, restarts]."""
    batch = report.plan.global_batch if report.plan else None
    return [report.job_id, report.step, report.loss, report.noise_scale, batch, report.step_s, report.restarts]


def decided_gpus(jobs: Iterable[Job], decisions: Iterable[Decision]) -> float:
    """Return the predicted goodput of the decided allocation.

    A value of 1 is as much as one GPU does in a job of the size that was asked for. A job whose goodput can't be
    predicted counts with the GPUs that it is to have, and with no more than it asked for.
    """
    requested_gpus = {job.job_id: job.asked.gpus for job in jobs}
    total = 0.0
    for d in decisions:
        if d.cell is not None and d.job_id in requested_gpus:
            relative = d.relative_goodput
            total += (
                min(d.cell.shape.gpus, requested_gpus[d.job_id])
                if relative is None
                else requested_gpus[d.job_id] * relative
            )
    return total


def plain_gpus(snapshot: Snapshot) -> int:
    """Return how many GPUs plain Slurm would use, to compare with `decided_gpus`.

    It takes the present jobs first come first served with backfill, each at the size it asked for. Job ids order
    them (Slurm resets SubmitTime at requeue). Partitions, limits and what nodes have besides GPUs are left out.
    """
    free = free_nodes(snapshot.cluster, snapshot.jobs)
    total = 0
    for job in sorted(snapshot.jobs, key=lambda j: j.job_id):
        if not job.held and take_shape(free, job.asked):
            total += job.asked.gpus
    return total


def free_nodes(cluster: Cluster, jobs: Iterable[Job]) -> dict[str, Counter[int]]:
    """Return by GPU type how many nodes have how many GPUs that no job but `jobs` holds."""
    own: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        if job.state is not JobState.PENDING:
            own.update({(name, job.shape.gpu_type): job.shape.gpus_per_node for name in job.node_names})
    counts_by_type: dict[str, Counter[int]] = {}
    for node in cluster.nodes:
        if node.up and node.gpus > 0:
            others = max(0, node.gpus_used - own[(node.name, node.gpu_type)])
            counts_by_type.setdefault(node.gpu_type, Counter())[max(0, node.gpus - others)] += 1
    return counts_by_type


def take_shape(free: dict[str, Counter[int]], shape: Shape) -> bool:
    """Take the shape out of the fullest nodes that hold it. Return False if there is no room."""
    types = [shape.gpu_type] if shape.gpu_type in free else [] if shape.gpu_type else sorted(free)
    each = shape.gpus_per_node
    for nodes in (free[t] for t in types):
        if each <= 0 or sum(count for gpus, count in nodes.items() if gpus >= each) < shape.nodes:
            continue
        nodes_to_take = shape.nodes
        for gpus in sorted(g for g in nodes if g >= each):
            node_count = min(nodes_to_take, nodes[gpus])
            nodes[gpus] -= node_count
            nodes[gpus - each] += node_count
            nodes_to_take -= node_count
        return True
    return False
