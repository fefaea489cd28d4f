"""synergyctl report: GPU hours by account and user."""

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

from synergyd.cli.shared.console import console
from synergyd.cli.shared.context import Context, pass_context
from synergyd.errors import UsageError, one_line
from synergyd.usage import Totals
from synergyd.views.json_records import ReportJson
from synergyd.wire.codec import encode

_MONTH = re.compile(r"(2[0-9]{3})-(0[1-9]|1[0-2])")
_DIGITS = {"jobs": 0}
# a spreadsheet would take a cell that begins so for a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@click.command()
@click.option("--user", default="", help="This user's jobs alone.")
@click.option("--account", default="", help="This account's jobs alone.")
@click.option("--month", default="", metavar="YYYY-MM", help="A month by this machine's clock (TZ); the present one.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values, with a line of names.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@pass_context
def report(context: Context, user: str, account: str, month: str, as_csv: bool, as_json: bool) -> None:
    """Show GPU hours asked for, held, useful, lost to restarts, and the time saved."""
    if as_csv and as_json:
        raise UsageError("--csv", "--json is given too", "give one of them")
    span = span_of_month(month)
    with context.desk() as desk:
        found = desk.report(*span, user, account)
    if as_json:
        click.echo(json.dumps(encode(found), indent=1))
    elif as_csv:
        click.echo(csv_text(found), nl=False)
    elif not found.rows:
        click.echo(f"no GPU hours are known from {_span(found)}")
    else:
        console().print(table(found))


def span_of_month(text: str) -> tuple[float, float]:
    """Begin and end of `YYYY-MM` by this machine's clock, seconds since 1970; of the present month for "". Raises UsageError."""
    match = _MONTH.fullmatch(text)
    if text and not match:
        raise UsageError("--month", f"{one_line(text, 40)!r} is no month", "write it as 2026-11")
    year, month = (int(match[1]), int(match[2])) if match else (datetime.now().year, datetime.now().month)
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return datetime(year, month, 1).timestamp(), datetime(*following, 1).timestamp()


def csv_text(found: ReportJson) -> str:
    """A line for each account and user; the sum of a column is its total, but for jobs of several accounts."""
    names = [f.name for f in fields(Totals)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["account", "user", "from_s", "to_s", *names])
    for row in found.rows:
        numbers = [_number(row.usage, name, 4) for name in names]
        writer.writerow([_cell(row.account), _cell(row.user), f"{found.from_s:.0f}", f"{found.to_s:.0f}", *numbers])
    return out.getvalue()


def table(found: ReportJson) -> Table:
    """As people read it."""
    made = Table(title=f"GPU hours from {_span(found)}", title_justify="left", pad_edge=False, show_footer=True)
    made.add_column("ACCOUNT", footer="all")
    made.add_column("USER")
    for head, name in (
        ("JOBS", "jobs"), ("ASKED", "asked_gpu_h"), ("HELD", "held_gpu_h"), ("USEFUL", "useful_gpu_h"),
        ("RESTARTS", "restart_gpu_h"), ("KNOWN", "known_gpu_h"),
    ):  # fmt: skip
        made.add_column(head, justify="right", footer=_number(found.total, name, 2))
    made.add_column("SAVED h", justify="right", footer=_saved(found.total))
    for row in found.rows:
        texts = [one_line(row.account, 24), one_line(row.user, 24)]
        names = ("jobs", "asked_gpu_h", "held_gpu_h", "useful_gpu_h", "restart_gpu_h", "known_gpu_h")
        texts += [_number(row.usage, name, 2) for name in names]
        made.add_row(*(Text(t) for t in (*texts, _saved(row.usage))))
    made.caption = (
        "ASKED: the sizes at sbatch, while the jobs ran. USEFUL: what they would have taken for the same training.\n"
        "KNOWN: held hours in which a job told of its training. SAVED: job hours against the sizes asked for, started at\n"
        "the same times, predicted by the goodput model, with one sigma of it."
    )
    made.caption_justify = "left"
    return made


def _span(found: ReportJson) -> str:
    return " to ".join(datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M") for t in (found.from_s, found.to_s))


def _saved(usage: Totals) -> str:
    return f"{usage.saved_h:+.2f} ± {usage.saved_sigma_h:.2f}"


def _number(usage: Totals, name: str, digits: int) -> str:
    return f"{getattr(usage, name):.{_DIGITS.get(name, digits)}f}"


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
