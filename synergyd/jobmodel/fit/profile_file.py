"""The file that `synergyctl profiles fit` writes: fitted parameters and residuals as readable JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from synergy_core.errors import UsageError, format_value
from synergy_core.ordinary_file import read_bytes

from synergyd.jobmodel.fit import residual
from synergyd.jobmodel.fit.parameters import MEMORY, TIME, Effects, Parameter, family
from synergyd.jobmodel.fit.predictor import LearntCorrection, Predictor
from synergyd.jobmodel.fit.residual import PlanFeatures
from synergyd.jobmodel.model.hardware import known_types
from synergyd.jobmodel.model.throughput import NOISE

_VERSION = 2
_FILE_LIMIT = 16 << 20  # bytes
_POINTS_LIMIT = 5000  # the posterior's matrix has this many rows
_RIGHT = "give a file that `synergyctl profiles fit` wrote"


def profile_text(predictor: Predictor) -> str:
    """Return `predictor` as the text of a profile file."""
    data = {
        "version": _VERSION,
        "about": "parameters by level on the fitted scale (log or log-odds, as an offset from the GPU type's figure): "
        "[mean, sigma]; residuals: log(measured / predicted); figures: what comes out, for people, never read",
        "figures": _figures(predictor),
        "time": _correction_json(predictor.time),
        "memory": _correction_json(predictor.memory),
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _figures(predictor: Predictor) -> dict[str, dict[str, float]]:
    """Return the fitted figures of each cluster's GPU types, and of every type on a cluster never seen."""
    level_names = {level for part in (predictor.time, predictor.memory) for level in part.effects.mean}
    result: dict[str, dict[str, float]] = {}
    for level in ["", *sorted(level_names)]:
        cluster, _, chip = level.removeprefix("cluster ").rpartition(" family ")
        if level and not (level.startswith("cluster ") and cluster):
            continue
        for gpu_type in known_types():
            if level == "" or family(gpu_type) == chip:
                gpu = predictor.figures(gpu_type, cluster)
                name = f"{gpu_type} on {cluster or 'a cluster never seen'}"
                result[name] = {p.name: float(f"{getattr(gpu, p.name):.3g}") for p in (*TIME, *MEMORY)}
    return result


def _correction_json(correction: LearntCorrection) -> dict[str, Any]:
    effects, points = correction.effects, correction.residual.points
    names = [p.name for p in effects.parameters]
    return {
        "rows": effects.rows,
        "noise": effects.noise,
        "levels": {
            level: {
                name: [round(float(mean), 5), round(float(sigma), 5)]
                for name, mean, sigma in zip(names, effects.mean[level], effects.sigma[level], strict=True)
            }
            for level in effects.mean
        },
        "residuals": [
            {
                "hardware": int(points.hardware[i]),
                "job": int(points.job[i]),
                "shape": [round(float(x), 4) for x in points.shape[i]],
                "slopes": [round(float(x), 4) for x in points.slopes[i]],
                "value": round(float(correction.residual.measured[i]), 5),
            }
            for i in range(len(correction.residual.measured))
        ],
    }


def read_profile(path: Path) -> Predictor:
    """Return the predictor whose text `profile_text` gave.

    Raises UsageError: unreadable, not such a file, another version, or numbers that no fit gives.
    """
    where = str(path)
    try:
        data = json.loads(read_bytes(path, _FILE_LIMIT))
    except (OSError, ValueError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else "not JSON"
        raise UsageError(where, f"cannot be read: {what}", _RIGHT) from None
    if not isinstance(data, dict) or "version" not in data:
        raise UsageError(where, "not a profile", _RIGHT)
    if data["version"] != _VERSION:
        raise UsageError(
            where, f"version {format_value(data['version'])}", f"this Synergy reads version {_VERSION}: fit it again"
        )
    try:
        return Predictor(_read(data["time"], TIME, NOISE), _read(data["memory"], MEMORY, residual.PEAK_NOISE))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(where, f"not a profile ({type(error).__name__}: {error})", _RIGHT) from None


def _finite(value: object, limit: float = 1e6) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= limit:
        raise ValueError(f"{format_value(value)} is no number that a fit gives")
    return float(value)


def _read(data: dict[str, Any], parameters: tuple[Parameter, ...], noise: float) -> LearntCorrection:
    mean, sigma = {}, {}
    for level, values in data["levels"].items():
        # a parameter that a later version adds starts as its GPU type's figure says
        pairs = [values.get(p.name, [0.0, p.own]) for p in parameters]
        mean[level] = np.array([_finite(pair[0]) for pair in pairs])
        sigma[level] = np.array([_finite(pair[1]) for pair in pairs])
    effects = Effects(parameters, mean, sigma, _finite(data["noise"]), int(_finite(data["rows"], 1e9)))
    rows = data["residuals"]
    if len(rows) > _POINTS_LIMIT:
        raise ValueError(f"{len(rows)} residuals are more than {_POINTS_LIMIT}")
    if not rows:
        return LearntCorrection(effects, residual.empty(len(parameters)))
    points = PlanFeatures(
        _table([row["shape"] for row in rows], residual.SHAPE),
        _table([row["slopes"] for row in rows], len(parameters)),
        np.array([int(_finite(row["hardware"], 2**53)) for row in rows], dtype=np.int64),
        np.array([int(_finite(row["job"], 2**53)) for row in rows], dtype=np.int64),
    )
    measured = np.array([_finite(row["value"]) for row in rows])
    return LearntCorrection(effects, residual.learn(points, measured, noise))


def _table(rows: list[list[object]], columns: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    if any(len(row) != columns for row in rows):
        raise ValueError(f"a residual has other than {columns} columns")
    return np.array([[_finite(value) for value in row] for row in rows], dtype=np.float64)
