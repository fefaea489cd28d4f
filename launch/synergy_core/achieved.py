"""What a running job makes of its GPUs, by its last report and its model, beside what was predicted."""

from __future__ import annotations

from dataclasses import dataclass

_SURE = 2.0  # sigmas
_LEAST = 0.2  # below it a step time is as good as predicted: loaders, evaluations and other jobs cost as much


@dataclass(frozen=True, kw_only=True)
class Achieved:
    """A running job's speed."""

    #: seconds of a step, as reported
    step_s: float
    #: the same as the model predicts for its plan, before it learnt from reports; null: not known
    predicted_step_s: float | None = None
    #: relative uncertainty of the prediction, one sigma
    uncertainty: float = 0.0
    #: tokens a second; null where its model is not known
    tokens_per_s: float | None = None
    #: the model's FLOP/s over the GPUs' peak (model FLOPs utilisation), without recomputation; null where its model or GPU is not known
    mfu: float | None = None


def achieved_message(achieved: Achieved) -> str:
    """Return a line such as `1.25 s a step (0.98 s predicted), 12300 tokens/s, MFU 41 %`."""
    words = f"{achieved.step_s:.3g} s a step"
    if achieved.predicted_step_s is not None:
        words += f" ({achieved.predicted_step_s:.3g} s predicted)"
    words += f", {achieved.tokens_per_s:.0f} tokens/s" if achieved.tokens_per_s is not None else ""
    return words + (f", MFU {100 * achieved.mfu:.0f} %" if achieved.mfu is not None else "")


def wrong_model_message(achieved: Achieved) -> str:
    """Return what is wrong with the prediction of this job's steps, or "" if it holds."""
    predicted_s = achieved.predicted_step_s
    if not predicted_s or predicted_s <= 0:
        return ""
    ratio = achieved.step_s / predicted_s
    if abs(ratio - 1.0) <= max(_LEAST, _SURE * achieved.uncertainty):
        return ""
    return (
        f"its steps take {ratio:.2f} times as long as the model predicts (+- {achieved.uncertainty:.0%}): the model is wrong for this "
        "program, or something holds it up"
    )
