"""The exchange that a run can make, given the one that it is told or asked for."""

from __future__ import annotations

import torch
from synergy_core.errors import UsageError
from synergy_core.exchange import EXACT, WAYS, Exchange, is_removed, parse_exchange
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.communication.communication import Communication
from synergy_launch.communication.compressed import Bfloat16
from synergy_launch.communication.local_steps import LocalSteps
from synergy_launch.communication.replicas import Replicas
from synergy_launch.links.link_gate import LinkGate

ARGUMENT = "SynergyTask: comm"


def choose_exchange(
    planned: Exchange, own_exchange: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, world: int
) -> tuple[Exchange, str]:
    """Return the exchange of this run, and why it is not the requested one ("" where it is). Raises UsageError.

    `planned`: the launcher's; `own_exchange`: the script's own, where the launcher planned none. A way that can't be taken is refused to a
    script. For the launcher it becomes exact: its plan may be another for the next start.
    """
    requested = parse_exchange(own_exchange, ARGUMENT) if planned == EXACT and own_exchange else planned
    if planned == EXACT and is_removed(own_exchange):
        return EXACT, f"{ARGUMENT}={own_exchange} has no effect any more: write local:8, compressed:bf16 or nothing"
    why = _obstacle(requested, model, optimizer) if requested != EXACT and world > 1 else ""
    if why and requested != planned:
        raise UsageError(ARGUMENT, f"{requested}: {why}", "comm=exact")
    if requested != EXACT and world == 1:
        why = "one process has nobody to exchange with"
    return (EXACT, f"gradients are exchanged exactly, not as {requested}: {why}") if why else (requested, "")


def can_exchange_less(model: torch.nn.Module, world: int) -> bool:
    """Return whether this script's replicas can exchange less, on any number of processes.

    One process may hold bare the model that several wrap by DistributedDataParallel. On one process only FSDP, which is another script's,
    rules it out.
    """
    if world > 1 or isinstance(model, DistributedDataParallel):
        return isinstance(model, DistributedDataParallel)
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    return kinds.isdisjoint(("FSDPModule", "FullyShardedDataParallel"))


def refused_ways(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return the ways that a script which exchanges less can't have, joined by +.

    They are the same in each of its runs, so that no plan is made with them again.
    """
    return "+".join(way for way in WAYS if _script_obstacle(way.partition(":")[0], model, optimizer))


def _obstacle(requested: Exchange, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return why the run can't exchange in this way, "" if it can."""
    if not isinstance(model, DistributedDataParallel):
        return "only DistributedDataParallel can exchange less"
    return _script_obstacle(requested.kind, model, optimizer)


def _script_obstacle(kind: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return what in the script rules this kind out, apart from how its model is wrapped; "" if nothing does."""
    if kind == "local" and any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__):
        return "ZeroRedundancyOptimizer has no state of its own on each replica"
    if kind == "compressed" and getattr(model, "_comm_hooks", None):
        return "the script has registered a communication hook of its own"
    return ""


def set_up_communication(
    exchange: Exchange, model: torch.nn.Module, optimizer: torch.optim.Optimizer, gate: LinkGate | None
) -> Communication | None:
    """Set `exchange` up on the model, whose link gate is installed already; return None for exact."""
    if exchange == EXACT:
        return None
    assert isinstance(model, DistributedDataParallel)
    replicas = Replicas(model, optimizer, gate)
    return LocalSteps(exchange, replicas) if exchange.kind == "local" else Bfloat16(exchange, replicas)
