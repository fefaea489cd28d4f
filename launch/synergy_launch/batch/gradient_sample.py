"""A bounded part of the gradient that stands for all of it: what two consecutive steps are compared by.

A whole copy would be memory that no plan's memory model counts (4 bytes a parameter). The product of two gradients is
a sum over their elements, so it is estimated from a stratified sample: small tensors whole, of larger ones every n-th
element, weighted by how many it stands for. BUDGET elements are 16 MiB a rank, far below the error of a memory model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

BUDGET = 1 << 22
_WHOLE = 1 << 12  # tensors up to this size are kept whole


def stride_of(tensor: torch.Tensor, keep: float) -> int:
    """Every how many elements of `tensor` one is kept, where a part `keep` of the large tensors may be: a number that
    shares no divisor with the rows' length, or some columns would never be seen."""
    if tensor.numel() <= _WHOLE or keep >= 1:
        return 1
    stride = math.ceil(1 / keep)
    while math.gcd(stride, tensor.shape[-1]) > 1:
        stride += 1
    return stride


class GradientSample:
    """The sample's places for tensors of the sizes of `like`; `weights` are factors on each tensor's part of the sum."""

    def __init__(
        self, like: Sequence[torch.Tensor], weights: Sequence[float] | None = None, budget: int = BUDGET
    ) -> None:
        large = sum(t.numel() for t in like if t.numel() > _WHOLE)
        room = max(budget - sum(t.numel() for t in like if t.numel() <= _WHOLE), budget // 2)
        self._strides = [stride_of(t, room / large if large else 1.0) for t in like]
        self._weights = []
        for tensor, stride, weight in zip(like, self._strides, weights or [1.0] * len(like), strict=True):
            kept = -(-tensor.numel() // stride)
            self._weights.append(weight * tensor.numel() / kept if kept else 0.0)

    def take(self, gradients: Sequence[torch.Tensor], scale: float = 1.0) -> list[torch.Tensor]:
        """A copy of the sampled elements times `scale`, in single precision."""
        parts = zip(gradients, self._strides, strict=True)
        return [g.detach().reshape(-1)[::stride].to(torch.float32, copy=True) * scale for g, stride in parts]

    def product(self, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> float:
        """Estimate of the weighted scalar product of the gradients that two samples were taken from."""
        terms = [torch.sum(x * y) * w for x, y, w in zip(a, b, self._weights, strict=True)]
        return float(torch.stack(terms).sum()) if terms else 0.0
