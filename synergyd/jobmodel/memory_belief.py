"""The likelihood that a plan runs out of memory: a prediction near the limit is no certainty on either side of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from synergyd.jobmodel.model.arrays import Floats
from synergyd.jobmodel.model.hardware import GpuFigures

# One sigma of log(measured / predicted) of other plans once a job's own peak is known: that of the differences between the 25 and 27
# settings of two programs on an H100 (docs/design/measurements/gpu.md).
LEARNT_SIGMA = 0.07
WORTH_LESS = 0.01  # a risk from which on a plan with more recompute is tried beside it


@dataclass(frozen=True)
class MemoryBelief:
    """The belief about memory peaks on one GPU type.

    `factor` is measured over predicted peak. `sigma` is one sigma of the logarithm of what that leaves open (0: certain).
    `ran_bytes` is the highest peak, predicted without the factor, of the plans that have run on this GPU type; it is 0 where a
    plan has failed that the learnt factor had let pass.
    """

    factor: float = 1.0
    sigma: float = 0.0
    ran_bytes: float = 0.0

    def limit(self, gpu: GpuFigures) -> float:
        """Return the predicted peak without the factor, bytes, from which on a plan is expected to fail."""
        return gpu.usable_bytes / self.factor

    def safer_limits(self, gpu: GpuFigures, sigmas: float) -> tuple[float, float]:
        """Return `limit` for plans that are safer by `sigmas` sigmas, and for plans whose risk is WORTH_LESS."""
        limit, safe = self.limit(gpu), -float(ndtri(WORTH_LESS))
        return limit * math.exp(-self.sigma * sigmas), limit * math.exp(-self.sigma * safe)

    def risk(self, gpu: GpuFigures, peak: Floats) -> Floats:
        """Return the probability that a plan of predicted `peak` (bytes, without the factor, (N,)) needs more than there is.

        It is 0 up to a peak that has run.
        """
        if self.sigma <= 0 or not len(peak):
            return np.zeros(len(peak))
        risk = ndtr(np.log(np.maximum(peak, 1.0) / max(self.limit(gpu), 1.0)) / self.sigma)
        return np.asarray(np.where(peak <= self.ran_bytes, 0.0, risk), dtype=np.float64)


CERTAIN = MemoryBelief()  # predictions are taken for what will be
