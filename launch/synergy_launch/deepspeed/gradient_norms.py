"""The two gradient norms of a step that the noise scale is estimated from, in DeepSpeed's engine.

Every ZeRO stage shows a parameter's hook this rank's own whole gradient of the micro-batch, before it is reduced. The norm of the
mean is the one that ZeRO computes to clip by, from its parts; without ZeRO it is read from the averaged gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from synergy_core.records import Plan

from synergy_launch.batch.gradient_sample import sample_interval
from synergy_launch.batch.noise_scale import SILENT, Norms


class EngineNorms:
    """Norms of the steps of `engine` under `plan`. All elements count: what ZeRO gives is the norm of the whole gradient."""

    def __init__(self, engine: Any, plan: Plan) -> None:
        self._engine, self._zero = engine, engine.zero_optimization_stage() > 0
        self._parameters = [p for p in engine.module.parameters() if p.requires_grad]
        # ZeRO 3 leaves an empty tensor where it has taken the parameter apart
        self._every = sample_interval(sum(getattr(p, "ds_numel", p.numel()) for p in self._parameters))
        self._handles = [p.register_hook(self._take_gradient) for p in self._parameters]
        self.follow(plan)

    @property
    def why_silent(self) -> str:
        """Return why this plan's steps show nothing; "" if they do."""
        if self._zero and not self._engine.zero_compute_grad_norm():
            return "the noise scale is not measured: compute_grad_norm is false"
        if self._plan.global_batch == self._plan.micro_batch:
            return "the noise scale is not measured while a step is one micro-batch of one process"
        return ""

    def follow(self, plan: Plan) -> None:
        """Measure with this plan from the next step on."""
        self._plan, self._step = plan, 0
        self._small: list[torch.Tensor] = []
        self._big: torch.Tensor | None = None
        self._silent = bool(self.why_silent)

    def before_step(self) -> None:
        """Take the norm once the step's last backward is done; the engine's step comes next."""
        if self._is_sampling and not self._zero:
            norms = [_norm(p.grad) for p in self._parameters if p.grad is not None]
            self._big = torch.linalg.vector_norm(torch.stack(norms)) if norms else None

    def take(self, loss: torch.Tensor) -> tuple[float, Norms]:
        """Return `loss`, and after the engine's step this rank's shares of the norms, whose sums over the ranks are the norms.

        The device is waited for once.
        """
        looked, self._step = self._is_sampling, self._step + 1
        small, self._small = self._small, []
        big = self._engine.get_global_grad_norm() if self._zero else self._big
        if not looked or not small or big is None:
            return float(loss), SILENT
        squares = torch.stack(small).square().sum()
        whole = torch.as_tensor(big, dtype=torch.float64).square()
        values = [value.detach().to(squares.device, torch.float64) for value in (loss, squares, whole)]
        mean, small_, big_ = torch.stack(values).tolist()
        plan = self._plan  # the engine has divided each loss by the number of micro-batches
        return mean, Norms(small_ * plan.micro_batches / plan.dp, big_ / plan.dp, plan.micro_batch, plan.global_batch)

    def close(self) -> None:
        """Stop looking at gradients."""
        for handle in self._handles:
            handle.remove()

    @property
    def _is_sampling(self) -> bool:
        return not self._silent and self._step % self._every == 0

    def _take_gradient(self, gradient: torch.Tensor) -> None:
        if self._is_sampling:
            self._small.append(_norm(gradient))


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)
    return norm
