"""How often plans fail that are called so likely to run out of memory: `python -m tests.benchmarks.memory_risk --data DIR`.

DIR holds the CSV files of measured rows (see perf_rows). No row was measured at its GPU's limit, so each is asked about a GPU whose
memory is such that the plan is called likely to fail with probability P; it fails if its measured peak is above that. All rows are
held out: `figures` are the built-in ones with their own sigma; `cluster` is a fit to the other clusters' rows with the fit's sigma;
`job` is the built-in figures after another row of the same model and cluster, by its ratio of measured to predicted, with
memory_belief.LEARNT_SIGMA, over all pairs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np
from scipy.special import ndtri
from synergy_core.errors import UsageError

from synergyd.jobmodel.fit.measured_runs import MeasuredRun, read_files
from synergyd.jobmodel.fit.parameters import batch, log_memory
from synergyd.jobmodel.fit.predictor import fit_predictor
from synergyd.jobmodel.memory_belief import LEARNT_SIGMA
from synergyd.jobmodel.model.arrays import Floats
from synergyd.jobmodel.model.hardware import figures

CALLED = (0.01, 0.05, 0.1, 0.2, 0.5)


def off(rows: list[MeasuredRun], log_predicted: Floats) -> Floats:
    """log(measured / predicted) peak, (rows,)."""
    return np.log(np.array([row.memory_bytes for row in rows], dtype=np.float64)) - log_predicted


def errors(rows: list[MeasuredRun]) -> dict[str, tuple[Floats, Floats]]:
    """Kind of prediction -> (log(measured / predicted), one sigma of it), (N,) each."""
    inputs = batch(rows)
    cold = off(rows, log_memory(inputs, inputs.gpu))
    found = {"figures": (cold, np.array([figures(row.gpu_type).memory_uncertainty for row in rows]))}
    parts = []
    for cluster in sorted({row.cluster for row in rows}):
        test = [row for row in rows if row.cluster == cluster]
        predictor = fit_predictor([row for row in rows if row.cluster != cluster])
        parts.append((off(test, np.log(predictor.peak_bytes(test))), predictor.peak_uncertainty(test)))
    found["cluster"] = (np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
    pairs = [
        cold[i] - cold[j] for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j and a.job[:2] == b.job[:2]
        and (a.model.layers, a.model.hidden, a.model.vocab) == (b.model.layers, b.model.hidden, b.model.vocab)
    ]  # fmt: skip
    found["job"] = (np.array(pairs), np.full(len(pairs), LEARNT_SIGMA))
    return found


@click.command()
@click.option(
    "--data", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of the CSV files."
)
def main(data: Path) -> None:
    """How often measured plans would have failed that are called so likely to."""
    try:
        rows = [row for row in read_files(sorted(data.glob("*.csv"))) if row.memory_bytes and "mem" in row.scores]
    except UsageError as error:
        click.echo(f"memory_risk: {error}", err=True)
        sys.exit(2)
    click.echo("called           " + "".join(f"{100 * p:8.0f} %" for p in CALLED))
    for kind, (missed, sigma) in errors(rows).items():
        failed = [float(np.mean(missed > -sigma * ndtri(p))) for p in CALLED]
        click.echo(f"{kind:9}{len(missed):6}  " + "".join(f"{100 * share:8.1f} %" for share in failed))


if __name__ == "__main__":
    main()
