"""Learning from a job's reports.

The corrections of its Profile are smoothed so that one odd measurement moves them little. The model's parameters are refined by the
step times of its plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from synergy_core.accepts import Accepts
from synergy_core.exchange import WAYS
from synergy_core.job_report import Report
from synergy_core.kernels import UNKNOWN, is_changed
from synergy_core.records import Measurement, ModelSpec, Profile, Shape

from synergyd.jobmodel.fit.parameters import TIME, RowBatch, backward, forward, log_time, plausible, solve
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.dims import stack_dims
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.step_time import step_time

_CLIP = 20.0  # beyond this factor either the measurement or the prediction is broken
_MIN_WEIGHT = 0.2
# most that one report changes the noise scale, a factor
_NOISE_STEP = 4.0
_KEPT = 16  # measured plans that a profile remembers
_MOST_WEIGHT = 8  # reports of one plan that count, beside other plans
_GRID = 0.02
# jobs an epoch whose models are fitted anew and Cells made anew for what was measured: 5 ms of CPU each (benchmark decision_time)
_RENEWED = 16
# further ones, of those that have measured nothing: the prior has moved, or like jobs have learnt something
_BY_OTHERS_RENEWED = 4
_AT_ONCE, _FIRST, _FURTHER, _BY_OTHERS = range(4)
_Prior = TypeVar("_Prior")


def update_profile(
    profile: Profile,
    report: Report,
    predicted_step_s: float | None,
    predicted_memory_bytes: int | None,
    shape: Shape | None = None,
) -> Profile:
    """Return `profile` after `report`.

    The predictions are the model's own, without the profile's corrections (`JobPlanner.predict`). speed = predicted / measured
    time, memory = measured / predicted peak: each ratio is clipped to [1/20, 20] and its logarithm averaged, weight 1/(n+1) down
    to 0.2. The first measurement counts in full. After n of them the step is at most 3/n (at least 0.5) before weighting, so
    after six one odd report moves a correction by at most a tenth. Values that are missing, not finite or not positive are passed
    over. The noise scale is taken as reported, within a factor: the agent averages it over a hundred steps
    (synergy_launch.batch.noise_scale), and it may double within a minute. Model, batches, resharding, rebatching and accepts are
    taken as reported, except for the parts of accepts that a single GPU can't tell. What was measured with other kernels is
    forgotten. With the `shape` that it ran on, the plan and its step time are remembered for `refine_figures`.
    """
    if is_changed(
        profile.kernels or UNKNOWN, report.kernels or UNKNOWN
    ):  # another program now, as far as its speed goes
        profile = replace(profile, speed=1.0, samples=0, measured=())
    samples, speed = profile.samples, profile.speed
    if (ratio := _ratio(predicted_step_s, report.step_s)) is not None:
        speed = _smooth(speed, ratio, samples)
        samples += 1
    memory = profile.memory
    if (ratio := _ratio(report.peak_memory_bytes, predicted_memory_bytes)) is not None:
        # exactly 1 is what an unmeasured profile has, so that measurement is the first one of memory
        memory = _smooth(memory, ratio, 0 if memory == 1.0 else max(1, profile.samples))
    noise = profile.noise_scale
    if _positive(report.noise_scale):
        assert report.noise_scale is not None
        if noise is None or not _positive(noise):
            noise = report.noise_scale
        else:
            noise = max(noise / _NOISE_STEP, min(noise * _NOISE_STEP, report.noise_scale))
    batch = report.plan.global_batch if report.plan is not None and report.plan.global_batch > 0 else None
    return replace(
        profile,
        speed=speed,
        memory=memory,
        samples=samples,
        noise_scale=noise,
        resharding=report.resharding,
        accepts=_merge_accepts(profile.accepts, report),
        model=report.model or profile.model,
        global_batch=batch or profile.global_batch,
        measured=_add_measurement(profile.measured, report, shape, predicted_step_s),
        rebatching=report.rebatching,
        base_batch=report.base_batch or profile.base_batch,
        kernels=report.kernels or profile.kernels,
    )


def _merge_accepts(before: Accepts, report: Report) -> Accepts:
    """Return what the script has said that it accepts.

    A run on one GPU can't show which exchanges between replicas it refuses, so earlier refusals are kept then.
    """
    accepts = report.accepts
    if report.failure is not None and report.plan is None:  # it failed before it could say anything
        return before
    if report.plan is None or report.plan.gpus > 1 or not (before.exact_only or before.refuses):
        return accepts
    ways = {*accepts.refuses.split("+"), *before.refuses.split("+")}
    refuses = "+".join(way for way in WAYS if way in ways)
    return replace(accepts, exact_only=accepts.exact_only or before.exact_only, refuses=refuses)


def coarse(profile: Profile) -> Profile:
    """Return `profile` on a grid of 2 % (samples: powers of two).

    Values computed from it change only when the profile has moved by more.
    """
    noise = profile.noise_scale
    return replace(
        profile,
        speed=_round_logarithm(math.log(profile.speed)) if _positive(profile.speed) else profile.speed,
        memory=_round_memory_logarithm(math.log(profile.memory)) if _positive(profile.memory) else profile.memory,
        noise_scale=_round_logarithm(math.log(noise)) if noise is not None and _positive(noise) else noise,
        samples=_power_of_two(profile.samples),
        measured=tuple(_coarse(m) for m in profile.measured),
    )


def _coarse(m: Measurement) -> Measurement:
    step_s, samples, worth = _round_logarithm(math.log(m.step_s)), _power_of_two(m.samples), m.comm_efficiency
    if worth is not None and _positive(worth):
        worth = min(1.0, _round_logarithm(math.log(worth)))
    fresh = Measurement(m.plan, m.shape, step_s, samples, worth)
    return m if fresh == m else fresh


@dataclass
class _InUse:
    """The basis of a job's Cells. `exact`: the profile that `coarse` was made of last; `turn`: when it was taken into use."""

    exact: Profile
    coarse: Profile
    prior: object
    turn: int


