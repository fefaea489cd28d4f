"""`synergyctl profiles`: the fit of the performance model to measured rows, and its score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click
from synergy_core.errors import UsageError

from synergyd.cli.measure import measure
from synergyd.cli.shared.atomic import write_atomically
from synergyd.cli.shared.console import console
from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column
from synergyd.jobmodel.fit.measured_runs import MeasuredRun, Shots, read_files
from synergyd.jobmodel.fit.predictor import fit_predictor
from synergyd.jobmodel.fit.profile_file import profile_text, read_profile
from synergyd.jobmodel.fit.score import Score, score_files

_NAMED = 5  # rows passed over that are named
_FILE = click.Path(path_type=Path)


@click.group(context_settings={"max_content_width": 120})
def profiles() -> None:
    """Fit the performance and memory model to measured rows, and score its predictions; measure this machine.

    Rows are CSV files, one measured step time or memory peak a line with its full configuration.

    \b
    Required columns: row_id, source (whose cluster, first), model, layers, hidden, heads, seq, gpu_type,
    gpus_per_node, n_gpus, tp, pp, dp, micro_batch, global_batch, recompute (none, selective, full), iter_time_s.
    Others: ffn, kv_heads, vocab, vpp, cp, ep, seq_parallel (0, 1), zero_stage (0-3), precision, mem_gb (1e9 bytes),
    experts, top_k, oom (1: it did not fit), score_as (time, plan, mem with + between), group (rows whose plans
    compete), software (megatron, deepspeed, fsdp), shard_ranks (that share the optimizer), inter_gbs (a GPU's share of
    the network, 1e9 bytes/s), note (with Megatron's flags).
    """


@profiles.command("fit")
@click.option("--rows", "files", required=True, multiple=True, type=_FILE, metavar="FILE.csv", help="Measured rows.")
@click.option("--out", required=True, type=_FILE, metavar="PROFILE", help="File to write.")
def fit_command(files: tuple[Path, ...], out: Path) -> None:
    """Fit the model's parameters to rows and write them to a profile.

    Every GPU type and cluster in the rows gets its own. Others are predicted from their hardware figures and what all rows
    have in common.

    \b
    Example:
      synergyctl profiles fit --rows a100.csv --rows h100.csv --out cluster.profile
    """
    rows = _rows(files)
    predictor = fit_predictor(rows)
    write_atomically(out, profile_text(predictor))
    scores = score_files(rows, predictor)["all"]
    click.echo(
        f"{out}: fitted to {predictor.time.effects.rows} step times and {predictor.memory.effects.rows} memory peaks; "
        f"on these rows themselves the error is {_percent(scores.mape)} of time, {_percent(scores.memory_mape)} of memory"
    )


@profiles.command("score")
@click.option("--rows", "files", required=True, multiple=True, type=_FILE, metavar="FILE.csv", help="Measured rows.")
@click.option("--profile", required=True, type=_FILE, metavar="PROFILE", help="File that `profiles fit` wrote.")
@click.option(
    "--shots",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1000),
    metavar="N",
    help="Rows of each model and cluster to learn from; the others are scored.",
)
@click.option(
    "--shots-in-all",
    default=0,
    show_default=True,
    type=click.IntRange(0, 10000),
    metavar="N",
    help="The same of each cluster, over all its models.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (fractions, not percent) instead of a table.")
def score_command(files: tuple[Path, ...], profile: Path, shots: int, shots_in_all: int, as_json: bool) -> None:
    """Score predictions of rows: step time, choice of plan, memory.

    \b
    Example:
      synergyctl profiles score --rows new.csv --profile cluster.profile --shots 5
    """
    if shots and shots_in_all:
        raise UsageError("--shots", "with --shots-in-all", "one of them")
    scores = score_files(_rows(files), read_profile(profile), Shots(shots, shots_in_all))
    if as_json:
        click.echo(json.dumps({name: asdict(value) for name, value in scores.items()}, indent=2))
    else:
        console().print(table(scores))


profiles.add_command(measure)


def _rows(files: tuple[Path, ...]) -> tuple[MeasuredRun, ...]:
    """Return the files' rows; those that can't be predicted are named on standard error."""
    passed_over: list[str] = []
    rows = read_files(files, passed_over)
    for line in passed_over[:_NAMED]:
        click.echo(f"passed over: {line}", err=True)
    if len(passed_over) > _NAMED:
        click.echo(f"passed over: {len(passed_over) - _NAMED} more rows", err=True)
    return rows


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def table(scores: Mapping[str, Score]) -> FittedTable:
    """Return the table of `scores` for people, in percent."""
    columns = (
        text_column("file", least=8),
        figure_column("rows"),
        figure_column("mean"),
        figure_column("median", 2),
        figure_column("p90", 1),
        figure_column("bias", 3),
        figure_column("groups", 4),
        figure_column("regret"),
        figure_column("p90 ", 5),
        figure_column("top 1"),
        figure_column("Spearman", 6),
        figure_column("memory"),
        figure_column("rows ", 7),
    )
    result = FittedTable(columns, "error of predictions, percent")
    for name, s in scores.items():
        time = [_short(v, 100) for v in (s.mape, s.median, s.p90, s.bias)]
        plan = [_short(v, 100) for v in (s.regret_mean, s.regret_p90, s.top1)]
        memory = [_short(s.memory_mape, 100), str(s.memory_rows)]
        result.add_row(name, str(s.rows), *time, str(s.groups), *plan, _short(s.spearman, 1, 2), *memory)
    return result


def _short(value: float | None, times: float, digits: int = 1) -> str:
    return "-" if value is None else f"{times * value:.{digits}f}"
