"""The jobs of the last epoch, with what has happened to them since."""

from __future__ import annotations

from dataclasses import replace

from synergyd.control.decision_log import JobStatus
from synergyd.errors import UsageError
from synergyd.store.store import Store
from synergyd.views.json_records import StatusJson
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
    return StatusJson(epoch_s=epoch.started_s, dry_run=epoch.dry_run, jobs=tuple(rows))
