"""What the runs of training libraries learn from, and their noise scale by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Example i begins with i; what follows can be learnt. Of `length` tokens."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([i, *((3 * i + 5 * j) % 64 for j in range(1, self.length))])


def noise_of(gradients: Sequence[Sequence[torch.Tensor]]) -> float:
    """tr(covariance) / |mean|^2 of one gradient an example, both unbiased."""
    each = torch.stack([torch.cat([g.flatten().double() for g in one]) for one in gradients])
    whole = float(each.mean(0).square().sum())
    trace = (float(each.square().sum(1).mean()) - whole) * len(each) / (len(each) - 1)
    return trace / (whole - trace / len(each))
