"""What a running job makes of its GPUs, by its last report and its model, beside what was predicted."""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.job_report import GpuActivity

_SURE = 2.0  # sigmas
_LEAST = 0.2  # below it a step time is as good as predicted: loaders, evaluations and other jobs cost as much


@dataclass(frozen=True, kw_only=True)
class Achieved:
    """A running job's speed."""

    #: reported step time
    step_s: float
    #: step time that the model predicted for its plan before it learnt from reports
    predicted_step_s: float | None = None
    #: relative uncertainty of the prediction, one sigma
    uncertainty: float = 0.0
    #: tokens per second
    tokens_per_s: float | None = None
    #: model FLOPs utilisation: the model's FLOP/s, without recomputation, over the GPUs' peak
    mfu: float | None = None
    #: share of the predicted step in which GPUs wait for communication; null if its GPUs are not sampled
    communication_share: float | None = None


def achieved_message(achieved: Achieved) -> str:
    """Return a line such as `1.25 s a step (0.98 s predicted), 12300 tokens/s, MFU 41 %`."""
    words = f"{achieved.step_s:.3g} s a step"
    if achieved.predicted_step_s is not None:
        words += f" ({achieved.predicted_step_s:.3g} s predicted)"
    words += f", {achieved.tokens_per_s:.0f} tokens/s" if achieved.tokens_per_s is not None else ""
    return words + (f", MFU {100 * achieved.mfu:.0f} %" if achieved.mfu is not None else "")


def activity_message(activity: GpuActivity, *, whole_run: bool = False) -> str:
    """Return a line such as `8 GPUs busy 91 % of the time, SMs 74 %, tensor cores 40 %, 612 W each, 64.0 GiB`; "" if nothing is known.

    `whole_run`: the means of the whole run, as of a job that has ended.
    """
    busy = activity.run_utilisation if whole_run else activity.utilisation
    power_w = activity.run_power_w if whole_run else activity.power_w
    parts = [f"{activity.gpus} GPU{'s' * (activity.gpus != 1)} busy {busy:.0%} of the time"] if busy is not None else []
    if not whole_run:
        parts += [f"SMs {activity.sm:.0%}"] if activity.sm is not None else []
        parts += [f"tensor cores {activity.tensor:.0%}"] if activity.tensor is not None else []
    parts += [f"{power_w:.0f} W each"] if power_w is not None else []
    parts += [f"{activity.memory_bytes / 2**30:.1f} GiB"] if activity.memory_bytes is not None else []
    return ", ".join(parts).replace("%", " %")


def tolerance(achieved: Achieved) -> float:
    """Return how far a measured step time may be from the predicted one, over the predicted one, and still agree with it."""
    return max(_LEAST, _SURE * achieved.uncertainty)


def wrong_model_message(achieved: Achieved) -> str:
    """Return what is wrong with the prediction of this job's steps, or "" if it holds."""
    predicted_s = achieved.predicted_step_s
    if not predicted_s or predicted_s <= 0:
        return ""
    ratio = achieved.step_s / predicted_s
    if abs(ratio - 1.0) <= tolerance(achieved):
        return ""
    return (
        f"its steps take {ratio:.2f} times as long as the model predicts (+- {achieved.uncertainty:.0%}): the model is wrong for this "
        "program, or something holds it up"
    )
