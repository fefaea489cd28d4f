"""Which steps of an optimizer train."""

from __future__ import annotations

from typing import Any


def is_state_made(optimizer: Any) -> bool:
    """Return whether the step under way only makes the optimizer's state, so that a checkpoint can be loaded into it.

    torch.distributed.checkpoint does it so: with zeros for gradients at the learning rate 0. A schedule's first step may be at 0 too,
    with gradients of its own. Only this process's parts are looked at, since others may not ask.
    """
    groups = optimizer.param_groups
    if any(float(group.get("lr", 1.0)) != 0.0 for group in groups):
        return False
    gradients = [parameter.grad for group in groups for parameter in group["params"] if parameter.grad is not None]
    return not any(bool(getattr(gradient, "_local_tensor", gradient).any()) for gradient in gradients)
