"""The gradient noise scale from two gradient norms per step.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1: with the squared norms of a gradient
over B_small and over B_big samples,

    G2 = (B_big |g_big|^2 - B_small |g_small|^2) / (B_big - B_small)        estimates |true gradient|^2
    S  = (|g_small|^2 - |g_big|^2) / (1 / B_small - 1 / B_big)              estimates tr(covariance)

and the noise scale is S / G2, in samples (sequences). Both are unbiased but noisy, and a ratio of averages is not an
average of ratios: S and G2 are averaged apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Norms:
    """Squared gradient norms over `b_small` and over `b_big` samples (or one rank's shares of them)."""

    small: float
    big: float
    b_small: int
    b_big: int


SILENT = Norms(0.0, 0.0, 0, 0)  # a step that shows nothing


class NoiseScale:
    """A running estimate of the gradient noise scale.

    `decay`: per step, of the two exponential averages, whose start is corrected as in Adam.
    """

    def __init__(self, decay: float = 0.99) -> None:
        self.decay = decay
        self._trace = 0.0
        self._square = 0.0
        self._weight = 0.0

    def update(self, small: float, big: float, b_small: float, b_big: float) -> float | None:
        """Take in one step: squared norms `small` and `big` at batch sizes `b_small` < `b_big`. Return the new `value`.

        A step that shows nothing (equal batch sizes, or a norm that is not finite) changes nothing.
        """
        if b_big > b_small > 0 and math.isfinite(small) and math.isfinite(big):
            square = (b_big * big - b_small * small) / (b_big - b_small)
            trace = (small - big) / (1.0 / b_small - 1.0 / b_big)
            self._square = self.decay * self._square + (1.0 - self.decay) * square
            self._trace = self.decay * self._trace + (1.0 - self.decay) * trace
            self._weight = self.decay * self._weight + (1.0 - self.decay)
        return self.value

    @property
    def value(self) -> float | None:
        """Return the noise scale in samples; None before the first step and while the averages are not both positive."""
        if self._weight == 0.0 or self._square <= 0.0 or self._trace <= 0.0:
            return None
        return self._trace / self._square

    def state(self) -> dict[str, float]:
        """Return the state to keep in a checkpoint, so that a resize does not start the estimate afresh."""
        return {"trace": self._trace, "square": self._square, "weight": self._weight}

    def restore(self, state: dict[str, float]) -> None:
        self._trace, self._square, self._weight = state["trace"], state["square"], state["weight"]
