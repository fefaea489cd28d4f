"""The share of the progress of exact communication that a step makes, measured to first order by gradients that can't know it.

A small step along d lowers the loss by its rate times <grad L, d> (Taylor). So what a direction d is worth, of what the fresh gradient g
would be, is E<grad L, d> / E<grad L, g>. A batch's gradient stands for grad L without bias in a product with anything that
was made of other examples; then the noise of the batches averages out, and does not count as progress.
It is exact for small steps of SGD. For Adam, whose momentum is itself a mean over the last ten gradients or so, it is an estimate.
"""

from __future__ import annotations

import math

# a price that is not known to this standard error is not told: it could be the noise of single batches
_STANDARD_ERROR = 0.05
_LEAST = 1e-6  # the least that a report can hold


class Ratio:
    """The ratio of two averages, exponential with `decay` a step, and the standard error of that ratio (delta method)."""

    def __init__(self, decay: float = 0.99) -> None:
        self._decay = decay
        self._sums = [0.0] * 7  # weight, weight squared, above, below, above^2, above * below, below^2

    def add(self, above: float, below: float) -> None:
        """Take in one step's two numbers; nothing where one is not finite."""
        if not (math.isfinite(above) and math.isfinite(below)):
            return
        new = (1.0, 1.0, above, below, above * above, above * below, below * below)
        decays = (self._decay, self._decay**2, *[self._decay] * 5)
        self._sums = [decay * old + one for decay, old, one in zip(decays, self._sums, new, strict=True)]

    @property
    def value(self) -> float | None:
        """Return the ratio, in (0, 1]; None while it is not known well enough."""
        weight, squares, above, below, above2, product, below2 = self._sums
        if weight <= 0 or below <= 0:
            return None
        ratio = above / below
        spread = max(0.0, above2 - 2 * ratio * product + ratio * ratio * below2) / weight
        error = math.sqrt(spread * squares / (weight * weight)) / (below / weight)
        # at least ten steps, or the spread itself is not known
        return min(1.0, max(_LEAST, ratio)) if weight * weight >= 10 * squares and error <= _STANDARD_ERROR else None

    def state(self) -> list[float]:
        """Return the state to keep in a checkpoint."""
        return list(self._sums)

    def restore(self, state: list[float]) -> None:
        self._sums = [float(value) for value in state]
