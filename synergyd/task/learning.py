"""What a job's reports teach: a Profile's corrections, smoothed so that one odd measurement moves them little."""

from __future__ import annotations

import math
from dataclasses import replace

from synergyd.records import Profile, Report

_CLIP = 20.0  # a measurement further than this from the prediction says that one of the two is broken
_MIN_WEIGHT = 0.2
_NOISE_WEIGHT = 0.2
_NOISE_STEP = math.log(4)


def update_profile(
    profile: Profile, report: Report, predicted_step_s: float | None, predicted_memory_bytes: int | None
) -> Profile:
    """`profile` after `report`. The predictions are the model's own, without the profile's corrections
    (`SynergyTask.predict`).

    speed = predicted / measured time, memory = measured / predicted peak: each ratio is clipped to [1/20, 20] and its
    logarithm averaged, weight 1/(n+1) down to 0.2. The first measurement counts in full; after n of them the step is
    at most 3/n (at least 0.5) before weighting, so after six one odd report moves a correction by at most a
    tenth. Values that are missing, not finite or not positive are passed over. Model, batch and resharding are taken
    as reported.
    """
    samples, speed = profile.samples, profile.speed
    if (ratio := _ratio(predicted_step_s, report.step_s)) is not None:
        speed = _smoothed(speed, ratio, samples)
        samples += 1
    memory = profile.memory
    if (ratio := _ratio(report.peak_memory_bytes, predicted_memory_bytes)) is not None:
        # exactly 1 is what an unmeasured profile has, so that measurement is the first one of memory
        memory = _smoothed(memory, ratio, 0 if memory == 1.0 else max(1, profile.samples))
    noise = profile.noise_scale
    if _positive(report.noise_scale):
        assert report.noise_scale is not None
        if noise is None or not _positive(noise):
            noise = report.noise_scale
        else:
            change = math.log(report.noise_scale) - math.log(noise)
            noise *= math.exp(_NOISE_WEIGHT * max(-_NOISE_STEP, min(_NOISE_STEP, change)))
    batch = report.plan.global_batch if report.plan is not None and report.plan.global_batch > 0 else None
    return replace(
        profile,
        speed=speed,
        memory=memory,
        samples=samples,
        noise_scale=noise,
        resharding=report.resharding,
        model=report.model or profile.model,
        global_batch=batch or profile.global_batch,
    )


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _ratio(over: float | None, under: float | None) -> float | None:
    if over is None or under is None or not _positive(over) or not _positive(under):
        return None
    return over / under


def _smoothed(old: float, ratio: float, samples: int) -> float:
    """The next value of a correction that `samples` measurements stand behind."""
    limit = math.log(_CLIP)
    target = max(-limit, min(limit, math.log(ratio) if ratio > 0 else -limit))
    if samples == 0 or not _positive(old):
        return math.exp(target)
    reach = max(0.5, 3.0 / samples)
    step = max(-reach, min(reach, target - math.log(old)))
    return old * math.exp(max(_MIN_WEIGHT, 1 / (samples + 1)) * step)
