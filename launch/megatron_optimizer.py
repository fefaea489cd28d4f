"""Megatron's optimizer state to and from a checkpoint that reshards."""

from __future__ import annotations

from typing import Any


def optimizer_state(optimizer: Any, model_state: Any, is_loading: bool, metadata: Any, distributed: bool) -> Any:
    """The sharded state dict of `optimizer`."""
    return optimizer.sharded_state_dict(model_state, is_loading=is_loading, metadata=metadata)


def load_optimizer(optimizer: Any, state: Any, distributed: bool) -> None:
    """Put loaded `state` into `optimizer`."""
    optimizer.load_state_dict(state)
