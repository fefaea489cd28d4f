"""synergyctl status: the table of jobs."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from synergyd.cli.console import console
from synergyd.cli.context import JOB_ID, Context, pass_context
from synergyd.errors import UsageError, one_line
from synergyd.store.store import Store

NEXT = {
    "QUEUED": "waits", "RUNNING": "", "CHECKPOINTING": "checkpoint awaited", "REQUEUING": "being requeued", "HELD": "being resized",
    "RESIZED": "being released", "RELEASED": "about to start",
}  # fmt: skip


@click.command()
@click.argument("job", required=False, type=JOB_ID)
@click.option("--watch", is_flag=True, help="Keep the table fresh until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@pass_context
def status(context: Context, job: int | None, watch: bool, as_json: bool) -> None:
    """Show jobs with their size, plan, goodput and next action (of one JOB, or of all)."""
    with context.store() as store:
        if as_json:
            click.echo(json.dumps(collect(store, job), indent=1))
        elif watch:
            with Live(table(collect(store, job)), refresh_per_second=2) as live:
                try:
                    while True:
                        time.sleep(1.0)
                        live.update(table(collect(store, job)))
                except KeyboardInterrupt:
                    pass
        else:
            console().print(table(collect(store, job)))


def collect(store: Store, only: int | None = None) -> dict[str, Any]:
    """The last epoch as `status` shows it. Raises UsageError for a job that is not in it."""
    epoch = store.latest_epoch()
    if epoch is None:
        return {"epoch_s": None, "dry_run": False, "jobs": []}
    lives = store.lifecycles()
    reports = store.reports()
    rows = []
    for seen in epoch.present:
        job_id = int(str(seen["job_id"]))
        if only is not None and job_id != only:
            continue
        row = dict(seen)
        if job_id in lives:
            row["lifecycle"] = lives[job_id].state
        if job_id in reports:
            newest = reports[job_id].report
            row.update(step=newest.step, loss=newest.loss)
        row["action"] = NEXT.get(str(row["lifecycle"]), "") or ("" if row["action"] == "keep" else row["action"])
        rows.append(row)
    if only is not None and not rows:
        raise UsageError(f"job {only}", "is not in the last epoch", "synergyctl status lists those that are")
    return {"epoch_s": epoch.started_s, "dry_run": epoch.dry_run, "jobs": rows}


def table(data: dict[str, Any]) -> Table:
    """A rich table of what `collect` returned. All text of strangers is escaped."""
    age = f", {time.time() - data['epoch_s']:.0f} s ago" if data["epoch_s"] else ": no epoch yet"
    title = f"Synergy{' (dry run)' if data['dry_run'] else ''}: {len(data['jobs'])} jobs{age}"
    made = Table(title=title, title_justify="left", pad_edge=False)
    for name in ("JOB", "NAME", "USER", "STATE"):
        made.add_column(name)
    for name in ("GPUS", "WANTED", "PLAN tp,pp,dp", "BATCH", "GOODPUT", "STEP", "LOSS", "RESTARTS"):
        made.add_column(name, justify="right")
    made.add_column("NEXT")
    for r in data["jobs"]:
        plan, share = r.get("plan"), r.get("relative_goodput")
        cells = (
            str(r["job_id"]),
            one_line(str(r["name"]), 24),
            one_line(str(r["user"]), 16),
            str(r["state"]).lower(),
            f"{r['gpus']}/{r['asked_gpus']}",
            "-" if r.get("wanted_gpus") is None else str(r["wanted_gpus"]),
            f"{plan['tp']},{plan['pp']},{plan['dp']}" if plan else "-",
            str(r.get("global_batch") or "-"),
            f"{share:.2f}x" if share is not None else "-",
            str(r.get("step") or "-"),  # 0: it has only just started, perhaps from a checkpoint
            f"{r['loss']:.4f}" if r.get("loss") is not None else "-",
            str(r["restarts"]),
            ("paused " if r.get("paused") else "") + str(r.get("action", "")),
        )
        made.add_row(*(Text(c) for c in cells))
    made.caption = "GPUS: has/asked for at sbatch. GOODPUT: predicted, against the size asked for."
    made.caption_justify = "left"
    return made
