"""The settings of a SynergyTask's run: those of its launcher, and what its model and optimizer can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from synergy_launch.agent.settings import AgentSettings
from synergy_launch.communication.choice import exchanges_less, refused


def run_settings(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: Any,
    batch_range: tuple[int, int] | None,
    mesh: DeviceMesh | None,
    world: int,
) -> AgentSettings:
    """Of this process's environment; the arguments are SynergyTask's, on `world` processes. Raises UsageError."""
    settings = AgentSettings.from_environment()
    if batch_range is not None and settings.batch_range is None and not settings.daemon_chooses_batch:
        settings = replace(settings, batch_range=batch_range)
    accepts = dict(settings.accepts or {})
    if mesh is not None:  # its tp moves, and it has no pipeline
        accepts["single_stage"] = True
    if mesh is not None or not exchanges_less(model, world):
        accepts["exact_only"] = True
    elif refuses := refused(model, optimizer, scaler):
        accepts["refuses"] = refuses
    return replace(settings, accepts=accepts) if accepts else settings
