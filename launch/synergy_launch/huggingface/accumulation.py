"""Trainer's gradients: a batch of several of Trainer's own steps (synergy_launch.pytorch.accumulation), and its bound on their norm.

Trainer clips before any callback sees the gradient. Here it is clipped after it was measured, by Trainer's own bound.
"""

from __future__ import annotations

from typing import Any

import torch

from synergy_launch.pytorch.accumulation import Accumulation


def batch_obstacle(args: Any, model: Any, train_dataloader: Any) -> str:
    """Return why neither noise nor another batch is possible in this Trainer; "" if they are."""
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


class TrainerAccumulation(Accumulation):
    """An Accumulation for Trainer; `args` are the run's TrainingArguments, which have no bound of the norm while a step is under way."""

    _clip: float | None = None  # Trainer's own bound, while its arguments have none

    def begin_step(self, args: Any, last: bool) -> None:
        """Begin one of Trainer's steps, the `last` one of a batch or not."""
        self.restore()
        self.begin(last)
        self._clip, args.max_grad_norm = args.max_grad_norm, 0.0

    def before_clipped_optimizer(self, args: Any, last: bool, epoch_ends: bool) -> None:
        """Take in the gradient, which is complete; `after_optimizer` comes next."""
        clip = args.max_grad_norm = self._clip or 0.0
        self._clip = None
        self.before_optimizer(last, epoch_ends)
        if last and clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)

    def end(self, args: Any) -> None:
        """Leave model and arguments as they were before. Training has ended, maybe inside a step."""
        if self._clip is not None:
            args.max_grad_norm, self._clip = self._clip, None
        self.close()
