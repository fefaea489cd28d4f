"""Scores of predictions against measured rows: errors of step time and memory, choice of plan, out-of-memory calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synergyd.jobmodel.fit.measured_runs import NO_SHOTS, MeasuredRun, Shots, shots
from synergyd.jobmodel.fit.predictor import Predictor
from synergyd.jobmodel.model.arrays import Floats
from synergyd.jobmodel.model.hardware import GIB, figures

_LEAST_RANKED = 3  # rows in a group from which on its order is scored
_SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class Score:
    """The errors of predictions, as fractions, not percent; None where no row measures them.

    `mape`, `median`, `p90` are of |predicted / measured - 1| of the step time, `bias` is the mean of predicted / measured - 1.
    In each of `groups` groups of competing plans (at least two rows), regret is the measured time of the plan predicted fastest
    over that of the truly fastest, minus 1. `top1` is how often they are the same; `spearman` is the mean over groups of at
    least three. `fit_called_oom` of the `fit_rows` plans that ran were predicted not to fit; `oom_called_fit` of the `oom_rows`
    plans that did not run were predicted to fit.
    """

    rows: int
    mape: float | None
    median: float | None
    p90: float | None
    bias: float | None
    regret_mean: float | None
    regret_p90: float | None
    top1: float | None
    spearman: float | None
    groups: int
    memory_mape: float | None
    memory_rows: int
    fit_rows: int
    fit_called_oom: int
    oom_rows: int
    oom_called_fit: int


def score(rows: Sequence[MeasuredRun], step_s: Floats, peak_bytes: Floats) -> Score:
    """Return the score of predictions for `rows`: (rows,) seconds and bytes."""
    timed = [i for i, row in enumerate(rows) if row.time_s is not None and "time" in row.scores]
    signed = np.array([step_s[i] / _number(rows[i].time_s) - 1 for i in timed])
    error = np.abs(signed)
    regrets, ranks, hits = _choice(rows, step_s)
    weighed = [i for i, row in enumerate(rows) if row.memory_bytes is not None and "mem" in row.scores]
    memory = np.array([abs(peak_bytes[i] / _number(rows[i].memory_bytes) - 1) for i in weighed])
    limits = np.array([figures(row.gpu_type).usable_bytes for row in rows])
    sizes = np.array([figures(row.gpu_type).memory_gib * GIB for row in rows])
    # a peak above the GPU's memory was counted by its source, and can't have run
    failed = np.array(
        [row.out_of_memory or (row.memory_bytes or 0.0) > size for row, size in zip(rows, sizes, strict=True)]
    )
    too_big = peak_bytes > limits
    return Score(
        rows=len(timed),
        mape=_mean(error),
        median=None if not len(error) else float(np.median(error)),
        p90=None if not len(error) else float(np.percentile(error, 90)),
        bias=_mean(signed),
        regret_mean=_mean(regrets),
        regret_p90=None if not len(regrets) else float(np.percentile(regrets, 90)),
        top1=_mean(hits),
        spearman=_mean(ranks),
        groups=len(regrets),
        memory_mape=_mean(memory),
        memory_rows=len(weighed),
        fit_rows=int(np.count_nonzero(~failed)),
        fit_called_oom=int(np.count_nonzero(~failed & too_big)),
        oom_rows=int(np.count_nonzero(failed)),
        oom_called_fit=int(np.count_nonzero(failed & ~too_big)),
    )


def score_files(rows: Sequence[MeasuredRun], predictor: Predictor, shot_counts: Shots = NO_SHOTS) -> dict[str, Score]:
    """Return the score by file, and of `all` together, after the shots `shot_counts` have refined `predictor`.

    The shots themselves are not scored.
    """
    learn, rest = shots(rows, shot_counts)
    if learn:
        predictor = predictor.with_rows(learn)
    step_s, peak_bytes = predictor.step_s(rest), predictor.peak_bytes(rest)
    result: dict[str, Score] = {}
    for file in dict.fromkeys(row.file for row in rows):
        index = np.array([i for i, row in enumerate(rest) if row.file == file], dtype=np.int64)
        result[file] = score([rest[i] for i in index], step_s[index], peak_bytes[index])
    result["all"] = score(rest, step_s, peak_bytes)
    return result


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Floats) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _choice(rows: Sequence[MeasuredRun], step_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Return (regrets, Spearman's rank correlations, hits) of the groups."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(rows):
        if row.time_s is not None and "plan" in row.scores and row.group:
            groups.setdefault((row.file, row.group), []).append(i)
    regrets: list[float] = []
    ranks: list[float] = []
    hits: list[float] = []
    for index in groups.values():
        if len(index) < 2:
            continue
        measured = np.array([_number(rows[i].time_s) for i in index])
        predicted = step_s[index]
        regret = float(measured[np.argmin(predicted)] / measured.min() - 1)
        regrets.append(regret)
        hits.append(float(regret <= _SAME))
        if len(index) >= _LEAST_RANKED and (rank := spearman(measured, predicted)) is not None:
            ranks.append(rank)
    return np.array(regrets), np.array(ranks), np.array(hits)


def spearman(a: Floats, b: Floats) -> float | None:
    """Return the rank correlation with mean ranks for equals, or None where all values of one side are equal."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / norm if norm > 0 else None


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=np.float64)
