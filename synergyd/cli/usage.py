"""synergyctl usage: GPU hours and the gain, by account and user, or of one job's incarnations."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields
from datetime import datetime

import click
from rich.table import Table
from rich.text import Text
from synergy_core.errors import UsageError, one_line
from synergy_core.formatting import format_names
from synergy_core.usage import Totals
from synergy_core.wire.codec import encode

from synergyd.cli.shared.console import console
from synergyd.cli.shared.context import Context, pass_context
from synergyd.cli.shared.job_names import JOB_NAME
from synergyd.views.json_records import Incarnation, JobUsageJson, UsageJson
from synergyd.views.usage import month_span, present_month

_MONTH = re.compile(r"(2[0-9]{3})-(0[1-9]|1[0-2])")
_COUNTS = frozenset({"jobs", "changes", "audited"})
# a spreadsheet would take a cell that begins with one of these for a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_COLUMNS = (
    ("JOBS", "jobs"), ("ASKED", "asked_gpu_h"), ("HELD", "held_gpu_h"), ("USEFUL", "useful_gpu_h"),
    ("RESTARTS", "restart_gpu_h"), ("KNOWN", "known_gpu_h"), ("SAVED h", "saved_h"),
)  # fmt: skip
_COLUMN_NOTES = (
    "ASKED: the sizes at sbatch, while the jobs ran. USEFUL: what they would have taken for the same training.\n"
    "KNOWN: held hours in which a job told of its training. SAVED: job hours against the sizes asked for, started at the\n"
    "same times, restarts counted. GAIN: SAVED over the hours spent, with one sigma of the model."
)


@click.command()
@click.argument("job", type=JOB_NAME, required=False)
@click.option("--user", default="", help="This user's jobs alone.")
@click.option("--account", default="", help="This account's jobs alone.")
@click.option("--month", default="", metavar="YYYY-MM", help="A month by this machine's clock (TZ); the present one.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values, with a line of names.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@pass_context
def usage(context: Context, job: str | None, user: str, account: str, month: str, as_csv: bool, as_json: bool) -> None:
    """Show GPU hours asked for, held, useful and lost to restarts, and the gain: of a month, by account and user.

    With JOB: all runs of that job. Each resize ends one and begins the next, as `sacct -D -j JOB` lists them, with a requeue or
    without (RESIZING); `sacct -j` and seff show the last one alone.
    """
    if as_csv and as_json:
        raise UsageError("--csv", "--json is given too", "give one of them")
    if job is not None:
        others = {"--user": user, "--account": account, "--month": month, "--csv": as_csv}
        for name in (name for name, value in others.items() if value):
            raise UsageError(name, f"job {job} is named too", "name one of them")
        with context.backend() as backend:
            job_usage = backend.job_usage(backend.job_id(job))
        if as_json:
            click.echo(json.dumps(encode(job_usage), indent=1))
        else:
            console().print(job_table(job_usage))
            click.echo(job_notes(job_usage))
        return
    span = _span_of_month(month)
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
        click.echo(audit_message(usage_of_all.total))


def _span_of_month(text: str) -> tuple[float, float]:
    """Return begin and end of `YYYY-MM`, of the present month for "". Raise UsageError."""
    if not text:
        return present_month()
    if not (match := _MONTH.fullmatch(text)):
        raise UsageError("--month", f"{one_line(text, 40)!r} is no month", "write it as 2026-11")
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


def table(usage: UsageJson) -> Table:
    """Return a row for each account and user, with the sums below."""
    grid = Table(title=f"GPU hours from {_span(usage)}", title_justify="left", pad_edge=False, show_footer=True)
    grid.add_column("ACCOUNT", footer="all")
    grid.add_column("USER")
    for head, name in _COLUMNS:
        grid.add_column(head, justify="right", footer=_number(usage.total, name, 2))
    grid.add_column("GAIN", justify="right", footer=format_gain(usage.total))
    for row in usage.rows:
        texts = [one_line(row.account, 24), one_line(row.user, 24)]
        texts += [_number(row.usage, name, 2) for _, name in _COLUMNS]
        grid.add_row(*(Text(t) for t in (*texts, format_gain(row.usage))))
    return grid


def job_table(job_usage: JobUsageJson) -> Table:
    """Return a row for each incarnation, with the sums below."""
    total = job_usage.total
    account = f" in {one_line(job_usage.account, 24)}" if job_usage.account else ""
    asked_size = f"asked for {job_usage.asked_gpus} GPU{'s' * (job_usage.asked_gpus != 1)}"
    title = Text(f"job {job_usage.job_id} of {one_line(job_usage.user, 24)}{account}, {asked_size}")
    grid = Table(title=title, title_justify="left", pad_edge=False, show_footer=True)
    grid.add_column("BEGIN", footer="all")
    for name in ("END", "NODES"):
        grid.add_column(name)
    grid.add_column("GPUS", justify="right")
    grid.add_column("STATE")
    for name, text in (
        ("WAITED s", f"{job_usage.waited_s:.0f}"), ("RAN s", f"{job_usage.run_s:.0f}"), ("HELD", _number(total, "held_gpu_h", 2)),
        ("RESTART s", f"{sum(run.restart_s for run in job_usage.incarnations):.0f}"), ("PREDICTED", ""), ("MEASURED", ""),
    ):  # fmt: skip
        grid.add_column(name, justify="right", footer=text)
    for run in job_usage.incarnations:
        grid.add_row(*(Text(text) for text in _cells(run)))
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
        f"{count}: {job_usage.restart_s:.0f} s without training, {total.restart_gpu_h:.2f} GPU hours; {gain_text}.\n"
        "WAITED: since it was submitted or requeued. HELD: GPU hours. RESTART: on its GPUs, without training.\n"
        "PREDICTED, MEASURED: goodput over that of the run before, as Synergy decided and as the job reported."
    )


def _cells(run: Incarnation) -> tuple[str, ...]:
    begin, end = _second(run.start_s), "-" if run.end_s is None else _second(run.end_s)
    where = one_line(format_names(run.nodes), 60) or "-"
    numbers = (f"{run.waited_s:.0f}", f"{run.run_s:.0f}", f"{run.held_gpu_h:.2f}", f"{run.restart_s:.0f}")
    ratios = ("-" if ratio is None else f"{ratio:.2f}x" for ratio in (run.predicted, run.measured))
    return (begin, end, where, str(run.gpus), one_line(run.state, 20) or "ended", *numbers, *ratios)


def format_gain(usage: Totals) -> str:
    """Return `+11.2 % ± 0.8`, or `-` if nothing is known of the training."""
    return "-" if usage.gain is None else f"{100 * usage.gain:+.1f} % ± {100 * usage.gain_sigma:.1f}"


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
