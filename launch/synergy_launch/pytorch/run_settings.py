"""The settings of a SynergyTask's run: those of its launcher, and what its model and optimizer can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from synergy_core.errors import UsageError
from torch.distributed.device_mesh import DeviceMesh

from synergy_launch.agent.settings import AgentSettings
from synergy_launch.communication.choice import can_exchange_less, refused_ways
from synergy_launch.pytorch.mesh import Degrees


def run_settings(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: Any,
    batch_range: tuple[int, int] | None,
    mesh: DeviceMesh | None,
    world: int,
    pipeline: bool = False,
    cp: bool = False,
    tied: bool = False,
) -> AgentSettings:
    """Return the settings in this process's environment; the arguments are SynergyTask's, on `world` processes.

    `pipeline`: it was given one; `tied`: a model with tied embeddings. Raise UsageError.
    """
    settings = AgentSettings.from_environment()
    if batch_range is not None and settings.batch_range is None and not settings.daemon_chooses_batch:
        settings = replace(settings, batch_range=batch_range)
    accepts = dict(settings.accepts or {})
    if mesh is not None and (not pipeline or scaler is not None or tied):  # its tp moves alone
        accepts["single_stage"] = True
    if mesh is not None and cp:
        accepts["cp"] = True
    if mesh is not None or not can_exchange_less(model, world):
        accepts["exact_only"] = True
    elif refuses := refused_ways(model, optimizer):
        accepts["refuses"] = refuses
    return replace(settings, accepts=accepts) if accepts else settings


def check_split(mesh: Degrees, scaler: Any, pipeline: bool, cp: bool, tied: bool) -> None:
    """Raise UsageError where the mesh has a degree that the script did not say it has code for; arguments as above."""
    if mesh.pp > 1 and not pipeline:
        what = f"the mesh has pp={mesh.pp}, and no pipeline was given"
        raise UsageError("SynergyTask: pipeline", what, "a synergy_launch.Pipeline, or plan_mesh() without pp")
    if mesh.pp > 1 and scaler is not None:
        what = f"a scaler with pp={mesh.pp}: a schedule's losses are not scaled"
        raise UsageError("SynergyTask: scaler", what, "bf16, which needs none")
    if mesh.pp > 1 and tied:  # each would have the gradient of its own use alone
        what = f"pp={mesh.pp} of a model with tied embeddings, which the first and the last stage would train as two"
        right = "tied_embeddings=False and two of them, or plan_mesh() without pp"
        raise UsageError("SynergyTask: model_spec", what, right)
    if mesh.cp > 1 and not cp:
        what = f"the mesh has cp={mesh.cp}, which SynergyTask was not told of"
        raise UsageError("SynergyTask: cp", what, "cp=True, or plan_mesh() without cp")
