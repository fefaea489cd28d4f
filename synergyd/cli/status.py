"""synergyctl status: the table of jobs."""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import click
from rich.live import Live
from synergy_core.errors import UsageError, one_line
from synergy_core.expected import ExpectedJob
from synergy_core.formatting import format_duration
from synergy_core.wire.codec import encode

from synergyd.cli.shared.backend import Backend
from synergyd.cli.shared.clock import format_expected
from synergyd.cli.shared.console import console
from synergyd.cli.shared.context import Context, pass_context
from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column
from synergyd.cli.shared.headline import headline
from synergyd.cli.shared.job_names import JOB_NAME
from synergyd.control.decision_log import JobStatus
from synergyd.views.json_records import StatusJson

HEADLINE_S = 60.0  # of --watch: a month is read for it
#: what --sort takes; a minus before it reverses
SORTS: dict[str, Callable[[JobStatus], float | str]] = {
    "job": lambda job: job.job_id,
    "user": lambda job: job.user,
    "state": lambda job: job.state,
    "gpus": lambda job: job.gpus,
    "goodput": lambda job: job.relative_goodput or 0.0,
}
_STYLES = {"PENDING": "yellow", "RUNNING": ""}
_COLUMNS = (
    text_column("JOB"),
    text_column("NAME", least=8),
    text_column("USER", least=4, drop=3),
    text_column("STATE", least=7),
    figure_column("GPUS"),
    figure_column("WANTED", 1),
    figure_column("PLAN tp,pp,dp", 6),
    figure_column("BATCH", 7),
    figure_column("GOODPUT"),
    figure_column("STEP", 4),
    figure_column("LOSS", 5),
    figure_column("RESTARTS", 9),
    text_column("START", drop=3),
    text_column("NEXT", least=12, drop=2),
)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The jobs to show. Empty: all."""

    user: str = ""
    partition: str = ""
    state: str = ""
    sort: str = "job"

    def of(self, data: StatusJson) -> StatusJson:
        """Return the data with the selected jobs, in their order."""
        jobs = [job for job in data.jobs if self._has(job)]
        jobs.sort(key=SORTS[self.sort.removeprefix("-")], reverse=self.sort.startswith("-"))
        return replace(data, jobs=tuple(jobs))

    def _has(self, job: JobStatus) -> bool:
        return (
            self.user in ("", job.user)
            and (not self.partition or self.partition in job.partition.split(","))
            and self.state in ("", job.state)
        )


@click.command()
@click.argument("job", required=False, type=JOB_NAME)
@click.option("-u", "--user", default="", help="Only this user's jobs.")
@click.option("--me", is_flag=True, help="Only your jobs.")
@click.option("-p", "--partition", default="", help="Only jobs of this partition.")
@click.option(
    "--state",
    type=click.Choice(["pending", "running", "completing", "suspended"], case_sensitive=False),
    help="Only jobs in this state.",
)
@click.option("--sort", default="job", metavar="KEY", help=f"Order by {', '.join(SORTS)}; -KEY: the largest first.")
@click.option("--watch", is_flag=True, help="Keep the table fresh until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@pass_context
def status(
    context: Context,
    job: str | None,
    user: str,
    me: bool,
    partition: str,
    state: str | None,
    sort: str,
    watch: bool,
    as_json: bool,
) -> None:
    """Show jobs with their size, plan, goodput and next action (of one JOB, or of all)."""
    if sort.removeprefix("-") not in SORTS:
        raise UsageError("--sort", f"{one_line(sort, 40)!r} is no key", f"write one of {', '.join(SORTS)}")
    if me and user:
        raise UsageError("--me", "--user is given too", "give one of them")
    user = pwd.getpwuid(os.geteuid()).pw_name if me else user
    selection = Selection(user=user, partition=partition, state=(state or "").upper(), sort=sort)
    with context.backend() as backend:
        only = None if job is None else backend.job_id(job)
        if as_json:
            click.echo(json.dumps(encode(selection.of(backend.status(only))), indent=1))
        elif watch:
            _watch(backend, only, selection)
        else:
            console().print(table(selection.of(backend.status(only)), headline(backend)))


def _watch(backend: Backend, only: int | None, selection: Selection) -> None:
    line, read_s = headline(backend), time.monotonic()
    try:
        with Live(table(selection.of(backend.status(only)), line), console=console(), refresh_per_second=2) as live:
            for news in backend.watch(only):
                if time.monotonic() - read_s > HEADLINE_S:
                    line, read_s = headline(backend), time.monotonic()
                live.update(table(selection.of(news), line))
    except KeyboardInterrupt:
        pass


def table(data: StatusJson, gain: str = "") -> FittedTable:
    """Return the table of jobs. `gain`: the headline number, as a line. All text of strangers is escaped."""
    grid = FittedTable(_COLUMNS, _title(data))
    now_s = time.time()
    for job in data.jobs:
        grid.add_row(
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
            style=_STYLES.get(job.state, "dim"),
        )
    if not data.jobs and len(data.waiting) == 1:  # it alone was asked for
        _add_plain_row(grid, data.waiting[0], now_s)
    grid.notes += [format_totals(data.jobs), *_plain_jobs_message(data), *([gain] if gain else [])]
    if data.jobs:
        grid.notes.append(
            "GPUS: has/asked for at sbatch. GOODPUT: predicted, against the size asked for. START: in 8 of 10 cases."
        )
    if data.waiting:
        count = len(data.waiting)
        text = (
            f"{count} job{'s' * (count != 1)} without a #SYNERGY line wait{'s' * (count == 1)}: synergyctl explain JOB"
        )
        grid.notes.append(text)
    for node in data.bad_nodes:
        suffix = ", drained" if node.drained else ""
        grid.notes.append(one_line(f"bad node {node.name}: penalty {node.penalty:.2f}{suffix}, {node.why}", 200))
    return grid


def _title(data: StatusJson) -> str:
    age = f", {_age(time.time() - data.epoch_s)} ago" if data.epoch_s else ": no epoch yet"
    title = f"Synergy{' (dry run)' if data.dry_run else ''}: {_count(len(data.jobs), 'job')}{age}"
    if data.stale_since_s is not None:
        since = time.strftime("%F %T", time.localtime(data.stale_since_s))
        title += f"\nSTALE: Synergy's REST service can't read its database since {since}"
    return title


def _age(seconds: float) -> str:
    return format_duration(seconds) if seconds < 7200 else f"{seconds / 3600:.0f} h"


def format_totals(jobs: Sequence[JobStatus]) -> str:
    """Return a line such as `3 jobs: 2 hold 48 GPUs (asked for 24), 1 waits for 8`."""
    holders, rest = [job for job in jobs if job.gpus], [job for job in jobs if not job.gpus]
    parts = []
    if holders:
        gpus, asked_gpus = sum(job.gpus for job in holders), sum(job.asked_gpus for job in holders)
        parts.append(f"{len(holders)} hold{'s' * (len(holders) == 1)} {_count(gpus, 'GPU')} (asked for {asked_gpus})")
    if rest:
        parts.append(f"{len(rest)} wait{'s' * (len(rest) == 1)} for {sum(job.asked_gpus for job in rest)}")
    return ": ".join([_count(len(jobs), "job"), *([", ".join(parts)] if parts else [])])


def _plain_jobs_message(data: StatusJson) -> list[str]:
    if not data.plain_jobs:
        return []
    text = (
        f"{_count(data.plain_jobs, 'plain job')} with GPUs, without a #SYNERGY line: {data.plain_held_gpus} GPUs held"
    )
    return [text + ("; synergyctl usage --would-have counts what a line would change" if data.dry_run else "")]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _add_plain_row(grid: FittedTable, job: ExpectedJob, now_s: float) -> None:
    cells = (
        job.slurm_name or str(job.job_id),
        one_line(job.name, 24),
        one_line(job.user, 16),
        "pending",
        f"0/{job.gpus}",
    )
    start = format_expected(job.start, now_s)
    grid.add_row(*cells, *"-------", start, one_line(job.why, 60))
