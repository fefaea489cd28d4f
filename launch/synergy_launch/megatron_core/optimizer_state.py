"""Megatron's optimizer state to and from a checkpoint that reshards.

The plain optimizer's state needs nothing. The distributed optimizer's does where torch's Adam stands in for Apex's or
Transformer Engine's (megatron-core 0.16): without the three repairs below loading fails, or, worse, goes on with wrong
steps.
"""

from __future__ import annotations

from typing import Any

import torch


def optimizer_state(optimizer: Any, model_state: Any, is_loading: bool, metadata: Any) -> Any:
    """Return the sharded state dict of `optimizer`, a MegatronOptimizer; `model_state` holds the model's under "model"."""
    if is_loading:
        for part in _distributed_parts(optimizer):
            _make_state(part)
    return optimizer.sharded_state_dict(model_state, is_loading=is_loading, metadata=metadata)


def load_optimizer(optimizer: Any, state: Any) -> None:
    """Put the loaded `state` into `optimizer`."""
    parts = _distributed_parts(optimizer)
    for part in parts:
        _keep_step(part)
    optimizer.load_state_dict(state)
    for part in parts:
        _own_steps(part)


def _distributed_parts(optimizer: Any) -> list[Any]:
    return [
        part
        for part in getattr(optimizer, "chained_optimizers", [optimizer])
        if hasattr(part, "gbuf_ranges") and isinstance(part.optimizer, torch.optim.Adam | torch.optim.AdamW)
    ]


def _make_state(part: Any) -> None:
    """Give an optimizer that has made no step a state (repair 1): without one nothing describes what should be loaded."""
    for group in part.optimizer.param_groups:
        for parameter in group["params"]:
            if not part.optimizer.state[parameter]:
                part.optimizer.state[parameter].update(
                    step=torch.tensor(0.0, device="cpu"),
                    exp_avg=torch.zeros_like(parameter),
                    exp_avg_sq=torch.zeros_like(parameter),
                )


def _keep_step(part: Any) -> None:
    """Load "step" with each parameter's tensors too (repair 2): it is loaded with the groups, but looked for among the tensors."""
    load = part._set_main_param_and_optimizer_states

    def load_with_step(model_param: Any, tensors: dict[str, Any]) -> None:
        group, order = part.model_param_group_index_map[model_param]
        main = part.optimizer.param_groups[group]["params"][order]
        load(model_param, {**tensors, "step": part.optimizer.state[main]["step"].clone()})

    part._set_main_param_and_optimizer_states = load_with_step


def _own_steps(part: Any) -> None:
    """Give each parameter a step of its own (repair 3): all had one tensor as their step, so that it was counted up once for each."""
    for state in part.optimizer.state.values():
        state["step"] = state["step"].clone()
