"""`synergyctl forecast`: what Synergy would have changed in the last month, from the site's own accounts; nothing else is needed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from synergy_core.errors import SynergyError, UsageError
from synergy_core.ordinary_file import read_bytes, read_lines

from synergy_sim.cli.forecast_text import describe, format_tables
from synergy_sim.cli.json_file import write_json
from synergy_sim.forecast.estimate import Forecast, Outcome, Task, forecast, list_tasks, run_task
from synergy_sim.forecast.history import COLUMNS, History, read_history
from synergy_sim.tables import TableRow, parse_table
from synergyd.cli.shared.atomic import write_atomically
from synergyd.cli.shared.key_values import FiniteRange
from synergyd.slurm.client import SlurmError
from synergyd.slurm.commands import Commands

SACCT_TIMEOUT_S = 300.0  # slurmdbd answers a month of 100,000 jobs in some seconds; a busy one takes minutes
PARALLEL_FROM = 1000  # jobs; fewer are replayed sooner than processes start
LIMIT_BYTES = 256 << 20  # of sacct's output: 100,000 rows are about 15 MB
_FORMAT = f"--format={','.join(COLUMNS)}"

_history: History | None = None  # of a worker process


@click.command("forecast")
@click.option(
    "--history", "history_file", type=click.Path(path_type=Path), metavar="FILE", help="sacct's output, from a file."
)
@click.option(
    "--nodes", "nodes_file", type=click.Path(path_type=Path), metavar="FILE", help="sinfo's output, from a file."
)
@click.option(
    "--days",
    default=30.0,
    show_default=True,
    type=FiniteRange(0.5, 400),
    metavar="N",
    help="Days before the last job's end.",
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), metavar="N", help="Of what is drawn by chance."
)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="One page to send on.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.png", help="A picture (needs matplotlib)."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="'-': stdout."
)
def forecast_verb(
    history_file: Path | None,
    nodes_file: Path | None,
    days: float,
    seed: int,
    html: Path | None,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    """Forecast waits, completion times and GPU hours with Synergy, from the last month's jobs.

    It needs no daemon, database or root, and runs sacct and sinfo itself. If they can't run here or show only your own jobs,
    let somebody who sees all jobs write their output to files:

    \b
      SLURM_TIME_FORMAT=%s sacct -a -D -X -P -S now-30days \\
        --format=JobIDRaw,User,Submit,Eligible,Start,ElapsedRaw,TimelimitRaw,AllocTRES,NNodes,NodeList,State \\
        > history.txt
      sinfo -N -h -o '%N|%G' > nodes.txt
      synergyctl forecast --history history.txt --nodes nodes.txt --html forecast.html

    Without --nodes the nodes are those that ran the jobs.

    Exit code: 0; 2 if an option or a file is wrong, or there is nothing to forecast; 1 if Slurm doesn't answer.
    """
    try:
        began = time.monotonic()
        history = check_history(load_history(history_file, nodes_file, days))
        result = forecast(history, run_tasks(history, seed))
        if json_file is not None:
            write_json(json_file, as_json(result))
        if html is not None:
            from synergy_sim.cli.forecast_page import page

            write_atomically(html, page(result))
        if plot is not None:
            from synergy_sim.cli.forecast_plot import draw_forecast

            draw_forecast(result, plot)
    except SynergyError as error:
        click.echo(f"synergyctl forecast: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    if json_file != Path("-"):
        out = Console(width=min(Console().width, 100)) if sys.stdout.isatty() else Console(width=80)
        for line in describe(result):
            out.print(line, markup=False, highlight=False)
        for table in format_tables(result):
            out.print(table)
        took = f"computed in {time.monotonic() - began:.0f} s"
        if html is None:
            took += "; --html FILE writes this as a page with pictures"
        out.print(took, highlight=False)


def load_history(history_file: Path | None, nodes_file: Path | None, days: float) -> History:
    """Read the history from the files, or from Slurm. Raises SynergyError."""
    commands = Commands(timeout_s=SACCT_TIMEOUT_S)
    if history_file is not None:
        try:
            rows = parse_table(history_file, read_lines(history_file, LIMIT_BYTES), COLUMNS, "|")
            sinfo = read_bytes(nodes_file, LIMIT_BYTES).decode(errors="replace") if nodes_file is not None else ""
        except OSError as error:
            raise UsageError(error.filename or str(history_file), f"can't be read: {error.strerror}") from None
        return read_history(_show_progress(rows), days, sinfo)
    if nodes_file is not None:
        raise UsageError("--nodes", "--history is not given", "give both, or neither: sacct and sinfo are then run")
    try:
        text = commands.run("sacct", "-a", "-D", "-X", "-P", f"--starttime=now-{days + 1:.0f}days", _FORMAT)
    except SlurmError as error:
        last_line = error.what.replace("\\n", "\n").strip().splitlines()[-1:]  # the last line says what it failed of
        right = "run it where it works and give --history: the commands are in 'synergyctl forecast --help'"
        raise SlurmError("sacct", f"{''.join(last_line)}; {right}", transient=error.transient) from None
    try:
        sinfo = commands.run("sinfo", "-N", "-h", "-o", "%N|%G").decode(errors="replace")
    except SlurmError:
        sinfo = ""
    lines = text.decode(errors="replace").splitlines(keepends=True)
    return read_history(_show_progress(parse_table(Path("sacct"), lines, COLUMNS, "|")), days, sinfo)


def check_history(history: History) -> History:
    """Return the history itself. Raises UsageError where there is nothing to forecast."""
    where = "the history"
    if not history.jobs:
        exclusions = f"{history.waiting} wait, {history.unreadable} have no readable node count or list"
        right = "AccountingStorageTRES=gres/gpu in slurm.conf lets Slurm record GPUs; sacct -a needs PrivateData without jobs"
        raise UsageError(where, f"no job with GPUs has run in it ({exclusions})", right)
    if not history.forecast_jobs:
        raise UsageError(where, "no job with GPUs became ready and ended in it", "more --days")
    if not any(job.gpus > 1 for job in history.forecast_jobs):
        raise UsageError(
            where, "no job has more than one GPU", "Synergy resizes jobs with several GPUs; it can gain nothing here"
        )
    return history


def _show_progress(rows: Iterator[TableRow]) -> Iterator[TableRow]:
    """Yield the rows, with their number on a terminal."""
    terminal = Console(stderr=True)
    with Progress(
        TextColumn("reading jobs: {task.completed}"), console=terminal, transient=True, disable=not terminal.is_terminal
    ) as bar:
        task = bar.add_task("rows", total=None)
        for number, row in enumerate(rows):
            if not number % 1000:
                bar.update(task, completed=number)
            yield row


def run_tasks(history: History, seed: int) -> list[tuple[Task, Outcome]]:
    """Run all tasks on the processors of this machine, with a progress bar on a terminal."""
    tasks = list_tasks(history)
    terminal = Console(stderr=True)
    columns = (TextColumn("replaying the month"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    results = []
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        shown_task = bar.add_task("runs", total=len(tasks))
        for result in _results(history, tasks, seed):
            results.append(result)
            bar.advance(shown_task)
    return results


def _results(history: History, tasks: list[Task], seed: int) -> Iterator[tuple[Task, Outcome]]:
    processors = len(os.sched_getaffinity(0))
    if processors < 2 or len(history.jobs) < PARALLEL_FROM:
        yield from ((task, run_task(history, task, seed)) for task in tasks)
        return
    with ProcessPoolExecutor(min(processors, len(tasks)), initializer=_keep, initargs=(history,)) as pool:
        running = {pool.submit(_run_task, task, seed): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


def _keep(history: History) -> None:
    global _history
    _history = history


def _run_task(task: Task, seed: int) -> Outcome:
    assert _history is not None
    return run_task(_history, task, seed)


def as_json(result: Forecast) -> dict[str, Any]:
    """Return the forecast as JSON: seconds and hours as in the records."""
    history = result.history
    return {
        "from_s": history.from_s,
        "to_s": history.to_s,
        "jobs": len(history.forecast_jobs),
        "multi_gpu_jobs": result.multi,
        "nodes": {kind: list(each) for kind, each in history.nodes.items()},
        "nodes_from": history.source,
        "measured": asdict(result.measured_outcome),
        "replayed": asdict(result.replayed_outcome),
        "explained": result.explained_share,
        "forecasts": [asdict(one) for one in result.shares],
    }
