"""The jobs of the last epoch, with what has happened to them since."""

from __future__ import annotations

import time
from dataclasses import replace

from synergyd.control.decision_log import JobStatus
from synergyd.control.known.node_health import NodeRecord
from synergyd.errors import UsageError
from synergyd.store.store import Store
from synergyd.views.json_records import BadNode, StatusJson
from synergyd.wire.codec import decode

NEXT = {
    "QUEUED": "waits", "RUNNING": "", "CHECKPOINTING": "checkpoint awaited", "REQUEUING": "being requeued", "HELD": "being resized",
    "RESTARTING": "restarted in place", "RESIZED": "being released", "RELEASED": "about to start",
}  # fmt: skip


def collect(store: Store, only: int | None = None) -> StatusJson:
    """The last epoch as `status` shows it. Raises UsageError for a job that is not in it."""
    epoch = store.latest_epoch()
    if epoch is None:
        return StatusJson(epoch_s=None, dry_run=False)
    lives, reports = store.lifecycles(), store.reports()
    rows = []
    for seen in (decode(JobStatus, row, "stored status") for row in epoch.present):
        if only is not None and seen.job_id != only:
            continue
        life, stored = lives.get(seen.job_id), reports.get(seen.job_id)
        state = life.state if life else seen.lifecycle
        row = replace(seen, lifecycle=state, action=NEXT.get(state) or ("" if seen.action == "keep" else seen.action))
        if stored is not None:
            row = replace(row, step=stored.report.step, loss=stored.report.loss)
        rows.append(row)
    if only is not None and not rows:
        raise UsageError(f"job {only}", "is not in the last epoch", "synergyctl status lists those that are")
    return StatusJson(epoch_s=epoch.started_s, dry_run=epoch.dry_run, jobs=tuple(rows), bad_nodes=_bad_nodes(store))


def _bad_nodes(store: Store) -> tuple[BadNode, ...]:
    now_s, found = time.time(), []
    for stored in store.nodes().values():
        record = decode(NodeRecord, stored.payload, "stored node")
        if (penalty := record.penalty(now_s)) or record.drained:
            shown = BadNode(name=stored.name, penalty=penalty, why=record.words(now_s), drained=record.drained)
            found.append(shown)
    return tuple(sorted(found, key=lambda n: (-n.penalty, n.name)))
