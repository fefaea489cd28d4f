"""The two gradient norms of a step that the noise scale is estimated from, in plain PyTorch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.batch.gradient_sample import GradientSample
from synergy_launch.batch.noise_scale import SILENT, Norms
from synergyd.records import Plan


@dataclass(frozen=True)
class _Kept:
    """A sample of the step before's gradients, of the parameters with these ids."""

    ids: list[int]
    places: GradientSample
    sample: list[torch.Tensor]


class GradientNorms:
    """Squared norms of the gradient over few and over many samples, and when gradients are averaged over the ranks.

    DDP and one process: each parameter's hook sees the micro-batch's own gradient before it is added or averaged.
    FSDP2 never shows a rank's own gradient; there the averaged gradient of the first micro-batch is the small one.
    Where a step is a single micro-batch of a single replica (or FSDP2 does not accumulate), two consecutive steps are
    compared, every other step: their mean is the gradient of twice the batch, as far as one step changes the
    weights little. Of the first one a sample of bounded size is kept (synergy_launch.batch.gradient_sample).
    """

    def __init__(self, model: torch.nn.Module, plan: Plan) -> None:
        self._model = model
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._sharded = any(isinstance(p, DTensor) for p in self._parameters)
        self._small: list[torch.Tensor] = []
        self._before: _Kept | None = None
        self.follow(plan)
        if not self._sharded:
            for parameter in self._parameters:
                parameter.register_hook(self._seen)  # type: ignore[no-untyped-call]

    def follow(self, plan: Plan) -> None:
        """From the next step on the run has this plan."""
        self._plan = plan
        self._b_small = plan.micro_batch * (plan.dp if self._sharded else 1)
        self._within = plan.global_batch > self._b_small
        self._small.clear()
        self._before = None

    def synchronised(self, micro_step: int) -> contextlib.AbstractContextManager[Any]:
        """DDP averages on the last micro-batch of a step only."""
        if isinstance(self._model, DistributedDataParallel) and micro_step < self._plan.micro_batches - 1:
            return self._model.no_sync()
        return contextlib.nullcontext()

    def after_backward(self, done: int) -> None:
        """Micro-batch number `done` (from 1) of the step has had its backward."""
        if self._within and self._sharded and done == 1:
            self._small.extend(_square(p.grad) for p in self._parameters if p.grad is not None)

    def take(self, unscale: float = 1.0) -> Norms:
        """This rank's shares of the step's norms; their sums over the ranks are the norms.

        Gradients times `unscale` are those of the loss.
        """
        if not self._within:
            return self._consecutive(unscale)
        square = unscale * unscale
        if not self._small:
            return SILENT
        plan = self._plan
        small = float(torch.stack(self._small).sum()) * square
        self._small.clear()
        big = float(torch.stack([_square(p.grad) for p in self._parameters if p.grad is not None]).sum()) * square
        count = plan.micro_batches
        # Each loss was divided by the number of micro-batches.
        if self._sharded:
            return Norms(small * count * count, big, self._b_small, plan.global_batch)
        return Norms(small * count / plan.dp, big / plan.dp, self._b_small, plan.global_batch)

    def _seen(self, gradient: torch.Tensor) -> None:
        if self._within:
            self._small.append(_square(gradient))

    def _consecutive(self, unscale: float) -> Norms:
        held = [(id(p), _local(p.grad).detach()) for p in self._parameters if p.grad is not None]
        ids, gradients = [i for i, _ in held], [g for _, g in held]
        if not gradients:
            return SILENT
        before, self._before = self._before, None
        if before is None or before.ids != ids:  # not of the same parameters: no pair
            # unscaled here: the scale may be another at the next step
            places = GradientSample(gradients)
            self._before = _Kept(ids, places, places.take(gradients, unscale))
            return SILENT
        now = before.places.take(gradients, unscale)
        product = before.places.product(before.sample, now)
        # of the same sample, so that what it leaves out cancels in their difference
        small = sum(before.places.product(s, s) for s in (before.sample, now)) / 2
        batch = self._plan.global_batch
        return Norms(small, (small + product) / 2, batch, 2 * batch)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _square(tensor: torch.Tensor) -> torch.Tensor:
    """Squared norm of what this rank holds of `tensor`."""
    square: torch.Tensor = torch.linalg.vector_norm(_local(tensor).detach(), dtype=torch.float32).square()
    return square
