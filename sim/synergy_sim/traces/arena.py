"""Traces of the Crius (Arena, EuroSys 2026) artifact, with its tables of iteration times as ground truth.

A trace has the columns job_id, submission_time, num_iteration, model_name (<family>__<parameters>), deadline, batch_size,
num_gpu, gpu_type. In the folder of the tables lie alpa_optimal_iter_time.csv (measured optima; -1: did not fit),
estimated_3d_plans.csv (the artifact's estimates of every plan), and, where they are there, prof_database_h100_l20.json (measured
optima, with memory) and sim_cluster_spec.json.

Assumptions:
  - the cluster of sim_cluster_spec.json, with the artifact's GPUs a node: a100 4, v100 16, a40 2, a10 2 (1,280 GPUs);
  - a job is over after num_iteration / 5 iterations, as in the artifact's simulation; deadlines are not used; rows come in any
    order, as in the artifact's own file, and time zero is the first submission;
  - on the GPUs it gets, a job runs the best plan (the artifact evaluates every scheduler by the optima of a search), on at
    most 16 GPUs, as there;
  - the time of a (model, batch) on k GPUs of a type in the fewest nodes: as measured; else the least of the estimates; else, by
    the same two, of another type whose memory is no larger (so that it is known to fit), times the median over all models
    known on both types at k GPUs of the ratio of their times. On h100 and l20 the memory used is known, and has to be at most
    0.9 of the target's. Types: a10 24 GB, v100 32, a100 40, a40 48. Of 39 times lent so, against the optima of the artifact's
    own database: at the median 8 % too short, nine in ten within 26 %, the worst (10 B parameters on 16 a40) 48 % too short;
  - the time on more nodes than need be: as measured or estimated; else that of the fastest known placement that fits into it
    (sim/placement_truth.py). What is known nowhere does not fit: a job that is started there runs out of memory;
  - a job runs on 1, 2, 4, 8 or 16 GPUs in the fewest nodes, as in the artifact. Where it fits is not told to the scheduler: bert and moe
    go by the memory model, with the artifact's own figures of them (runtime/crius_worker/jax/configs.py; an expert's width is not
    there, and is the one with which the parameters come out as named), wide_resnet by nothing before it has run, and each is known to
    fit at the size asked for. Crius's own code looks it up in these tables (memory_fit.with_known_fit tells it to others);
  - a job that asks for fewer GPUs of its type than it is known to fit on asks for the fewest that it does fit on; if it fits on
    that type at no size, for that many of another;
  - a start costs 40 s on the GPUs, the artifact's largest search overhead with pruning (it charges 10 s a GPU up to
    that, and its peers 150 s a GPU up to 600); a resize besides 8 s of checkpoint and 2 s of requeue (0 in the artifact).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from synergy_core.errors import UsageError
from synergy_core.ordinary_file import read_bytes
from synergy_core.records import ModelSpec, Shape

from synergy_sim.memory_fit import MemoryFit
from synergy_sim.placement_truth import BATCH, Placement, PlacementTruth, Times
from synergy_sim.records import Costs, TraceJob
from synergy_sim.tables import JSON_LIMIT_BYTES, TableRow, read_table

COLUMNS = ("job_id", "submission_time", "num_iteration", "model_name", "batch_size", "num_gpu", "gpu_type")
COSTS = Costs(first_start_s=40.0, checkpoint_s=8.0, requeue_s=2.0, start_s=40.0)
GPUS_A_NODE = {"a100": 4, "v100": 16, "a40": 2, "a10": 2, "h100": 8, "l20": 8}
MEMORY_GB = {"a10": 24.0, "v100": 32.0, "a100": 40.0, "a40": 48.0}
ITERATIONS_SCALE = 5  # the artifact's ITER_NUM_SCALE_FACTOR_SIM
MOST_GPUS = 16
_MOST_NODES = 100_000
_SIZES = (1, 2, 4, 8, 16)
_USABLE = 0.9
_BERT = {
    "760M": (24, 1536, 16),
    "1.3B": (24, 2048, 32),
    "2.6B": (32, 2560, 32),
    "6.7B": (32, 4096, 32),
    "15B": (48, 5120, 40),
}
# layers, hidden, heads, experts; every second layer has experts, two a token (Alpa's GShard MoE), each 8 x hidden wide
_MOE = {"690M": (8, 768, 16, 16), "1.3B": (16, 768, 16, 16), "2.4B": (16, 1024, 16, 16), "10B": (16, 1536, 16, 32),
        "27B": (16, 2048, 16, 48)}  # fmt: skip
_FIGURES = {"a100": "a100-40"}  # the artifact's device_infos.json: HGX A100 40GB
_NEVER_S = 1e6  # estimates of a billion seconds stand for what does not fit


class Model(NamedTuple):
    """The model that a row of the tables is about."""

    family: str
    parameters: str
    batch: int


MeasuredTimes = dict[Model, dict[str, dict[Placement, float]]]  # -> GPU type -> placement -> seconds


class LentTime(NamedTuple):
    """A time on another type, and the memory that it is known to need at most, GB a GPU."""

    seconds: float
    memory_gb: float


def read(path: Path, profiles: Path | None) -> tuple[TraceJob, ...]:
    """Read the jobs of a trace in order of submission.

    `profiles` is the folder of the tables (default: the one above the trace's own). Raises UsageError.
    """
    folder = profiles or path.parent.parent
    rows = read_table(path, COLUMNS)
    times: dict[Model, Times] = {}
    measured_times = read_tables(folder)
    optima = read_optima(folder)
    filled = with_lent_times(measured_times, read_others(folder / "prof_database_h100_l20.json"))
    first_s = min((row.number("submission_time", 0) for row in rows), default=0.0)
    jobs = []
    for row in sorted(rows, key=lambda row: row.number("submission_time", 0)):
        model = _model(row)
        if not filled.get(model):
            have = sorted({f"{m.family}__{m.parameters} at {m.batch}" for m in filled})
            raise row.wrong("model_name", f"no time is known of {model}", f"the tables have {', '.join(have)}")
        if model not in times:
            times[model] = Times(filled[model], _time_origins(model, filled[model], measured_times, optima))
        gpu_type, gpus = _requested_size(row, times[model])
        expected = MemoryFit(find_spec(model), model.batch, _runs_on, (gpu_type, gpus), "fp16", _FIGURES)
        jobs.append(
            TraceJob(
                row.text("job_id"),
                f"{model.family}-{model.parameters}",
                row.number("submission_time", 0) - first_s,
                gpus,
                BATCH,
                PlacementTruth(times[model], max(1.0, row.number("num_iteration", 1) // ITERATIONS_SCALE)),
                row.where,
                gpu_type,
                batch_fixed=True,
                max_gpus=MOST_GPUS,
                max_micro_batch=BATCH,
                can_run=times[model].is_measured,
                expected_fit=expected,
            )
        )
    if not jobs:
        raise UsageError(str(path), "has no jobs")
    return tuple(jobs)


def find_spec(model: Model) -> ModelSpec | None:
    """Return the artifact's bert or moe as the memory model sees it, or None where it is no transformer or not known."""
    if model.family == "bert" and model.parameters in _BERT:
        layers, hidden, heads = _BERT[model.parameters]
        return ModelSpec(
            f"bert-{model.parameters}", layers, hidden, heads, heads, 4 * hidden, vocab=51200, seq=1024, causal=False
        )
    if model.family == "moe" and model.parameters in _MOE:
        layers, hidden, heads, experts = _MOE[model.parameters]
        return ModelSpec(
            f"moe-{model.parameters}", layers, hidden, heads, heads, 8 * hidden, vocab=32000, seq=1024,
            experts=experts, top_k=2, moe_every=2,
        )  # fmt: skip
    return None


def _runs_on(shape: Shape) -> bool:
    return shape.gpus in _SIZES and (shape.gpus_per_node,) * shape.nodes == tightest_placement(
        shape.gpu_type, shape.gpus
    )


def _model(row: TableRow) -> Model:
    family, underscores, parameters = row.text("model_name").partition("__")
    if not family or not underscores or not parameters:
        raise row.wrong("model_name", f"{row.text('model_name')!r} is no model", "<family>__<parameters>: bert__1.3B")
    return Model(family, parameters, row.whole_number("batch_size", 1))


def _requested_size(row: TableRow, times: Times) -> tuple[str, int]:
    """Return (GPU type, GPUs) that a job asks for: as it says, or the fewest more that are known to hold it."""
    gpu_type, gpus = row.text("gpu_type"), row.whole_number("num_gpu", 1, 100_000)
    if gpu_type not in MEMORY_GB:
        raise row.wrong("gpu_type", f"{gpu_type!r} is not in the cluster", f"one of {', '.join(MEMORY_GB)}")
    if gpus not in _SIZES:
        raise row.wrong("num_gpu", f"{gpus} GPUs were not measured", f"one of {', '.join(map(str, _SIZES))}")
    here = times.smallest(gpu_type)
    if here:
        return gpu_type, max(gpus, here)
    other = min(sorted(times.by_type), key=times.smallest)
    return other, max(gpus, times.smallest(other))


def read_cluster(folder: Path) -> dict[str, tuple[int, int]]:
    """Read sim_cluster_spec.json: GPU type -> (nodes, GPUs a node). Raises UsageError."""
    path = folder / "sim_cluster_spec.json"
    try:
        (spec,) = json.loads(read_bytes(path, JSON_LIMIT_BYTES))
        groups = {str(name): (int(entry["node_num"]), GPUS_A_NODE[name]) for name, entry in spec.items()}
    except OSError as error:
        raise UsageError(str(path), f"can't be read: {error.strerror}", "give --types TYPE=NODESxGPUS,...") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        what = f"is no cluster ({type(error).__name__}: {error})"
        raise UsageError(str(path), what, 'such as [{"a100": {"node_num": 80}}]') from None
    if not groups or not all(1 <= nodes <= _MOST_NODES for nodes, _ in groups.values()):
        raise UsageError(str(path), "has no nodes, or too many", f"node_num of each type from 1 to {_MOST_NODES}")
    return groups


def read_optima(folder: Path) -> set[tuple[Model, str, Placement]]:
    """Read the keys for which a time was measured, or which were found not to fit."""
    columns = ("model", "params", "global_batch", "gpu_type", "num_nodes", "gpus_per_node")
    return {_key(row) for row in read_table(folder / "alpa_optimal_iter_time.csv", columns)}


def _time_origins(
    model: Model,
    filled: dict[str, dict[Placement, float]],
    measured_times: MeasuredTimes,
    optima: set[tuple[Model, str, Placement]],
) -> dict[str, dict[Placement, str]]:
    """Return the origin of the times that were not measured: estimated by the artifact, or lent from another type."""
    here = measured_times.get(model, {})
    return {
        gpu_type: {
            place: "estimated" if place in here.get(gpu_type, {}) else "lent"
            for place in times
            if place not in here.get(gpu_type, {}) or (model, gpu_type, place) not in optima
        }
        for gpu_type, times in filled.items()
    }


def read_tables(folder: Path) -> MeasuredTimes:
    """Read the measured optima, and the least estimate where nothing was measured. Raises UsageError."""
    where = ("model", "params", "global_batch", "gpu_type", "num_nodes", "gpus_per_node", "iter_time_s")
    best_times: MeasuredTimes = defaultdict(lambda: defaultdict(dict))
    measured: set[tuple[Model, str, Placement]] = set()
    for row in read_table(folder / "alpa_optimal_iter_time.csv", where):
        key = _key(row)
        measured.add(key)
        seconds = row.number("iter_time_s", -1)
        if 0 < seconds < _NEVER_S:
            best_times[key[0]][key[1]][key[2]] = seconds
    for row in read_table(folder / "estimated_3d_plans.csv", where):
        key = _key(row)
        seconds = math.inf if row.text("iter_time_s") == "inf" else row.number("iter_time_s")
        # a placement measured not to fit does not fit, whatever was estimated; some estimates are below zero
        if key not in measured and 0.001 < seconds < _NEVER_S:
            times = best_times[key[0]][key[1]]
            times[key[2]] = min(seconds, times.get(key[2], seconds))
    return {model: {gpu_type: dict(t) for gpu_type, t in types.items()} for model, types in best_times.items()}


def _key(row: TableRow) -> tuple[Model, str, Placement]:
    model = Model(row.text("model"), row.text("params"), row.whole_number("global_batch", 1))
    nodes = row.whole_number("num_nodes", 1, 1000)
    return model, row.text("gpu_type"), (row.whole_number("gpus_per_node", 1, 1000),) * nodes


def read_others(path: Path) -> dict[Model, dict[tuple[str, int], LentTime]]:
    """Read prof_database_h100_l20.json: model -> (GPU type, GPUs) -> time and memory, in the fewest nodes.

    Return an empty dict where the file is not there. Raises UsageError.
    """
    if not path.exists():
        return {}
    lent_times: dict[Model, dict[tuple[str, int], LentTime]] = {}
    try:
        for name, entries in json.loads(read_bytes(path, JSON_LIMIT_BYTES))["optimal"].items():
            family, parameters, batch = name.rsplit("_", 2)
            for place, values in entries.items():
                _, gpu_type, nodes, _, each, _ = place.split("_")
                seconds, memory_gb = float(values[2]), float(values[5])
                if 0 < seconds < _NEVER_S and memory_gb > 0:
                    key = gpu_type, int(nodes) * int(each)
                    lent_times.setdefault(Model(family, parameters, int(batch)), {})[key] = LentTime(seconds, memory_gb)
    except OSError as error:
        raise UsageError(str(path), f"can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(str(path), f"is no profile database ({type(error).__name__}: {error})") from None
    return lent_times


def tightest_placement(gpu_type: str, gpus: int) -> Placement:
    """Return `gpus` GPUs on the fewest nodes of the artifact's clusters."""
    each = min(gpus, GPUS_A_NODE[gpu_type])
    return (each,) * (gpus // each)


def with_lent_times(
    measured_times: MeasuredTimes, others: dict[Model, dict[tuple[str, int], LentTime]]
) -> MeasuredTimes:
    """Return `measured_times` with times lent from other types where a type lacks a size, see the top of this file."""
    lent: dict[Model, dict[tuple[str, int], LentTime]] = {model: dict(entries) for model, entries in others.items()}
    for model, types in measured_times.items():
        for gpu_type, times in types.items():
            for gpus in _SIZES:
                seconds = times.get(tightest_placement(gpu_type, gpus)) if gpu_type in GPUS_A_NODE else None
                if seconds is not None and gpu_type in MEMORY_GB:
                    # a job that fitted there fits wherever there is as much memory
                    lent.setdefault(model, {})[gpu_type, gpus] = LentTime(seconds, _USABLE * MEMORY_GB[gpu_type])
    ratios = _time_ratios(lent)
    filled: MeasuredTimes = {}
    for model, entries in lent.items():
        filled[model] = {gpu_type: dict(times) for gpu_type, times in measured_times.get(model, {}).items()}
        for gpu_type, memory_gb in MEMORY_GB.items():
            mine = filled[model].setdefault(gpu_type, {})
            for gpus in _SIZES:
                place = tightest_placement(gpu_type, gpus)
                if place in mine:
                    continue
                guesses = [
                    (-len(ratio), source, median(ratio) * entry.seconds)
                    for (source, count), entry in entries.items()
                    if count == gpus and entry.memory_gb <= _USABLE * memory_gb
                    if (ratio := ratios.get((gpu_type, source, gpus), []))
                ]
                if guesses:  # the type that most is known of beside this one
                    mine[place] = min(guesses)[2]
            if not mine:
                del filled[model][gpu_type]
    return {model: types for model, types in filled.items() if types}


def _time_ratios(lent: dict[Model, dict[tuple[str, int], LentTime]]) -> dict[tuple[str, str, int], list[float]]:
    """Return (type, other type, GPUs) -> seconds on the one over seconds on the other, for each model known on both."""
    ratios: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for entries in lent.values():
        for (mine, gpus), one in entries.items():
            for (other, count), two in entries.items():
                if count == gpus and mine != other:
                    ratios[mine, other, gpus].append(one.seconds / two.seconds)
    return ratios
