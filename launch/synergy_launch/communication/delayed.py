"""Delayed averaging by one step: the gradients of a step are averaged while the next one computes, and stepped with after it.

Zhou et al. 2020 (DaSGD), with a delay of one step and no local update in between: every replica makes the same step, so parameters never
differ. Replicas send as much as with exact communication, and wait only for what a whole step does not hide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from synergy_launch.communication.communication import Communication
from synergy_launch.communication.progress import Ratio
from synergy_launch.communication.replicas import MeanUnderWay, Replicas
from synergyd.exchange import Exchange


class Delayed(Communication):
    """Parameters without a gradient count as having one of 0, as all replicas must send the same."""

    own_gradients = True

    def __init__(self, exchange: Exchange, replicas: Replicas) -> None:
        super().__init__(exchange, replicas)
        self._under_way: MeanUnderWay | None = None
        self._ratio = Ratio()
        self._product: float | None = None  # of a step ago: fresh gradient times stale one

    @torch.no_grad()
    def gradients(self, scale: float) -> list[float]:
        """Measured: |mean gradient|^2 and |own gradient|^2 of the step before, and that mean times this step's own gradient."""
        if not self.active:
            return []
        fresh = [self._gradient(p) for p in self.replicas.parameters]
        before, told = self._under_way, [0.0, 0.0, 0.0]
        means = before.wait() if before is not None else []
        if before is not None:
            norms = [torch.linalg.vector_norm(m, dtype=torch.float32).to(torch.float64) for m in means]
            products = [(m * g).sum(dtype=torch.float64) for m, g in zip(means, fresh, strict=True)]
            told = torch.stack(
                [torch.stack(norms).square().sum(), before.square, torch.stack(products).sum() / scale]
            ).tolist()
        self._under_way = MeanUnderWay(self.replicas, fresh, 1.0 / scale)
        self.ready = before is not None
        _put(means, fresh, scale)
        return told

    def measured(self, sums: list[float]) -> None:
        n = self.replicas.world
        if self.ready and sums:
            mean, own, product = (value / n for value in sums)
            before, self._product = self._product, product
            # |true gradient|^2 of the step before, without its noise: McCandlish et al. 2018, appendix A.1, of B/n and B examples
            if before is not None:
                self._ratio.add(before, (n * mean - own) / (n - 1))

    @torch.no_grad()
    def settle(self, update: Callable[[], None], scale: float) -> None:
        """Steps with what is under way, and averages the buffers."""
        under_way, self._under_way, self._product = self._under_way, None, None
        if under_way is None:
            return
        self.replicas.average(self.replicas.buffers())
        _put(under_way.wait(), [self._gradient(p) for p in self.replicas.parameters], scale)
        with torch.enable_grad():
            update()

    @property
    def efficiency(self) -> float | None:
        """<fresh gradient, stale one> over |fresh gradient|^2, both without the noise of their batches."""
        return self._ratio.value if self.active else 1.0

    def state(self) -> dict[str, Any]:
        return {**super().state(), "ratio": self._ratio.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._ratio.restore(state["ratio"])

    @staticmethod
    def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad


def _put(means: list[torch.Tensor], gradients: list[torch.Tensor], scale: float) -> None:
    """Into the gradients: a GradScaler divides by its present `scale` what was made under another. Nothing where there are no means."""
    for mean, gradient in zip(means, gradients, strict=False):
        gradient.copy_(mean).mul_(scale)
