"""Batches of several of a training library's own steps, and their noise scale.

A library that finds its place in the data by its steps keeps their `unit` of examples for the whole run. A batch of k units takes k
steps: on the first k - 1 the optimizer finds no gradients, for they are put aside and come back with the next step. On the last one
DDP reduces their sum, of which the optimizer gets the mean. Schedules go on by each of the library's steps, so they count examples.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import torch
from synergy_core.records import Plan
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.agent.collectives import Collectives
from synergy_launch.batch.learning_rate import Following, at_batch
from synergy_launch.batch.noise_scale import NoiseScale
from synergy_launch.pytorch.gradient_norms import GradientNorms


class Accumulation:
    """The events of one run, on every rank alike. `unit` is the plan of the library's own step, `plan` has the batch."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        unit: Plan,
        plan: Plan,
        ranks: Collectives,
        rule: str,
        whole: bool,
        wrapped: Any = None,
    ) -> None:
        """Attach to the model and its optimizer.

        `whole`: every step has as many examples as the others, the last one of an epoch too. `wrapped`: the model with DDP around it,
        where the library shows that.
        """
        self.model, self.noise = model, NoiseScale()
        self.following = Following(unit.global_batch, rule)
        self.loss: float | None = None  # mean of the last whole batch, over all ranks
        self.finite = True  # its gradient
        self._optimizer, self._ranks, self._unit, self._whole = optimizer, ranks, unit.global_batch, whole
        self._plan, self._norms = plan, GradientNorms(model, plan)
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._losses: list[torch.Tensor] = []
        self._steps = 0  # of the library's, in the batch that is under way
        self._rates = contextlib.ExitStack()
        self._ddp = wrapped if isinstance(wrapped, DistributedDataParallel) else None
        self._search = torch.nn.modules.module.register_module_forward_pre_hook(self._note_ddp)

    @property
    def steps_left(self) -> int:
        """Return the number of the library's steps to the end of the batch, including the one that begins."""
        return self._plan.global_batch // self._unit - self._steps

    @property
    def is_inside_batch(self) -> bool:
        """Return whether a batch is under way: its gradients so far are here alone."""
        return self._steps > 0

    def follow(self, plan: Plan) -> None:
        """Use this plan for the next batch."""
        self._plan = plan
        self._norms.follow(plan)

    def begin(self, last: bool) -> None:
        """Begin one of the library's steps, the `last` one of a batch or not; `restore` comes before its first backward."""
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = last

    def restore(self) -> None:
        """Restore the gradients of the batch's earlier steps."""
        for parameter, gradient in self._kept:
            parameter.grad = gradient
        self._kept = []

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add a micro-batch's share of its step's loss."""
        self._losses.append(loss.detach())

    def before_optimizer(self, last: bool, epoch_ends: bool) -> None:
        """Take in the gradient, which is complete; `after_optimizer` comes next."""
        self.restore()  # a step without a backward
        self._steps += 1
        if not last:
            self._kept = [(p, p.grad) for p in self.model.parameters() if p.grad is not None]
            for parameter, _ in self._kept:
                parameter.grad = None
            return
        steps, self._steps = self._steps, 0
        batch = steps * self._unit
        self._measure(steps, batch == self._plan.global_batch and (self._whole or not epoch_ends))
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if steps > 1 and gradients:
            torch._foreach_mul_(gradients, 1 / steps)
        self._rates.enter_context(at_batch(self._optimizer.param_groups, self.following, batch, self.noise.value))

    def after_optimizer(self) -> None:
        """Restore the tuned rates: the library's schedule goes on from them."""
        self._rates.close()

    def close(self) -> None:
        """Leave the model as it was before. Training has ended, maybe inside a step."""
        self._rates.close()
        self._norms.close()
        self._search.remove()
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = True

    def _measure(self, steps: int, complete: bool) -> None:
        """Measure loss and noise of a batch of so many steps; `complete`: of as many examples as the plan says."""
        losses, self._losses = self._losses, []
        device = next(self.model.parameters()).device
        loss = torch.stack(losses).sum() / steps if losses else torch.zeros((), device=device)
        if complete:
            mean, sums = self._norms.take(loss, 1 / steps)
            total, small, big = self._ranks.total([mean, sums.small, sums.big])
            self.noise.update(small, big, sums.b_small, sums.b_big)
            self.finite = math.isfinite(big)
        else:  # an epoch or the run has ended it early
            self._norms.follow(self._plan)
            total, self.finite = self._ranks.total([float(loss)])[0] if losses else 0.0, True
        self.loss = total / self._ranks.world if losses else None

    def _note_ddp(self, module: torch.nn.Module, _: Any) -> None:
        """Note the DDP around the model. A library may show the model alone: the first forward pass shows what is around it."""
        if self._ddp is None and isinstance(module, DistributedDataParallel):
            self._ddp = module
        self._search.remove()


def round_batch(plan: Plan, unit: Plan) -> Plan:
    """Return `unit` with the largest batch up to `plan`'s that is a multiple of its own."""
    steps = max(1, plan.global_batch // unit.global_batch)
    return replace(unit, global_batch=steps * unit.global_batch)
