"""synergyctl usage: GPU hours and the gain, by account and user, or of one job's incarnations."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields
from datetime import datetime

import click
from rich.text import Text
from synergy_core.errors import UsageError, one_line
from synergy_core.formatting import format_names
from synergy_core.losses import losses_message
from synergy_core.usage import Totals
from synergy_core.wire.codec import encode

from synergyd.cli import would_have
from synergyd.cli.shared.console import console
from synergyd.cli.shared.context import Context, pass_context
from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column
from synergyd.cli.shared.headline import format_gain
from synergyd.cli.shared.job_names import JOB_NAME
from synergyd.store.months import month_span, present_month
from synergyd.views.json_records import Incarnation, JobUsageJson, UsageJson

_MONTH = re.compile(r"(2[0-9]{3})-(0[1-9]|1[0-2])")
_COUNTS = frozenset({"jobs", "changes", "audited"})
# a spreadsheet would take a cell that begins with one of these for a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: head, field, and when it goes where there is no room
_COLUMNS = (
    ("JOBS", "jobs", 3), ("ASKED", "asked_gpu_h", 4), ("HELD", "held_gpu_h", 0), ("USEFUL", "useful_gpu_h", 0),
    ("RESTARTS", "restart_gpu_h", 5), ("KNOWN", "known_gpu_h", 6), ("SAVED h", "saved_h", 0),
)  # fmt: skip
_COLUMN_NOTES = (
    "ASKED: the sizes at sbatch, while the jobs ran. USEFUL: what they would have\n"
    "taken for the same training. KNOWN: held hours in which a job told of its\n"
    "training. SAVED: job hours against the sizes asked for, started at the same\n"
    "times, restarts counted. GAIN: SAVED over the hours spent, with one sigma."
)


@click.command()
@click.argument("job", type=JOB_NAME, required=False)
@click.option("--user", default="", help="Only this user's jobs.")
@click.option("--account", default="", help="Only this account's jobs.")
@click.option("--month", default="", metavar="YYYY-MM", help="A month by this machine's clock (TZ); the present one.")
@click.option("--would-have", "hypothetical", is_flag=True, help="What a dry run would have changed, job by job.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values, with a line of names.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@pass_context
def usage(
    context: Context,
    job: str | None,
    user: str,
    account: str,
    month: str,
    hypothetical: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show requested, held, useful and lost GPU hours, and the gain, of a month by account and user.

    With JOB: all runs of that job, as `sacct -D -j JOB` lists them: each resize ends one, with a requeue or without
    (RESIZING). `sacct -j` and seff show only the last one.
    """
    if as_csv and as_json:
        raise UsageError("--csv", "--json is given too", "give one of them")
    if job is not None:
        others = {"--user": user, "--account": account, "--month": month, "--csv": as_csv, "--would-have": hypothetical}
        for name in (name for name, value in others.items() if value):
            raise UsageError(name, f"job {job} is named too", "name one of them")
        with context.backend() as backend:
            job_usage = backend.job_usage(backend.job_id(job))
        if as_json:
            click.echo(json.dumps(encode(job_usage), indent=1))
        else:
            console().print(job_table(job_usage))
            click.echo(job_notes(job_usage))
            console().print(Text(losses_message(job_usage.losses)))
        return
    span = _span_of_month(month)
    if hypothetical:
        if as_csv:
            raise UsageError("--csv", "--would-have is given too", "use --json")
        with context.backend() as backend:
            changes = backend.would_have(*span, user, account)
        if as_json:
            click.echo(json.dumps(encode(changes), indent=1))
        else:
            would_have.show(changes, console())
        return
    with context.backend() as backend:
        usage_of_all = backend.usage(*span, user, account)
    if as_json:
        click.echo(json.dumps(encode(usage_of_all), indent=1))
    elif as_csv:
        click.echo(csv_text(usage_of_all), nl=False)
    elif not usage_of_all.rows:
        click.echo(f"no GPU hours are known from {_span(usage_of_all)}")
    else:
        console().print(table(usage_of_all))
        click.echo(_COLUMN_NOTES)
        console().print(Text(losses_message(usage_of_all.losses)))
        click.echo(audit_message(usage_of_all.total))


def _span_of_month(month: str) -> tuple[float, float]:
    """Return begin and end of `YYYY-MM`, of the present month for "". Raise UsageError."""
    if not month:
        return present_month()
    if not (match := _MONTH.fullmatch(month)):
        raise UsageError("--month", f"{one_line(month, 40)!r} is no month", "write it as 2026-11")
    return month_span(int(match[1]), int(match[2]))


def csv_text(usage: UsageJson) -> str:
    """Return a line for each account and user; a column's sum is its total, but for ratios and for jobs of several accounts."""
    names = [f.name for f in fields(Totals)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["account", "user", "from_s", "to_s", *names])
    for row in usage.rows:
        numbers = [_number(row.usage, name, 4) for name in names]
        writer.writerow([_cell(row.account), _cell(row.user), f"{usage.from_s:.0f}", f"{usage.to_s:.0f}", *numbers])
    return out.getvalue()