class CoarseProfiles:
    """The profile, `coarse`, and the prior that each job's Cells are made of.

    In each epoch, `_RENEWED` of the jobs that have learnt something go on with it: first those that go by no measured step yet,
    then those that go by the oldest.
    """

    def __init__(self) -> None:
        self._known: dict[int, _InUse] = {}
        self._turn = 0

    def renew(self, profiles: Mapping[int, Profile], priors: Mapping[int, object]) -> None:
        """Begin an epoch with these `profiles` and `priors`, by job id."""
        self._turn += 1
        behind = []
        for job_id, profile in profiles.items():
            in_use, prior = self._known.get(job_id), priors[job_id]
            if in_use is not None and (profile is not in_use.exact or prior != in_use.prior):
                fresh = coarse(profile)
                if (fresh, prior) == (in_use.coarse, in_use.prior):
                    in_use.exact = profile
                else:
                    behind.append((_rank(fresh, in_use.coarse), in_use.turn, job_id, fresh))
        behind.sort(key=lambda entry: entry[:3])
        renewals: Counter[bool] = Counter()
        for rank, _, job_id, fresh in behind:
            like = rank == _BY_OTHERS
            if rank == _AT_ONCE or renewals[like] < (_BY_OTHERS_RENEWED if like else _RENEWED):
                self._known[job_id] = _InUse(profiles[job_id], fresh, priors[job_id], self._turn)
                renewals[like] += 1

    def coarsen(self, job_id: int, profile: Profile, prior: _Prior) -> tuple[Profile, _Prior]:
        """Return the (profile, prior) in use.

        Return those given if there are none so far, or if nobody says when an epoch begins.
        """
        in_use = self._known.get(job_id)
        if in_use is None or (not self._turn and in_use.exact is not profile):
            in_use = self._known[job_id] = _InUse(profile, coarse(profile), prior, self._turn)
        return in_use.coarse, cast("_Prior", in_use.prior)

    def forget(self, job_id: int) -> None:
        self._known.pop(job_id, None)


