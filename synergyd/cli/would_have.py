"""The table of `synergyctl usage --would-have`: what a dry run would have changed, job by job."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.text import Text
from synergy_core.errors import one_line
from synergy_core.would_have import WouldHave, WouldHaveTotals

from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column
from synergyd.cli.shared.headline import format_gain
from synergyd.views.json_records import WouldHaveJson

MOST_ROWS = 40  # the jobs for which most would have changed
_COLUMNS = (
    text_column("JOB"),
    text_column("NAME", least=8, drop=4),
    text_column("USER", least=6),
    text_column("LINE", drop=2),
    figure_column("ASKED", 3),
    figure_column("WANTED", 1),
    figure_column("RAN h"),
    figure_column("SAVED h"),
    figure_column("GAIN"),
    figure_column("SOONER h"),
    figure_column("CHANGES", 5),
)
_NOTES = (
    "SAVED: job hours that the same training would have taken less, restarts paid, ± one sigma. SOONER: of the hours waited, those in "
    "which Synergy would have run the job. LINE: it has a #SYNERGY line.",
    "Jobs without a line count as if they had one, started training through synergy-launch, and scaled as Gavel measured 168 pairs of "
    "job and GPUs; nothing of theirs was measured. Jobs on one GPU, and those that ask for GPUs other than by node, are left out. A job "
    "that would have ended sooner still counts as holding its GPUs, so that the rest tends to be too low.",
)


def show(data: WouldHaveJson, out: Console) -> None:
    """Print the table, the sums and what they assume."""
    if not data.jobs:
        out.print(Text("no dry run has counted anything in this time: it needs DryRun=yes, and jobs with GPUs"))
        return
    out.print(table(data))
    for note in _NOTES:
        out.print(Text(note))


def table(data: WouldHaveJson) -> FittedTable:
    """Return a row for each of the jobs that would have changed most, with the sums below."""
    begin, end = (datetime.fromtimestamp(at_s).strftime("%Y-%m-%d %H:%M") for at_s in (data.from_s, data.to_s))
    grid = FittedTable(_COLUMNS, f"What Synergy would have changed from {begin} to {end}")
    first = sorted(data.jobs, key=lambda job: -(abs(job.saved_s) + job.sooner_s))
    for job in first[:MOST_ROWS]:
        grid.add_row(*_cells(job))
    total = data.total
    sums = (f"{total.ran_h:.1f}", _saved(total), format_gain(total), f"{total.sooner_h:.1f}", str(total.changes))
    grid.footer = ("all", "", "", "", "", "", *sums)
    if len(first) > MOST_ROWS:
        grid.notes.append(f"and {len(first) - MOST_ROWS} more jobs, in --json")
    for name, some in (("with a line", data.with_line), ("without", data.plain)):
        noun = "job" if some.jobs == 1 else "jobs"
        grid.notes.append(f"{some.jobs} {noun} {name}: gain {format_gain(some)}, {_saved(some)} h saved")
    return grid


def _cells(job: WouldHave) -> tuple[str, ...]:
    gain = f"{100 * job.saved_s / job.ran_s:+.1f} % ± {100 * job.sigma_s / job.ran_s:.1f}" if job.ran_s > 0 else "-"
    return (
        str(job.job_id),
        one_line(job.name, 24),
        one_line(job.user, 16),
        "yes" if job.has_line else "no",
        str(job.asked_gpus),
        str(job.wanted_gpus or "-"),
        f"{job.ran_s / 3600:.1f}",
        f"{job.saved_s / 3600:+.1f} ± {job.sigma_s / 3600:.1f}",
        gain,
        f"{job.sooner_s / 3600:.1f}",
        str(job.changes),
    )


def _saved(of: WouldHaveTotals) -> str:
    return f"{of.saved_h:+.1f} ± {of.sigma_h:.1f}"
