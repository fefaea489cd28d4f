"""Accuracy of the performance and memory model by cross-validation: `python -m tests.benchmarks.perf_rows --data DIR`.

DIR holds the CSV files of measured rows (vtrain_single_node.csv, mosaicml_fsdp.csv, ...). Every number comes from
`held_out`, which fits a predictor to the training rows alone and refuses a row that is both trained on and scored.
Shots are rows of the part to be scored that refine the predictor online; they are not scored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from synergy_core.errors import UsageError

from synergyd.jobmodel.fit.measured_runs import NO_SHOTS, MeasuredRun, Shots, read_files, shots, spread_hash
from synergyd.jobmodel.fit.predictor import Predictor, fit_predictor
from synergyd.jobmodel.fit.score import Score, score

FOLDS = 5
# (what, target) of rows never seen, by the shots that teach before
SHOTS = (
    (NO_SHOTS, "12 %"),
    (Shots(each=5), "8 %, regret 5 %"),
    (Shots(each=15), "6 %"),
    (Shots(in_all=5), "8 %, regret 5 %"),
    (Shots(in_all=15), "6 %"),
)


class Predictions:
    """Predicted step times and peaks of rows that were held out, gathered over folds."""

    def __init__(self) -> None:
        self.rows: list[MeasuredRun] = []
        self.step_s: list[float] = []
        self.peak_bytes: list[float] = []

    def score(self) -> Score:
        return score(self.rows, np.array(self.step_s), np.array(self.peak_bytes))


@lru_cache(maxsize=32)  # clusters are left out several times, with other shots
def fitted_once(train: tuple[MeasuredRun, ...]) -> Predictor:
    return fit_predictor(train)


def held_out(
    into: Predictions, train: Sequence[MeasuredRun], test: Sequence[MeasuredRun], wanted: Shots = NO_SHOTS
) -> None:
    """Predict `test` by what `train` and the shots `wanted` of `test` teach; the shots are not among what is gathered.
    Raises ValueError where a row would be scored that was learnt from."""
    learn, rest = shots(test, wanted)
    taught = {(row.file, row.row_id) for row in (*train, *learn)}
    if both := [row.row_id for row in rest if (row.file, row.row_id) in taught]:
        raise ValueError(f"rows {both[:3]} would be scored by a fit that has seen them")
    predictor = fitted_once(tuple(train))
    if learn:
        predictor = predictor.with_rows(learn)
    if rest:
        into.rows += rest
        into.step_s += predictor.step_s(rest).tolist()
        into.peak_bytes += predictor.peak_bytes(rest).tolist()


def folds(
    rows: Sequence[MeasuredRun],
    others: Sequence[MeasuredRun],
    key: Callable[[MeasuredRun], Hashable],
    wanted: Shots = NO_SHOTS,
) -> Score:
    """Rows of equal `key` are held out together, in FOLDS parts; the rest and `others` are fitted."""
    keys = sorted({key(row) for row in rows}, key=lambda k: spread_hash(repr(k)))
    part = {k: i % FOLDS for i, k in enumerate(keys)}
    found = Predictions()
    for number in range(min(FOLDS, len(keys))):
        test = [row for row in rows if part[key(row)] == number]
        train = [row for row in rows if part[key(row)] != number]
        held_out(found, [*train, *others], test, wanted)
    return found.score()


def once(train: Sequence[MeasuredRun], test: Sequence[MeasuredRun], wanted: Shots = NO_SHOTS) -> Score:
    """One split."""
    found = Predictions()
    held_out(found, train, test, wanted)
    return found.score()


def never_seen(rows: Sequence[MeasuredRun], clusters: Sequence[str], wanted: Shots) -> Score:
    """Each of `clusters` is left out whole in turn."""
    found = Predictions()
    for cluster in clusters:
        test = [row for row in rows if row.cluster == cluster]
        held_out(found, [row for row in rows if row.cluster != cluster], test, wanted)
    return found.score()


def words_of(wanted: Shots) -> str:
    return f"{wanted.in_all} shots in all" if wanted.in_all else f"{wanted.each} shots"


def cases(
    rows: Sequence[MeasuredRun], taught: Sequence[tuple[Shots, str]] = SHOTS
) -> list[tuple[str, str, Callable[[], Score]]]:
    """(what, target, how to get it) of every number that the rows at hand allow."""

    def of(file: str) -> list[MeasuredRun]:
        return [row for row in rows if row.file == file]

    def but(some: Sequence[MeasuredRun]) -> list[MeasuredRun]:
        left_out = {(row.file, row.row_id) for row in some}
        return [row for row in rows if (row.file, row.row_id) not in left_out]

    single, multi = of("vtrain_single_node.csv"), of("vtrain_multi_node.csv")
    small = [row for row in multi if row.model.hidden <= 3072]
    large = [row for row in multi if row.model.hidden > 3072]
    fsdp, roce = of("mosaicml_fsdp.csv"), of("internevo_7b_a100.csv")
    weighed = [row for row in rows if row.memory_bytes is not None and "mem" in row.scores]
    named = sorted({row.cluster for row in rows if row.time_s is not None and "time" in row.scores})
    # tensor and pipeline parallel GPT training on A100: what the 180B rows are
    alike = sorted({row.cluster for row in of("megatron_readme.csv") + of("korthikanti_a100.csv") + roce + multi})

    single_target, multi_target = "6 %, regret 3 %, Spearman .95", "7 %"
    result: list[tuple[str, str, Callable[[], Score]]] = [
        ("vTrain single node, groups held out", single_target, lambda: folds(single, but(single), lambda r: r.group)),
        ("vTrain single node, models held out", single_target, lambda: folds(single, but(single), lambda r: r.job)),
        ("vTrain single node, rows held out", single_target, lambda: folds(single, but(single), lambda r: r.row_id)),
        ("vTrain multi node, 3.6B fitted, 18B scored", multi_target, lambda: once(but(large), large)),
        ("vTrain multi node, 18B fitted, 3.6B scored", multi_target, lambda: once(but(small), small)),
        ("vTrain multi node, one node fitted", "(50 % by one-node fits)", lambda: once(but(multi), multi)),
        ("FSDP H100, models held out", "10 %", lambda: _of_type(fsdp, but(fsdp), "h100")),
        ("FSDP A100-80, models held out", "8 %", lambda: _of_type(fsdp, but(fsdp), "a100-80")),
        ("7B on RoCE, rows held out", "6 %", lambda: folds(roce, but(roce), lambda r: r.row_id)),
    ]
    for gpu_type in sorted({row.gpu_type for row in fsdp}):
        some = [row for row in fsdp if row.gpu_type == gpu_type]
        what, target = f"FSDP, type {gpu_type} never fitted there", "8 % (for A100-40 after A100-80)"
        result.append((what, target, lambda some=some: once(but(some), some)))  # type: ignore[misc]
    strangers = [row for row in rows if row.cluster not in {row.cluster for row in multi}]
    weighed_clusters = sorted({row.cluster for row in weighed})
    for wanted, target in taught:
        after = words_of(wanted)
        unseen = [(f"clusters never seen, 3D parallel on A100, {after}", rows, alike)]
        unseen += [(f"  never seen: {cluster}, {after}", rows, [cluster]) for cluster in named]
        if max(wanted.each, wanted.in_all) <= 5:
            unseen.append((f"memory, clusters never seen, {after}", weighed, weighed_clusters))
        result += [(what, target, partial(never_seen, some, clusters, wanted)) for what, some, clusters in unseen]
        what = f"vTrain multi node as a cluster never seen, {after}"
        result.append((what, target, partial(once, strangers, multi, wanted)))
    result.append(("memory, models held out", "8 %", lambda: folds(weighed, [], lambda r: r.job)))
    return result


def _of_type(rows: Sequence[MeasuredRun], others: Sequence[MeasuredRun], gpu_type: str) -> Score:
    """Models held out over all types at once, scored on one type."""
    keys = sorted({row.model.hidden for row in rows}, key=lambda k: spread_hash(repr(k)))
    found = Predictions()
    for number in range(FOLDS):
        held = set(keys[number::FOLDS])
        test = [row for row in rows if row.model.hidden in held and row.gpu_type == gpu_type]
        if test:
            held_out(found, [*others, *(row for row in rows if row.model.hidden not in held)], test)
    return found.score()


def _cell(value: float | None, times: float = 100, digits: int = 1) -> str:
    return "-" if value is None else f"{times * value:.{digits}f}"


@click.command()
@click.option(
    "--data", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of the CSV files."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--shots", type=click.IntRange(0), help="Of clusters never seen only after so many rows of each model.")
@click.option("--shots-in-all", type=click.IntRange(0), help="The same after so many rows of the cluster.")
@click.option("--only", default="", metavar="WORD", help="Only cases whose name contains this.")
def main(data: Path, as_json: bool, only: str, shots: int | None, shots_in_all: int | None) -> None:
    """Cross-validate the performance and memory model on measured rows."""
    asked = [(Shots(each=shots), "")] if shots is not None else []
    asked += [(Shots(in_all=shots_in_all), "")] if shots_in_all is not None else []
    passed_over: list[str] = []
    try:
        rows = read_files(sorted(data.glob("*.csv")), passed_over)
    except UsageError as error:
        click.echo(f"perf_rows: {error}", err=True)
        sys.exit(2)
    if passed_over:
        click.echo(f"{len(passed_over)} rows passed over, the first: {passed_over[0]}", err=True)
    table = Table(title="held-out rows, percent", title_justify="left")
    for name in ("what", "target", "rows", "mean", "median", "bias", "groups", "regret", "Spearman", "memory", "rows "):
        table.add_column(name, justify="left" if name in ("what", "target") else "right", no_wrap=name == "what")
    start, results = time.perf_counter(), {}
    for what, target, run in cases(rows, asked or SHOTS):
        if only not in what:
            continue
        s = run()
        results[what.strip()] = {"target": target, **asdict(s)}
        plan = (str(s.groups), _cell(s.regret_mean), _cell(s.spearman, 1, 2))
        memory = (_cell(s.memory_mape), str(s.memory_rows))
        table.add_row(what, target, str(s.rows), _cell(s.mape), _cell(s.median), _cell(s.bias), *plan, *memory)
    if as_json:
        click.echo(json.dumps(results, indent=2))
    else:
        Console(width=200).print(table)
        click.echo(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