def _rank(fresh: Profile, before: Profile) -> int:
    """Return the priority with which a job goes on with its fresh profile.

    Jobs whose needs or limits have changed come first, then jobs that have measured their first steps, then jobs that have
    measured more. Jobs that have measured nothing and know by others alone come last.
    """
    speed_alone = replace(
        fresh, measured=before.measured, noise_scale=before.noise_scale, speed=before.speed, samples=before.samples
    )
    if speed_alone != before:
        return _AT_ONCE
    return (_FIRST if not before.measured else _FURTHER) if fresh.measured else _BY_OTHERS


def inherit_profile(profile: Profile, like: Sequence[Profile]) -> Profile:
    """Return the profile that a job without reports starts from.

    It has the corrections of `like` jobs (same model, same hardware), as one report's worth, and their measured plans. Return
    `profile` itself if it has reports, or if none of `like` has.
    """
    measured_profiles = [
        other for other in like if other.samples > 0 and _positive(other.speed) and _positive(other.memory)
    ]
    if profile.samples > 0 or not measured_profiles:
        return profile
    # the median, so that one odd job has little effect
    speed = float(np.median([math.log(other.speed) for other in measured_profiles]))
    memory = float(np.median([math.log(other.memory) for other in measured_profiles]))
    latest = {
        (m.plan, m.shape): replace(m, step_s=_round_logarithm(math.log(m.step_s)), samples=1)
        for other in measured_profiles
        for m in other.measured
    }
    measured = tuple(latest.values())[-_KEPT:]
    return replace(
        profile, speed=_round_logarithm(speed), memory=_round_memory_logarithm(memory), samples=1, measured=measured
    )


def _power_of_two(samples: int) -> int:
    """Return the largest power of two that is not above `samples`. A value that is not positive is returned unchanged."""
    return 1 << (samples.bit_length() - 1) if samples > 0 else samples


def round_to_grid(value: float) -> float:
    """Return a positive number on the grid of 2 %.

    Values that many jobs share should not change with every report of one of them.
    """
    return _round_logarithm(math.log(value))


def _round_logarithm(logarithm: float) -> float:
    return math.exp(round(logarithm / _GRID) * _GRID)


def _round_memory_logarithm(logarithm: float) -> float:
    """Return the same as `_round_logarithm`, but just above 1 in place of 1 where memory was measured.

    Exactly 1 marks a profile whose memory never was measured.
    """
    on_grid = _round_logarithm(logarithm)
    return math.nextafter(1.0, 2.0) if on_grid == 1.0 and logarithm != 0 else on_grid


def _add_measurement(
    measurements: tuple[Measurement, ...], report: Report, shape: Shape | None, predicted_step_s: float | None
) -> tuple[Measurement, ...]:
    plan, step_s = report.plan, report.step_s
    if plan is None or shape is None or step_s is None or _ratio(predicted_step_s, step_s) is None:
        return measurements
    if plan.gpus != shape.gpus or plan.micro_batches < 1:
        return measurements
    before = next((m for m in measurements if (m.plan, m.shape) == (plan, shape)), None)
    samples, worth = 1, report.comm_efficiency
    if before is not None:
        samples = before.samples + 1
        step_s = before.step_s * _smooth(1.0, step_s / before.step_s, before.samples)
        if before.comm_efficiency is not None:
            worth = _smooth_worth(before.comm_efficiency, worth, before.samples)
    others = tuple(m for m in measurements if m is not before)
    return (*others, Measurement(plan, shape, step_s, samples, worth))[-_KEPT:]


def _smooth_worth(before: float, reported: float | None, samples: int) -> float:
    """Return what an example is worth after one more report, which says `reported` of it."""
    if reported is None or not 0.0 < reported <= 1.0:
        return before
    return min(1.0, before * _smooth(1.0, reported / before, samples))