def table(usage: UsageJson) -> FittedTable:
    """Return a row for each account and user, with the sums below."""
    columns = [
        text_column("ACCOUNT", least=6),
        text_column("USER", least=6),
        *(figure_column(head, drop) for head, _, drop in _COLUMNS),
    ]
    grid = FittedTable([*columns, figure_column("GAIN")], f"GPU hours from {_span(usage)}")
    grid.footer = ("all", "", *(_number(usage.total, name, 2) for _, name, _ in _COLUMNS), format_gain(usage.total))
    for row in usage.rows:
        names = one_line(row.account, 24), one_line(row.user, 24)
        grid.add_row(*names, *(_number(row.usage, name, 2) for _, name, _ in _COLUMNS), format_gain(row.usage))
    return grid


def job_table(job_usage: JobUsageJson) -> FittedTable:
    """Return a row for each incarnation, with the sums below."""
    total = job_usage.total
    account = f" in {one_line(job_usage.account, 24)}" if job_usage.account else ""
    asked_size = f"asked for {job_usage.asked_gpus} GPU{'s' * (job_usage.asked_gpus != 1)}"
    columns = (
        text_column("BEGIN"),
        text_column("END", drop=3),
        text_column("NODES", least=8, drop=7),
        figure_column("GPUS"),
        text_column("STATE", least=7),
        figure_column("WAITED s", 4),
        figure_column("RAN s"),
        figure_column("HELD", 5),
        figure_column("RESTART s"),
        figure_column("PREDICTED", 6),
        figure_column("MEASURED", 6),
    )
    grid = FittedTable(columns, f"job {job_usage.job_id} of {one_line(job_usage.user, 24)}{account}, {asked_size}")
    restart_s = sum(run.restart_s for run in job_usage.incarnations)
    sums = f"{job_usage.waited_s:.0f}", f"{job_usage.run_s:.0f}", _number(total, "held_gpu_h", 2), f"{restart_s:.0f}"
    grid.footer = ("all", "", "", "", "", *sums, "", "")
    for run in job_usage.incarnations:
        grid.add_row(*_cells(run))
    return grid


def job_notes(job_usage: JobUsageJson) -> str:
    """Return the lines below the table of a job: what its restarts cost, the gain, and what the columns mean."""
    total, count = job_usage.total, f"{job_usage.restarts} restart{'s' * (job_usage.restarts != 1)}"
    gain_text = (
        f"gain {format_gain(total)}, {total.saved_h:+.2f} h saved"
        if total.gain is not None
        else "the gain is not known"
    )
    return (
        f"{count}: {job_usage.restart_s:.0f} s without training, {total.restart_gpu_h:.2f} GPU hours.\n"
        f"{gain_text[:1].upper()}{gain_text[1:]}.\n"
        "WAITED: since it was submitted or requeued. HELD: GPU hours. RESTART: on its\n"
        "GPUs, without training. PREDICTED, MEASURED: goodput over that of the run\n"
        "before, as Synergy decided and as the job reported."
    )


def _cells(run: Incarnation) -> tuple[str, ...]:
    begin, end = _second(run.start_s), "-" if run.end_s is None else _second(run.end_s)
    where = one_line(format_names(run.nodes), 60) or "-"
    numbers = (f"{run.waited_s:.0f}", f"{run.run_s:.0f}", f"{run.held_gpu_h:.2f}", f"{run.restart_s:.0f}")
    ratios = ("-" if ratio is None else f"{ratio:.2f}x" for ratio in (run.predicted, run.measured))
    return (begin, end, where, str(run.gpus), one_line(run.state, 20) or "ended", *numbers, *ratios)


def audit_message(usage: Totals) -> str:
    """Return what was predicted of the changes that were made, against what came of them."""
    if not usage.changes:
        return "AUDIT: Synergy has changed no running job."
    changes = f"{usage.changes} change{'s' * (usage.changes != 1)} by Synergy"
    left_out = f"{usage.changes - usage.audited} left out (no prediction, or no reports before or after)"
    words = f"AUDIT: of {changes} {left_out}."
    if usage.prediction_error is None:
        return words
    return (
        f"{words}\nThe rest: {usage.predicted_h:+.2f} h saved as predicted, {usage.measured_h:+.2f} h as measured, "
        f"{usage.change_h:.2f} h spent on the changes; goodput off by {100 * usage.prediction_error:.0f} %."
    )


def _span(usage: UsageJson) -> str:
    return " to ".join(datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M") for t in (usage.from_s, usage.to_s))


def _second(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).strftime("%Y-%m-%d %H:%M:%S")


def _number(usage: Totals, name: str, digits: int) -> str:
    value = getattr(usage, name)
    return "" if value is None else f"{value:.{0 if name in _COUNTS else digits}f}"


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
