"""Each cluster as one that the model has never seen: `python -m tests.benchmarks.unseen_clusters --data DIR [--only WORD] [--json]`.

DIR holds the CSV files of measured rows (see perf_rows). With `--rubick FOLDER` Rubick's artifact (its traces/ holds llama7/placements.csv:
LLaMA-7B on up to 64 A800) is one more cluster, which is never fitted: the artifact leaves out the batch (8, from its profile's 2^29
elements of 32 layers x 4,096 wide x 4,096 long, and the largest dp), the recompute (full) and the micro-batch (all, as pipelines fill by
steps that do not shrink). All rows of a cluster are left out of the fit, then predicted: by that fit
alone, after 5 and after 15 of them in all (drawn at random, the mean of DRAWS draws). Each part has one line, and each mean
over parts counts every part once, however many rows it has: a source with most rows does not decide alone. vTrain's rows on one node
and on several are parts of the same cluster, and both are left out for either.

err: median of |predicted / measured - 1|; regret: see fit/score.py; 1s, 2s: share of log(measured / predicted) within one and two
sigma (a normal error: 68 and 95). All in per cent. Nothing that is scored was fitted.
"""

from __future__ import annotations

import csv
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import click
import numpy as np
from synergy_core.errors import UsageError
from synergy_core.records import ModelSpec, Plan

from synergyd.jobmodel.fit.measured_runs import MeasuredRun, read_files
from synergyd.jobmodel.fit.parameters import MEMORY, TIME, levels
from synergyd.jobmodel.fit.predictor import Predictor, fit_predictor
from synergyd.jobmodel.fit.score import score

TAUGHT = (0, 5, 15)
DRAWS = 5
_OF_MEMORY_ALONE = (
    "megatron_golden_small_mem.csv",
)  # functional tests: the same program took from 0.08 to 0.6 s a step
_NODE = 8  # GPUs: vTrain's parts
_LLAMA = ModelSpec("llama-7b", 32, 4096, 32, 32, 11008, 32000, 4096, gated=True, tied_embeddings=False)
Kind = Literal["time", "mem"]
Numbers = dict[str, float]


def parts(rows: Sequence[MeasuredRun], kind: Kind) -> dict[str, list[MeasuredRun]]:
    """Return the rows that measured `kind`, by part: a cluster's GPU type."""
    found: dict[str, list[MeasuredRun]] = {}
    for row in rows:
        if kind == "time" and row.file in _OF_MEMORY_ALONE:
            continue
        if kind in row.scores and (row.time_s if kind == "time" else row.memory_bytes) is not None:
            name = f"{row.cluster.rpartition('/')[2]} {row.gpu_type}"
            if "vtrain" in name:
                name += " one node" if row.plan.gpus <= _NODE else " several"
            found.setdefault(name, []).append(row)
    return found