@lru_cache(maxsize=4096)
def level(model: ModelSpec, gpu: GpuFigures, measured: tuple[Measurement, ...]) -> tuple[float, int] | None:
    """Return (predicted over measured step time, reports behind it) of the plans measured on `gpu`'s own type, or None if none was.

    The prediction is the bare model's. The result is the median over plans, each with the weight of its reports (at most 8), so a
    plan whose one report is odd does not move it.
    """
    type_measurements = [m for m in measured if m.shape.gpu_type == gpu.gpu_type]
    if not type_measurements:
        return None
    predicted = step_time(
        model, gpu, from_plans([m.plan for m in type_measurements], [m.shape.gpus_per_node for m in type_measurements])
    ).total
    off = np.clip(
        np.log(predicted / np.array([m.step_s for m in type_measurements])), -math.log(_CLIP), math.log(_CLIP)
    )
    order = np.argsort(off, kind="stable")
    share = np.cumsum(np.array([min(max(m.samples, 1), _MOST_WEIGHT) for m in type_measurements])[order])
    low, high = np.searchsorted(share, [share[-1] / 2, share[-1] / 2 + 0.25])
    middle = float(off[order[low]] + off[order[high]]) / 2
    return math.exp(middle), sum(m.samples for m in type_measurements)


@lru_cache(maxsize=512)
def refine_figures(model: ModelSpec, gpu: GpuFigures, measured: tuple[Measurement, ...], speed: float) -> GpuFigures:
    """Return `gpu` with its parameters moved to meet what `model`'s plans have measured on that type, relative to each other.

    Their common level is `speed`'s (predicted over measured): one plan alone changes nothing. The parameters (link, latency,
    launch and GEMM figures, ...) have normal priors around `gpu`'s own and the measurements a robust loss (see fit.solve). So an
    odd measurement moves them little, and plans of tp, pp or micro-batches not yet tried move along.
    """
    type_measurements = [m for m in measured if m.shape.gpu_type == gpu.gpu_type]
    if len(type_measurements) < 2 or not _positive(speed):
        return gpu
    columns: dict[str, Any] = {
        item.name: np.full(len(type_measurements), getattr(gpu, item.name))
        for item in fields(GpuFigures)
        if item.name not in ("gpu_type", "note")
    }
    false = np.zeros(len(type_measurements), dtype=np.bool_)
    inputs = RowBatch(
        rows=(),
        model=stack_dims([model] * len(type_measurements)),
        gpu=GpuFigures(gpu_type="", **columns),
        plans=from_plans([m.plan for m in type_measurements], [m.shape.gpus_per_node for m in type_measurements]),
        last=false,
        fused=false,
    )
    target_log_s = np.log(np.array([m.step_s for m in type_measurements])) + math.log(speed)
    trust = plausible(target_log_s - log_time(inputs, inputs.gpu)).astype(np.float64)
    start = inputs.start(TIME)
    sigma = np.array([[math.hypot(p.shared, p.own) for p in TIME]])
    effects = solve(
        inputs, TIME, log_time, target_log_s, start, np.ones((len(type_measurements), 1)), sigma, trust
    ).effects[0]
    changes: dict[str, Any] = {}
    for k, parameter in enumerate(TIME):
        value = getattr(gpu, parameter.name)
        base = forward(parameter, value)
        moved = backward(parameter, np.array([base, base + effects[k]]))
        # a figure at its bound has no log or log-odds: the change counts, not the value
        changes[parameter.name] = max(0.0, value + float(moved[1] - moved[0]))
    return replace(gpu, **changes)


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _ratio(over: float | None, under: float | None) -> float | None:
    if over is None or under is None or not _positive(over) or not _positive(under):
        return None
    return over / under


def _smooth(old: float, ratio: float, samples: int) -> float:
    """Return the next value of a correction that is based on `samples` measurements."""
    limit = math.log(_CLIP)
    target = max(-limit, min(limit, math.log(ratio) if ratio > 0 else -limit))
    if samples == 0 or not _positive(old):
        return math.exp(target)
    reach = max(0.5, 3.0 / samples)
    step = max(-reach, min(reach, target - math.log(old)))
    return old * math.exp(max(_MIN_WEIGHT, 1 / (samples + 1)) * step)
