"""Trainer's gradients: their noise scale, and a batch of several of Trainer's own steps.

Trainer finds its place in the data by its steps, so these keep their `unit` of examples for the whole run. A batch of k units takes k
steps: on the first k - 1 the optimizer finds no gradients, for they are put aside and come back with the next step. On the last one
DDP reduces their sum, of which the optimizer gets the mean. Schedules go on by each of Trainer's steps, so they count examples.

Trainer clips before any callback sees the gradient. Here it is clipped after it was measured, by Trainer's own bound.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.agent.collectives import Collectives
from synergy_launch.batch.learning_rate import Following, at_batch
from synergy_launch.batch.noise_scale import NoiseScale
from synergy_launch.pytorch.gradient_norms import GradientNorms
from synergyd.records import Plan


def why_fixed(args: Any, model: Any, train_dataloader: Any) -> str:
    """Why neither noise nor another batch is possible in this Trainer; "" if they are."""
    if model is None or train_dataloader is None:
        return "Trainer does not show its model and data"
    if not hasattr(train_dataloader, "__len__"):
        return "the length of the data is not known"
    if getattr(args, "fp16", False):
        return "fp16 scales the gradients"
    if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None) or getattr(args, "n_gpu", 1) > 1:
        return "only DDP and one device a process show each rank's own gradient"
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    if strategy == "best" or getattr(args, "load_best_model_at_end", False):
        return "the best checkpoint may be one inside a batch"
    return ""


class Accumulation:
    """The events of one run, on every rank alike. `unit` is the plan of Trainer's own step, `plan` has the batch."""

    def __init__(
        self, model: Any, optimizer: Any, unit: Plan, plan: Plan, ranks: Collectives, rule: str, whole: bool
    ) -> None:
        """`whole`: every step has as many examples as the others, the last one of an epoch too."""
        self.model, self.noise = model, NoiseScale()
        self.following = Following(unit.global_batch, rule)
        self._optimizer, self._ranks, self._unit, self._whole = optimizer, ranks, unit.global_batch, whole
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._plan, self._norms = plan, GradientNorms(model, plan)
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._steps = 0  # of Trainer's, in the batch that is under way
        self._clip: float | None = None  # Trainer's own bound, while its arguments have none
        self._rates = contextlib.ExitStack()
        self._ddp: DistributedDataParallel | None = None
        self._search = torch.nn.modules.module.register_module_forward_pre_hook(self._entered)

    @property
    def steps_left(self) -> int:
        """Trainer's steps to the end of the batch, the one that begins included."""
        return self._plan.global_batch // self._unit - self._steps

    def follow(self, plan: Plan) -> None:
        """The next batch is this plan's."""
        self._plan = plan
        self._norms.follow(plan)

    def begin(self, args: Any, last: bool) -> None:
        """One of Trainer's steps begins, the `last` one of a batch or not."""
        for parameter, gradient in self._kept:
            parameter.grad = gradient
        self._kept = []
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = last
        self._clip, args.max_grad_norm = args.max_grad_norm, 0.0

    def before_optimizer(self, args: Any, last: bool, epoch_ends: bool) -> None:
        """The gradient is complete; `Accumulation.after_optimizer` comes next."""
        clip = args.max_grad_norm = self._clip or 0.0
        self._clip = None
        self._steps += 1
        if not last:
            self._kept = [(p, p.grad) for p in self._parameters if p.grad is not None]
            for parameter, _ in self._kept:
                parameter.grad = None
            return
        steps, self._steps = self._steps, 0
        batch = steps * self._unit
        if batch == self._plan.global_batch and (self._whole or not epoch_ends):
            _, sums = self._norms.take(torch.zeros((), device=self._parameters[0].device), 1 / steps)
            small, big = self._ranks.total([sums.small, sums.big])
            self.noise.update(small, big, sums.b_small, sums.b_big)
        else:  # an epoch or the run has ended it early
            self._norms.follow(self._plan)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if steps > 1 and gradients:
            torch._foreach_mul_(gradients, 1 / steps)
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(self._parameters, clip)
        self._rates.enter_context(at_batch(self._optimizer.param_groups, self.following, batch, self.noise.value))

    def after_optimizer(self) -> None:
        """The tuned rates return: Trainer's schedule goes on from them."""
        self._rates.close()

    def close(self, args: Any) -> None:
        """Training has ended, maybe inside a step: model and arguments are as before."""
        if self._clip is not None:
            args.max_grad_norm, self._clip = self._clip, None
        self._rates.close()
        self._norms.close()
        self._search.remove()

    def _entered(self, module: torch.nn.Module, _: Any) -> None:
        """Trainer shows callbacks the model alone: the first forward pass shows what is around it."""
        if isinstance(module, DistributedDataParallel):
            self._ddp = module
        self._search.remove()


def rounded(plan: Plan, unit: Plan) -> Plan:
    """`unit` with the largest batch up to `plan`'s that is a multiple of its own."""
    steps = max(1, plan.global_batch // unit.global_batch)
    return replace(unit, global_batch=steps * unit.global_batch)