def rubick(folder: Path) -> list[MeasuredRun]:
    """Return the rows of Rubick's LLaMA-7B with as many GPUs on each node."""
    rows = []
    with (folder / "traces" / "llama7" / "placements.csv").open(newline="", encoding="utf-8-sig") as file:
        for i, cells in enumerate(csv.DictReader(file)):
            degrees, nodes, step_s = cells["exec_plan"], cells["placement"], float(cells["iter_time"])
            if not degrees.isdigit() or len(set(nodes)) > 1 or step_s <= 0:
                continue
            pp, tp, dp = map(int, degrees)
            each, scores = int(nodes[0]), frozenset(("time", "plan"))
            plan = Plan(tp, pp, dp, 8 // dp, 8, "full", zero_stage=1)
            if plan.gpus == each * len(nodes):
                rows.append(
                    MeasuredRun(
                        row_id=str(i),
                        file="llama7",
                        line=i + 2,
                        cluster="rubick",
                        group=f"{plan.gpus} by {each}",
                        gpu_type="a800",
                        gpus_per_node=each,
                        model=_LLAMA,
                        plan=plan,
                        time_s=step_s,
                        memory_bytes=None,
                        scores=scores,
                        fused=True,
                    )
                )
    return rows


def errors(predictor: Predictor, rows: Sequence[MeasuredRun], kind: Kind) -> Numbers:
    """Score `predictor` on `rows` it has not seen."""
    step_s, peak = predictor.step_s(rows), predictor.peak_bytes(rows)
    if kind == "time":
        predicted, sigma = step_s, predictor.uncertainty(rows)
        measured = np.array([row.time_s for row in rows], dtype=np.float64)
    else:
        predicted, sigma = peak, predictor.peak_uncertainty(rows)
        measured = np.array([row.memory_bytes for row in rows], dtype=np.float64)
    off = np.abs(np.log(measured / predicted))
    regret = score(rows, step_s, peak).regret_mean if kind == "time" else None
    return {
        "err": float(np.median(np.abs(predicted / measured - 1))),
        "bias": float(np.median(predicted / measured - 1)),
        "regret": float("nan") if regret is None else regret,
        "1s": float(np.mean(off <= sigma)),
        "2s": float(np.mean(off <= 2 * sigma)),
        "sigma": float(np.median(sigma)),
    }


def unseen(
    name: str, some: Sequence[MeasuredRun], fit_without: Callable[[str], Predictor], kind: Kind, taught: int
) -> Numbers:
    """Score one part after `taught` of its rows. Raises ValueError where the part is too small for that."""
    if len(some) < taught + 2:
        raise ValueError(f"{name} has {len(some)} rows")
    cold = fit_without(some[0].cluster)
    results = []
    for draw in range(DRAWS if taught else 1):
        order = random.Random(f"{name} {draw}").sample(range(len(some)), len(some))
        learn, rest = [some[i] for i in order[:taught]], [some[i] for i in order[taught:]]
        results.append(errors(cold.with_rows(learn) if learn else cold, rest, kind))
    with np.errstate(invalid="ignore"):
        return {key: _mean([r[key] for r in results]) for key in results[0]}


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if v == v]
    return float(np.mean(known)) if known else float("nan")


def free_parameters() -> str:
    """Return how many parameters a fit has, and how many a cluster of its own has."""
    of = {name: sum(p.own > 0 for p in some) for name, some in (("time", TIME), ("memory", MEMORY))}
    return f"shared {len(TIME)} + {len(MEMORY)}, a cluster's own {of['time']} + {of['memory']}, {len(levels('', ''))} levels"


@click.command()
@click.option(
    "--data", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of the CSV files."
)
@click.option(
    "--rubick", "artifact", type=click.Path(path_type=Path, file_okay=False), help="Folder of Rubick's artifact."
)
@click.option("--only", default="", metavar="WORD", help="Only parts whose name contains this.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(data: Path, artifact: Path | None, only: str, as_json: bool) -> None:
    """Score the performance and memory model on each cluster as one that it has never seen."""
    try:
        rows = read_files(sorted(data.glob("*.csv")), [])
    except UsageError as error:
        click.echo(f"unseen_clusters: {error}", err=True)
        sys.exit(2)
    scored = [*rows, *(rubick(artifact) if artifact else [])]
    start = time.perf_counter()
    fits: dict[str, Predictor] = {}

    def fit_without(cluster: str) -> Predictor:
        if cluster not in fits:
            fits[cluster] = fit_predictor([row for row in rows if row.cluster != cluster])
        return fits[cluster]

    found: dict[str, dict[str, Numbers]] = {}
    kinds: tuple[Kind, ...] = ("time", "mem")
    for kind in kinds:
        for taught in TAUGHT:
            of_part: dict[str, Numbers] = {}
            for name, some in parts(scored, kind).items():
                if only in name and len(some) >= taught + 2:
                    of_part[name] = unseen(name, some, fit_without, kind, taught)
            if of_part:
                keys = next(iter(of_part.values()))
                of_part["all parts alike"] = {k: _mean([n[k] for n in of_part.values()]) for k in keys}
            found[f"{kind}, after {taught}"] = of_part
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for title, of_part in found.items():
        click.echo(f"{title:34}" + "".join(f"{key:>8}" for key in ("err", "bias", "regret", "1s", "2s", "sigma")))
        for name, numbers in of_part.items():
            click.echo(f"  {name:32}" + "".join(f"{100 * v:8.1f}" if v == v else "       -" for v in numbers.values()))
    click.echo(f"parameters: {free_parameters()}; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
