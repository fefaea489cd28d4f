"""The jobs of the last epoch, with what has happened to them since."""

from __future__ import annotations

import time
from dataclasses import replace

from synergy_core.errors import UsageError
from synergy_core.wire.codec import decode

from synergyd.control.decision_log import JobStatus
from synergyd.control.state.node_health import NodeRecord
from synergyd.store.records import EpochRecord
from synergyd.store.store import Store
from synergyd.views.expected import collect as expected_jobs
from synergyd.views.json_records import BadNode, StatusJson

NEXT = {
    "QUEUED": "waits", "RUNNING": "", "JOINING": "gets more nodes", "CHECKPOINTING": "checkpoint awaited",
    "REQUEUING": "being requeued", "PARKED": "being resized",
    "HELD": "being resized", "RESTARTING": "restarted in place", 
    "RETURNING": "giving nodes back", "RESIZED": "being released", "RELEASED": "about to start",
}  # fmt: skip


def collect(store: Store, only: int | None = None) -> StatusJson:
    """Return the last epoch as `status` shows it. Raises UsageError for a job that is not in it."""
    epoch = store.latest_epoch()
    if epoch is None:
        return StatusJson(epoch_s=None, dry_run=False)
    lives, reports, expected = store.lifecycles(), store.reports(), expected_jobs(store)
    rows = []
    for job_status in (decode(JobStatus, row, "stored status") for row in epoch.present):
        if only is not None and job_status.job_id != only:
            continue
        life, report = lives.get(job_status.job_id), reports.get(job_status.job_id)
        state = life.state if life else job_status.lifecycle
        row = replace(
            job_status,
            lifecycle=state,
            action=NEXT.get(state) or ("" if job_status.action == "keep" else job_status.action),
        )
        if report is not None:
            row = replace(row, step=report.report.step, loss=report.report.loss)
        if (expected_job := expected.get(row.job_id)) is not None:
            row = replace(row, start=expected_job.start, end=expected_job.end)
        rows.append(row)
    listed_ids = {row.job_id for row in rows}
    waiting = tuple(
        job
        for job in expected.values()
        if job.state == "PENDING" and job.job_id not in listed_ids and only in (None, job.job_id)
    )
    if only is not None and not rows and not waiting:
        raise UsageError(f"job {only}", "is not in the last epoch", "synergyctl status lists those that are")
    return StatusJson(
        epoch_s=epoch.started_s,
        dry_run=epoch.dry_run,
        plain_jobs=_count(epoch, "plain_jobs"),
        plain_held_gpus=_count(epoch, "plain_held_gpus"),
        jobs=tuple(rows),
        bad_nodes=_bad_nodes(store),
        waiting=waiting,
    )


def _count(epoch: EpochRecord, key: str) -> int | None:
    value = epoch.summary.get(key)
    return value if isinstance(value, int) else None


def _bad_nodes(store: Store) -> tuple[BadNode, ...]:
    now_s, bad_nodes = time.time(), []
    for stored in store.nodes().values():
        if not (stored.payload.get("marks") or stored.payload.get("drained")):
            continue  # it was only checked, like most nodes
        record = decode(NodeRecord, stored.payload, "stored node")
        if (penalty := record.penalty(now_s)) or record.drained:
            reasons = record.reasons(now_s)
            why = record.format_reasons(now_s)
            bad_node = BadNode(name=stored.name, penalty=penalty, why=why, reasons=reasons, drained=record.drained)
            bad_nodes.append(bad_node)
    return tuple(sorted(bad_nodes, key=lambda n: (-n.penalty, n.name)))
