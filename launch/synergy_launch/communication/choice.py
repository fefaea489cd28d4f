"""Which exchange a run can make, of the one that it is told or asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.communication.communication import Communication
from synergy_launch.communication.compressed import Bfloat16
from synergy_launch.communication.delayed import Delayed
from synergy_launch.communication.local_steps import LocalSteps
from synergy_launch.communication.power_sgd import PowerSgd
from synergy_launch.communication.replicas import Replicas
from synergy_launch.links.link_gate import LinkGate
from synergyd.errors import UsageError
from synergyd.exchange import EXACT, WAYS, Exchange, exchange

ARGUMENT = "SynergyTask: comm"


def choose(
    told: Exchange, asked: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, world: int
) -> tuple[Exchange, str]:
    """The exchange of this run, and why it is not the one that was told ("" where it is).

    `told`: the launcher's; `asked`: the script's own, where the launcher told none. What can't be done is refused to a script and made
    exact for the launcher, whose plan may be another for the next start. Raises UsageError.
    """
    wanted = exchange(asked, ARGUMENT) if told == EXACT and asked else told
    why = _obstacle(wanted, model, optimizer, scaler) if wanted != EXACT and world > 1 else ""
    if why and wanted != told:
        raise UsageError(ARGUMENT, f"{wanted}: {why}", "comm=exact")
    if wanted != EXACT and world == 1:
        why = "one process has nobody to exchange with"
    return (EXACT, f"gradients are exchanged exactly, not as {wanted}: {why}") if why else (wanted, "")


def exchanges_less(model: torch.nn.Module, world: int) -> bool:
    """Whether this script's replicas can, on whatever number of processes. One process may hold bare the model that several wrap by
    DistributedDataParallel: nothing speaks against it there but FSDP, which is another script's."""
    if world > 1 or isinstance(model, DistributedDataParallel):
        return isinstance(model, DistributedDataParallel)
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    return kinds.isdisjoint(("FSDPModule", "FullyShardedDataParallel"))


def refused(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> str:
    """The ways that a script which exchanges less can't have, joined by +: the same in each of its runs, so that no plan is made with
    them again."""
    of = {way: Exchange(way.partition(":")[0], rank=int(way.endswith("powersgd"))) for way in WAYS}
    return "+".join(way for way, option in of.items() if _against(option, model, optimizer, scaler))


def _obstacle(wanted: Exchange, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> str:
    """Why it can't be done, "" if it can."""
    if not isinstance(model, DistributedDataParallel):
        return "only DistributedDataParallel can exchange less"
    return _against(wanted, model, optimizer, scaler)


def _against(wanted: Exchange, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> str:
    """What of the script speaks against it besides how its model is wrapped, "" if nothing does."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if wanted.kind == "local" and any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
        return "ZeroRedundancyOptimizer has no state of its own on each replica"
    if wanted.kind == "compressed" and getattr(model, "_comm_hooks", None):
        return "the script has registered a communication hook of its own"
    if wanted.rank and scaler is not None and scaler.is_enabled():
        return "an overflow under a GradScaler would stay in PowerSGD's error feedback"
    if wanted.rank and any(p.dim() == 0 for p in parameters):
        return "torch's PowerSGD takes no parameter without a dimension"
    return ""


def communication(
    wanted: Exchange, model: torch.nn.Module, optimizer: torch.optim.Optimizer, gate: LinkGate | None
) -> Communication | None:
    """Sets `wanted` up on the model, whose link gate is installed already; None for exact."""
    if wanted == EXACT:
        return None
    assert isinstance(model, DistributedDataParallel)
    replicas = Replicas(model, optimizer, gate)
    if wanted.kind == "local":
        return LocalSteps(wanted, replicas)
    if wanted.kind == "delayed":
        return Delayed(wanted, replicas)
    return PowerSgd(wanted, replicas) if wanted.rank else Bfloat16(wanted, replicas)
