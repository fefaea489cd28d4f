"""Small queues for tests of forecasts: nodes of 4 GPUs in one partition, at time 1000."""

from __future__ import annotations

from synergyd.start_times.records import Amounts, PendingJob, Program, Queue, QueueNode, RunningJob

NOW = 1000.0


def program(user: str = "mina", name: str = "train", limit_s: float | None = 600.0, account: str = "") -> Program:
    return Program(user, account, name, limit_s)


def node(name: str, free: int = 4, **changes: object) -> QueueNode:
    told: dict[str, object] = {
        "name": name,
        "total": Amounts(4, 8),
        "free": Amounts(free, 2 * free),
        "partitions": frozenset("p"),
    }
    return QueueNode(**(told | changes))  # type: ignore[arg-type]


def running(job_id: int, nodes: tuple[str, ...], gpus: int = 4, had_s: float = 100.0, **changes: object) -> RunningJob:
    told: dict[str, object] = {
        "job_id": job_id,
        "program": program(),
        "start_s": NOW - had_s,
        "limit_end_s": NOW - had_s + 600.0,
        "nodes": nodes,
        "need": Amounts(gpus, 2 * gpus),
    }
    return RunningJob(**(told | changes))  # type: ignore[arg-type]


def pending(job_id: int, nodes: int = 1, gpus: int = 4, **changes: object) -> PendingJob:
    told: dict[str, object] = {
        "job_id": job_id,
        "program": program(),
        "nodes": nodes,
        "need": Amounts(gpus, 2 * gpus),
        "partitions": frozenset("p"),
        "slurm_reason": "Resources",
        "submit_s": NOW - 50,
    }
    return PendingJob(**(told | changes))  # type: ignore[arg-type]


def queue(nodes: tuple[QueueNode, ...], run: tuple[RunningJob, ...] = (), wait: tuple[PendingJob, ...] = ()) -> Queue:
    return Queue(now_s=NOW, nodes=nodes, running=run, pending=wait)
