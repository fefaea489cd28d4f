"""Ground truth from the Pollux artifact's measurements of one application.

The measurements are step times by placement, and gradient statistics by batch size along the training.

These points had to be matched to come to the reference simulator's numbers:
  - a placement is looked up as its lexicographically smallest rotation, and interpolated linearly over the local batch;
  - one that was not measured: piecewise linear on the Delaunay triangulation of (nodes, replicas, local batch), made of
    the placements' means over equal coordinates followed by the scalability table; nodes capped at 16;
  - the local batch is ceil(batch / replicas), in ceil(local / largest) passes; one replica at more than the smallest
    batch takes at least two (its gradient statistics need two samples), so the batch trained is a little above the one
    asked for;
  - a pass without its update costs step_time - sync_time;
  - gradient statistics are interpolated linearly between the validated batches, one value an epoch of the table;
  - progress counts steps of the smallest batch; the epoch e+1 is over at the smallest of the tables' progress there.
Where a job is put outside of what was measured (the reference stops there): a smaller local batch takes as long as the
smallest measured one, and beyond the convex hull the nearest measured point counts, scaled to the local batch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from synergy_core.errors import UsageError
from synergy_core.records import Plan, Shape

from synergy_sim.placement_truth import MOST_NODES
from synergy_sim.records import Floats, PlacedGpus, TrainingSpeed
from synergy_sim.tables import read_table

_EPS = 1e-8
_MAX_NODES = 16
_BATCHES = 24  # looked at by oracles


@dataclass(frozen=True)
class Validation:
    """One batch size's training, per epoch: progress in steps of the smallest batch, and the gradient's statistics."""

    progress: tuple[float, ...]
    sqr: tuple[float, ...]
    var: tuple[float, ...]


@dataclass
class PolluxTruth:
    """A `Truth` of data-parallel jobs. `points`: placement -> (local batches, (N, 2) step and sync seconds)."""

    name: str
    gpu_type: str
    points: Mapping[tuple[int, ...], tuple[Floats, Floats]]
    multi_node_rows: tuple[Floats, Floats]  # (N, 3) nodes, replicas, local batch; (N, 2) step and sync seconds
    validation: Mapping[int, Validation]
    stages: int
    smallest_local: int
    largest_local: int
    _times: dict[tuple[tuple[int, ...], int], tuple[float, float]] = field(default_factory=dict, repr=False)
    _paces: dict[tuple[int, tuple[int, ...], Plan], TrainingSpeed | None] = field(default_factory=dict, repr=False)
    _gain: dict[int, Floats] = field(default_factory=dict, repr=False)
    _plans: dict[Shape, tuple[Plan, ...]] = field(default_factory=dict, repr=False)

    @property
    def low(self) -> int:
        return min(self.validation)

    @property
    def high(self) -> int:
        return max(self.validation)

    @property
    def unit(self) -> float:
        return float(self.low)

    def end(self, stage: int) -> float:
        return self._ends[stage]

    @cached_property
    def _ends(self) -> tuple[float, ...]:
        return tuple(min(v.progress[stage] for v in self.validation.values()) for stage in range(self.stages))

    def split_batch(self, batch: int, replicas: int, passes: int = 1) -> Plan:
        """Return the plan that trains `batch` sequences on `replicas` GPUs in at least `passes` passes."""
        local = math.ceil(batch / replicas - _EPS)
        passes = max(passes, math.ceil(local / self.largest_local - _EPS))
        if replicas == 1 and batch > self.low:
            passes = max(2, passes)
        micro = min(math.ceil(local / passes - _EPS), self.high // (replicas * passes))
        micro = max(1, micro)
        return Plan(dp=replicas, micro_batch=micro, global_batch=micro * passes * replicas, zero_stage=0)

    def executed_plan(self, plan: Plan) -> Plan:
        return self.split_batch(plan.global_batch, plan.dp, plan.micro_batches)

    def pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        if placement.gpu_type != self.gpu_type:
            return None
        key = stage, placement.per_node, plan
        if key not in self._paces:
            self._paces[key] = self._pace(stage, placement, plan)
        return self._paces[key]

    def _pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        if plan.gpus != placement.gpus or plan.dp != plan.gpus:
            return None
        step, sync = self.times(placement.per_node, plan.micro_batch)
        gain, noise_scale = self._one_gain(stage, plan.global_batch)
        step_s = step + (step - sync) * (plan.micro_batches - 1)
        sync = min(sync, step_s)
        return TrainingSpeed(gain / step_s, step_s, noise_scale, sync if len(placement.per_node) > 1 else 0.0, sync)

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        if batch is not None:
            return (self.split_batch(batch, shape.gpus),)
        if shape not in self._plans:
            low = max(self.low, min(self.high, self.smallest_local * shape.gpus))
            batches = np.unique(np.geomspace(low, self.high, _BATCHES).round().astype(int))
            self._plans[shape] = tuple(dict.fromkeys(self.split_batch(int(b), shape.gpus) for b in batches))
        return self._plans[shape]

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        if shape.gpu_type != self.gpu_type:
            return None
        best = np.zeros(self.stages)
        for plan in self.plans(shape, batch):
            step, sync = self.times((shape.gpus_per_node,) * shape.nodes, plan.micro_batch)
            step_s = step + (step - sync) * (plan.micro_batches - 1)
            best = np.maximum(best, self._gains(plan.global_batch) / step_s)
        return best

    def _gains(self, batch: int) -> Floats:
        """Return (stages,) the progress of one step, in steps of the smallest batch."""
        if batch not in self._gain:
            self._gain[batch] = np.array([self._one_gain(stage, batch)[0] for stage in range(self.stages)])
        return self._gain[batch]

    def _one_gain(self, stage: int, batch: int) -> tuple[float, float | None]:
        """Return (progress of one step, noise scale). A gradient that was measured as pure noise has no finite scale."""
        sqr, var = self.gradient(stage, min(max(batch, self.low), self.high))
        below = var / (batch / self.low) + sqr
        return (var + sqr) / below if below > 0 else 1.0, self.low * var / sqr if sqr > 0 else None

    def gradient(self, stage: int, batch: int) -> tuple[float, float]:
        """Return (|G|^2, tr Sigma) at a batch in [low, high] during a stage."""
        low = max(b for b in self.validation if b <= batch)
        high = min(b for b in self.validation if b >= batch)
        a, b = self.validation[low], self.validation[high]
        if low == high:
            return a.sqr[stage], a.var[stage]

        def interpolate(at_low: float, at_high: float) -> float:
            return ((batch - low) * at_high + (high - batch) * at_low) / (high - low)

        return interpolate(a.sqr[stage], b.sqr[stage]), interpolate(a.var[stage], b.var[stage])

    def origin(self, placement: PlacedGpus) -> str:
        """Return the origin of the step times on `placement`: "measured" or "interpolated".

        Times of a measured placement are interpolated over the local batch at the most.
        """
        turns = (placement.per_node[i:] + placement.per_node[:i] for i in range(len(placement.per_node)))
        return "measured" if min(turns) in self.points else "interpolated"

    def times(self, per_node: tuple[int, ...], local: int) -> tuple[float, float]:
        """Return (step, sync) seconds of one pass of `local` sequences a GPU."""
        key = min(per_node[i:] + per_node[:i] for i in range(len(per_node))), local
        if key not in self._times:
            self._times[key] = self._find_times(*key)
        return self._times[key]

    def _find_times(self, placement: tuple[int, ...], local: int) -> tuple[float, float]:
        local = max(local, self.smallest_local)
        if placement in self.points:
            batches, times = self.points[placement]
            if local <= batches[-1]:
                return _interpolate_times(batches, times, local)
            step_and_sync, at = times[-1], float(batches[-1])
        else:
            at_point = np.array([min(len(placement), _MAX_NODES), sum(placement), local], dtype=np.float64)
            inside = self._linear(at_point)[0]
            if not np.isnan(inside).any():
                return float(inside[0]), float(inside[1])
            nearest = int(self._nearest(at_point)[0])
            step_and_sync, at = self.multi_node_rows[1][nearest], float(self.multi_node_rows[0][nearest][2])
        step, sync = float(step_and_sync[0]), float(step_and_sync[1])
        return sync + (step - sync) * local / at, sync

    @cached_property
    def _linear(self) -> Any:
        return LinearNDInterpolator(*self.multi_node_rows)

    @cached_property
    def _nearest(self) -> Any:
        coordinates = self.multi_node_rows[0]
        # per coordinate in its own spread, else the local batch alone would say what is near
        return NearestNDInterpolator(coordinates, np.arange(len(coordinates)), rescale=True)


def _interpolate_times(batches: Floats, times: Floats, local: int) -> tuple[float, float]:
    above = int(np.clip(np.searchsorted(batches, local), 1, len(batches) - 1)) if len(batches) > 1 else 0
    if above == 0:
        return float(times[0][0]), float(times[0][1])
    below = above - 1
    slope = (times[above] - times[below]) / (batches[above] - batches[below])
    step_and_sync = slope * (local - batches[below]) + times[below]
    return float(step_and_sync[0]), float(step_and_sync[1])


# The reference's registry of applications, beyond the tables: epochs that a job trains, largest local batch.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LARGEST_LOCAL = {"yolov3": 8}


def read_application(folder: Path, gpu_type: str, cluster: str = "") -> PolluxTruth:
    """Read the application whose tables lie in `folder`.

    The names of the tables of times end with `-cluster`, where one is given. Raises UsageError naming file, line and column.
    """
    name, suffix = folder.name, f"-{cluster}" if cluster else ""
    grouped: dict[tuple[int, ...], list[tuple[int, float, float]]] = defaultdict(list)
    for row in read_table(folder / f"placements{suffix}.csv", ("placement", "local_bsz", "step_time", "sync_time")):
        text = row.text("placement")
        if not text.isascii() or not text.isdecimal() or "0" in text or len(text) > MOST_NODES:
            raise row.wrong("placement", f"{text!r} is not GPUs a node as digits", "such as 2211")
        times = row.whole_number("local_bsz", 1), row.number("step_time", 1e-9), row.number("sync_time", 0)
        grouped[tuple(int(c) for c in text)].append(times)
    if not grouped:
        raise UsageError(str(folder / f"placements{suffix}.csv"), "has no rows")
    points = {}
    for placement, rows in grouped.items():
        rows = sorted(rows)
        points[placement] = (np.array([float(r[0]) for r in rows]), np.array([r[1:] for r in rows]))
    means: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for placement, rows in grouped.items():
        for local, step, sync in rows:
            means[len(placement), sum(placement), local].append((step, sync))
    coordinates = [tuple(map(float, key)) for key in sorted(means)]
    values = [tuple(np.mean(np.array(means[key]), axis=0)) for key in sorted(means)]
    for row in read_table(
        folder / f"scalability{suffix}.csv", ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    ):
        coordinates.append((row.number("num_nodes", 1), row.number("num_replicas", 1), row.number("local_bsz", 1)))
        values.append((row.number("step_time", 1e-9), row.number("sync_time", 0)))
    validation = _validation(folder)
    epochs = min(len(v.progress) for v in validation.values())
    locals_ = [int(b) for batches, _ in points.values() for b in batches]
    return PolluxTruth(
        name,
        gpu_type,
        points,
        (np.array(coordinates), np.array(values)),
        validation,
        min(EPOCHS.get(name, epochs), epochs),
        min(locals_),
        min(LARGEST_LOCAL.get(name, max(locals_)), max(locals_)),
    )


def _validation(folder: Path) -> dict[int, Validation]:
    validations = {}
    for path in sorted(folder.glob("validation-*.csv")):
        text = path.stem.partition("-")[2]
        if not text.isascii() or not text.isdecimal() or int(text) < 1:
            raise UsageError(str(path), "its name has no batch size", "validation-<batch size>.csv")
        rows = read_table(path, ("progress", "grad_sqr", "grad_var"))
        if not rows:
            raise UsageError(str(path), "has no rows")
        progress = tuple(row.number("progress", 0) for row in rows)
        for row, before, now in zip(rows, (0.0, *progress), progress, strict=False):
            if now <= before:
                raise row.wrong("progress", f"{now:g} is not above {before:g}", "each row is a later stage")
        sqr = tuple(row.number("grad_sqr", 0) for row in rows)
        validations[int(text)] = Validation(progress, sqr, tuple(row.number("grad_var", 0) for row in rows))
    if not validations:
        raise UsageError(str(folder), "has no validation-<batch size>.csv")
    return dict(sorted(validations.items()))
