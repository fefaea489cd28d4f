"""A bounded part of the gradient that stands for all of it: two consecutive steps are compared by it.

A whole copy would be memory that no plan's memory model counts (4 bytes a parameter). The product of two gradients is
a sum over their elements, so it is estimated from a stratified sample: small tensors whole, of larger ones every n-th
element, weighted by how many it stands for. BUDGET elements are 16 MiB a rank, far below the error of a memory model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

BUDGET = 1 << 22
# A sampled gradient is looked at every so many steps: hundreds of small kernels took 2 to 4 % of a step of a 1B model on an H100
_EVERY = 8
_WHOLE = 1 << 12  # tensors up to this size are kept whole
_ORDERS = 8  # the orders of tensors that are remembered: gradients come in the same one at each step


def sample_interval(parameters: int) -> int:
    """Return the interval, in steps, at which the gradient of so many parameters (the same number on all ranks) is looked at."""
    return 1 if parameters <= BUDGET else _EVERY


def choose_stride(tensor: torch.Tensor, keep: float) -> int:
    """Return the interval, in elements, at which elements of `tensor` are kept, where a part `keep` of the large tensors may be.

    It shares no divisor with the rows' length, or some columns would never be seen.
    """
    if tensor.numel() <= _WHOLE or keep >= 1:
        return 1
    stride = math.ceil(1 / keep)
    while math.gcd(stride, tensor.shape[-1]) > 1:
        stride += 1
    return stride


class GradientSample:
    """The sample's places for tensors of the sizes of `like`; `weights` are factors on each tensor's part of the sum.

    Numbers stay on the tensors' device, and only the first call for some tensors waits for it.
    """

    def __init__(
        self, like: Sequence[torch.Tensor], weights: Sequence[float] | None = None, budget: int = BUDGET
    ) -> None:
        large = sum(t.numel() for t in like if t.numel() > _WHOLE)
        room = max(budget - sum(t.numel() for t in like if t.numel() <= _WHOLE), budget // 2)
        self.strides = [choose_stride(t, room / large if large else 1.0) for t in like]
        #: the factor on each tensor's kept elements: they stand for those left out too, times the tensor's weight
        self.weights = []
        for tensor, stride, weight in zip(like, self.strides, weights or [1.0] * len(like), strict=True):
            sample_size = -(-tensor.numel() // stride)
            self.weights.append(weight * tensor.numel() / sample_size if sample_size else 0.0)
        self._counts = [-(-t.numel() // stride) for t, stride in zip(like, self.strides, strict=True)]
        self._factors: torch.Tensor | None = None  # `weights`, element by element
        self._orders: dict[tuple[int, ...], torch.Tensor] = {}  # `weights` by the order they are asked for in

    def norm(self, tensor: torch.Tensor, number: int, first: int = 0) -> torch.Tensor:
        """Return the norm of tensor `number`'s sampled elements, in single precision.

        `tensor` may be a part of that tensor, from element `first` on.
        """
        stride = self.strides[number]
        part = tensor.detach().reshape(-1)[-first % stride :: stride]
        norm: torch.Tensor = torch.linalg.vector_norm(part, dtype=torch.float32)
        return norm

    def part(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """Return a copy of tensor `number`'s sampled elements, in single precision."""
        return tensor.detach().reshape(-1)[:: self.strides[number]].to(torch.float32, copy=True)

    def square(self, norms: Sequence[torch.Tensor], numbers: Sequence[int]) -> torch.Tensor:
        """Return the weighted sum of squares of `norm`'s results for the tensors `numbers`: it estimates the gradient's squared norm."""
        values, key = torch.stack(list(norms)).square(), tuple(numbers)
        if key not in self._orders:
            if len(self._orders) >= _ORDERS:
                self._orders.clear()
            weights = torch.tensor([self.weights[n] for n in numbers], dtype=values.dtype)
            self._orders[key] = weights.to(values.device)
        return torch.dot(values, self._orders[key])

    def take(self, gradients: Sequence[torch.Tensor], scale: float = 1.0) -> torch.Tensor:
        """Return a copy of all sampled elements times `scale`, in single precision, tensor after tensor."""
        parts = [g.detach().reshape(-1)[::stride] for g, stride in zip(gradients, self.strides, strict=True)]
        return torch.cat(parts).to(torch.float32) * scale

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return an estimate of the weighted scalar product of the gradients that two samples were taken from."""
        if self._factors is None:
            counts = torch.tensor(self._counts, dtype=torch.int64)
            factors = torch.repeat_interleave(torch.tensor(self.weights, dtype=torch.float32), counts)
            self._factors = factors.to(a.device)
        return torch.dot(a * self._factors, b)
