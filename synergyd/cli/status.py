"""synergyctl status: the table of jobs."""

from __future__ import annotations

import json
import time

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text
from synergy_core.errors import one_line
from synergy_core.expected import ExpectedJob
from synergy_core.wire.codec import encode

from synergyd.cli.shared.clock import format_expected
from synergyd.cli.shared.console import console
from synergyd.cli.shared.context import Context, pass_context
from synergyd.cli.shared.job_names import JOB_NAME
from synergyd.views.json_records import StatusJson


@click.command()
@click.argument("job", required=False, type=JOB_NAME)
@click.option("--watch", is_flag=True, help="Keep the table fresh until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@pass_context
def status(context: Context, job: str | None, watch: bool, as_json: bool) -> None:
    """Show jobs with their size, plan, goodput and next action (of one JOB, or of all)."""
    with context.backend() as backend:
        only = None if job is None else backend.job_id(job)
        if as_json:
            click.echo(json.dumps(encode(backend.status(only)), indent=1))
        elif watch:
            try:
                with Live(table(backend.status(only)), refresh_per_second=2) as live:
                    for news in backend.watch(only):
                        live.update(table(news))
            except KeyboardInterrupt:
                pass
        else:
            console().print(table(backend.status(only)))


def table(data: StatusJson) -> Table:
    """Return a rich table of what `collect` returned. All text of strangers is escaped."""
    age = f", {time.time() - data.epoch_s:.0f} s ago" if data.epoch_s else ": no epoch yet"
    title = f"Synergy{' (dry run)' if data.dry_run else ''}: {len(data.jobs)} jobs{age}"
    grid = Table(title=title, title_justify="left", pad_edge=False)
    for name in ("JOB", "NAME", "USER", "STATE"):
        grid.add_column(name)
    for name in ("GPUS", "WANTED", "PLAN tp,pp,dp", "BATCH", "GOODPUT", "STEP", "LOSS", "RESTARTS"):
        grid.add_column(name, justify="right")
    grid.add_column("START")
    grid.add_column("NEXT")
    now_s = time.time()
    for job in data.jobs:
        cells = (
            job.slurm_name or str(job.job_id),
            one_line(job.name, 24),
            one_line(job.user, 16),
            job.state.lower(),
            f"{job.gpus}/{job.asked_gpus}",
            str(job.wanted_gpus),
            f"{job.plan.tp},{job.plan.pp},{job.plan.dp}" if job.plan else "-",
            str(job.global_batch or "-"),
            f"{job.relative_goodput:.2f}x" if job.relative_goodput is not None else "-",
            str(job.step or "-"),  # 0: it has only just started, perhaps from a checkpoint
            f"{job.loss:.4f}" if job.loss is not None else "-",
            str(job.restarts),
            format_expected(job.start, now_s) if job.state == "PENDING" else "",
            one_line(("paused " if job.paused else "") + (job.action or job.hint), 60),
        )
        grid.add_row(*(Text(c) for c in cells))
    if not data.jobs and len(data.waiting) == 1:  # it alone was asked for
        _add_plain_row(grid, data.waiting[0], now_s)
    grid.caption = (
        "GPUS: has/asked for at sbatch. GOODPUT: predicted, against the size asked for. START: in 8 of 10 cases."
    )
    if data.waiting:
        count = len(data.waiting)
        grid.caption += f"\n{count} job{'s' * (count != 1)} without a #SYNERGY line wait{'s' * (count == 1)}: synergyctl explain JOB"
    for node in data.bad_nodes:
        suffix = ", drained" if node.drained else ""
        grid.caption += "\n" + one_line(f"bad node {node.name}: penalty {node.penalty:.2f}{suffix}, {node.why}", 200)
    grid.caption_justify = "left"
    return grid


def _add_plain_row(grid: Table, job: ExpectedJob, now_s: float) -> None:
    known = (
        job.slurm_name or str(job.job_id),
        one_line(job.name, 24),
        one_line(job.user, 16),
        "pending",
        f"0/{job.gpus}",
    )
    start = format_expected(job.start, now_s)
    grid.add_row(*(Text(c) for c in (*known, *"-------", start, one_line(job.why, 60))))
