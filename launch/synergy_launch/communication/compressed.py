"""Gradients sent as bfloat16: torch's own hook, and how much of their squared norm the rounding takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from synergy_core.exchange import Exchange
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from synergy_launch.batch.gradient_sample import sample_interval
from synergy_launch.communication.communication import Communication
from synergy_launch.communication.progress import Ratio
from synergy_launch.communication.replicas import Replicas


class Bfloat16(Communication):
    """The exchange by torch's bf16_compress_hook on the model. Rounding loses so little that no first steps are exact."""

    warms_up = False

    def __init__(self, exchange: Exchange, replicas: Replicas) -> None:
        super().__init__(exchange, replicas)
        self._ratio = Ratio()
        self._every, self._step = sample_interval(sum(p.numel() for p in replicas.parameters)), 0
        self._squares: list[torch.Tensor] = []  # this step's pairs |rounding error|^2, |gradient|^2
        replicas.model.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    def _reduce(self, bucket: Any) -> Any:
        own = bucket.buffer()
        if self._step % self._every == 0:
            error = own - own.to(torch.bfloat16)
            self._squares.append(
                torch.stack([torch.linalg.vector_norm(v, dtype=torch.float32) for v in (error, own)]).square()
            )
        return bf16_compress_hook(self.replicas.group, bucket)

    def gradients(self) -> list[float]:
        self._step += 1
        if not self._squares:
            return [0.0, 0.0]
        squares: list[float] = torch.stack(self._squares).sum(0).tolist()
        self._squares.clear()
        return squares

    def take_sums(self, sums: list[float]) -> None:
        error, whole = sums
        if whole > 0:
            # each of the n numbers is rounded, and each of their n - 1 partial sums
            self._ratio.add(whole - 2 * error, whole)

    @property
    def efficiency(self) -> float | None:
        """Return the share of the gradient's squared norm that arrives."""
        return self._ratio.value

    def state(self) -> dict[str, Any]:
        return {**super().state(), "ratio": self._ratio.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._ratio.restore(state["ratio"])
