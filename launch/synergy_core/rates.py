"""What another batch size changes: the learning rate, by rule and optimiser, and the time of a step.

A rule gives the factor on the rate that was tuned for the batch `base`; phi is the gradient noise scale
tr(Sigma)/|G|^2 in sequences (McCandlish et al. 2018, eq. 2.8), S = batch / base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from synergy_core.errors import UsageError

RULES = ("adascale", "sqrt", "linear", "none")
# optimiser -> rule with a known noise scale, and without one
_USUAL = {
    "sgd": ("adascale", "linear"),
    "momentum": ("adascale", "linear"),
    "adam": ("sqrt", "sqrt"),
    "adamw": ("sqrt", "sqrt"),
    "lamb": ("sqrt", "sqrt"),
    "lars": ("linear", "linear"),
    "adafactor": ("sqrt", "sqrt"),
}


def linear(base: float, batch: float) -> float:
    """Return S: k steps of SGD are one step of k times the batch, while gradients change little (Goyal et al. 2017, section 2.1)."""
    return batch / base


def square_root(base: float, batch: float) -> float:
    """Return sqrt(S), which keeps the variance of the step (Krizhevsky 2014, section 5).

    It also keeps the dynamics of Adam and RMSProp, whose step is the gradient over its noise (Malladi et al. 2022, definition 5.2); You et
    al. 2020 use it for LAMB.
    """
    return math.sqrt(batch / base)


def adascale(base: float, batch: float, noise_scale: float) -> float:
    """Return the gain r = (sigma^2 + mu^2) / (sigma^2 / S + mu^2) of AdaScale SGD (Johnson et al. 2020, section 3).

    Here sigma^2 is the gradient's variance at the base batch and mu^2 the squared norm of its mean: sigma^2 / mu^2 = phi / base. The gain
    is between 1 (no noise: a larger batch shows nothing new) and S (noise alone: the linear rule). A step at this batch is worth r steps at
    the base batch, which is also Pollux's rule (Qiao et al., OSDI 2021, section 3.1).
    """
    return (noise_scale / base + 1) / (noise_scale / batch + 1)


def usual_rule(optimiser: str, noise_known: bool) -> str:
    """Return the rule for `optimiser` (any case). Raises UsageError for one that is not known."""
    rules = _USUAL.get(optimiser.lower())
    if rules is None:
        raise UsageError("optimiser", f"{optimiser} is not known", f"known are {', '.join(_USUAL)}; or name a rule")
    return rules[0 if noise_known else 1]


def factor(rule: str, base: float, batch: float, noise_scale: float | None = None) -> float:
    """Return the factor on the learning rate of batch `base` at `batch`, by one of RULES.

    Raises UsageError: unknown rule, batches that are not positive, AdaScale without a noise scale.
    """
    if not (base > 0 and batch > 0 and math.isfinite(base) and math.isfinite(batch)):
        raise UsageError("batch", f"{base:g} to {batch:g}", "both must be positive numbers of sequences")
    if rule == "none":
        return 1.0
    if rule == "linear":
        return linear(base, batch)
    if rule == "sqrt":
        return square_root(base, batch)
    if rule != "adascale":
        raise UsageError("rule", f"{rule} is not known", f"it may be {', '.join(RULES)}")
    if noise_scale is None or not (noise_scale >= 0 and math.isfinite(noise_scale)):
        raise UsageError("rule", "adascale needs the gradient noise scale", "linear or sqrt do without")
    return adascale(base, batch, noise_scale)


def learning_rate(
    tuned: float, base: float, batch: float, optimiser: str, noise_scale: float | None = None, rule: str = ""
) -> float:
    """Return the rate at `batch` for an `optimiser` whose rate was tuned to `tuned` at batch `base`.

    `rule` "" is the optimiser's usual one. Without a noise scale the batch itself should stay (Limits do so). Raises UsageError.
    """
    effective_rule = rule or usual_rule(optimiser, noise_scale is not None)
    return tuned * factor(effective_rule, base, batch, noise_scale)


def equivalent_sequences(base: float, batch: float, noise_scale: float | None) -> float:
    """Return the sequences at batch `base` that make the progress of one step of `batch`.

    This is base times AdaScale's gain, which is batch times the statistical efficiency (phi + base) / (phi + batch) of Pollux. Without a
    noise scale no gain is claimed: a larger batch counts as `base`, a smaller one as itself.
    """
    return min(base, batch) if noise_scale is None else base * adascale(base, batch, noise_scale)


@dataclass(frozen=True)
class Factors:
    """The factors on an optimiser's settings at another batch."""

    rate: float = 1.0
    decoupled_decay: float = 1.0


def factors(rule: str, base: float, batch: float, noise_scale: float | None = None) -> Factors:
    """Return all factors of `rule` at `batch`, for settings tuned at `base`. Raises UsageError as `factor` does.

    AdaScale without an estimate keeps the tuned rate. Momentum of SGD stays (Goyal et al. 2017, section 3), and so do Adam's betas: Malladi
    et al. 2022 scale 1 - beta too, for runs at one batch from the start; in the middle of a run the bias correction, which knows only the
    present beta, would then make steps up to three times too large.

    Decoupled weight decay keeps its reach in sequences (Wang and Aitchison 2024, section 2: rate x decay is one over it in steps): factor S
    / rate under `sqrt` and `linear`; under `adascale` a step counts as `rate` steps of base and decays by as much: 1.
    """
    if rule == "adascale" and noise_scale is None:
        return Factors()
    rate = factor(rule, base, batch, noise_scale)
    return Factors(rate) if rule not in ("sqrt", "linear") else Factors(rate, batch / base / rate)


def fit_line(times: Mapping[int, float]) -> tuple[float, float]:
    """Return (a, b) of T(M) = a + b M, neither below 0, of least squared relative error over {batch: seconds}, two or more."""
    weights = {m: 1 / t**2 for m, t in times.items()}
    total = sum(weights.values())
    mean_m = sum(w * m for m, w in weights.items()) / total
    mean_t = sum(w * times[m] for m, w in weights.items()) / total
    square = sum(w * (m - mean_m) ** 2 for m, w in weights.items())
    slope = sum(w * (m - mean_m) * (times[m] - mean_t) for m, w in weights.items()) / square if square else 0.0
    if slope <= 0:
        return mean_t, 0.0
    fixed = mean_t - slope * mean_m
    return (fixed, slope) if fixed >= 0 else (0.0, mean_t / mean_m)
