"""What a script refuses of less communication is told whether it was asked for or not."""

from __future__ import annotations

from typing import Any

import pytest
from synergy_core.exchange import EXACT, WAYS, parse_exchange
from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.settings import AgentSettings


def test_every_way_is_one_of_an_exchange() -> None:
    texts = ("local:8", "compressed:bf16")
    assert (
        tuple(parse_exchange(text, "test").way for text in texts) == WAYS
        and parse_exchange("exact", "test").way == "exact"
    )


def test_what_stands_against_a_way() -> None:
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    from synergy_launch.communication.choice import choose_exchange, refused_ways
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        plain = torch.optim.SGD(model.parameters(), 0.1)
        assert refused_ways(model, plain) == ""
        # torch's own is known by its name: importing it takes seconds
        shared = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})(model.parameters(), 0.1)
        assert refused_ways(model, shared) == "local"
        model.register_comm_hook(None, lambda _, bucket: None)
        assert refused_ways(model, plain) == "compressed:bf16"
        gone = "SynergyTask: comm=delayed has no effect any more: write local:8, compressed:bf16 or nothing"
        assert choose_exchange(EXACT, "delayed", model, plain, 2) == (EXACT, gone)
    finally:
        dist.destroy_process_group()


def test_what_one_process_tells_of_a_script() -> None:
    """Its replicas come with the next processes: FSDP speaks against all of it."""
    torch = pytest.importorskip("torch")
    from synergy_launch.pytorch.run_settings import run_settings

    net = torch.nn.Linear(2, 2)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")
    sharded = torch.nn.Sequential(type("FSDPModule", (torch.nn.Linear,), {})(2, 2))

    def accepts(model: Any, scaler: Any = None, world: int = 1, mesh: Any = None, **can: bool) -> Any:
        return run_settings(model, optimizer, scaler, None, mesh, world, **can).accepts

    assert accepts(net) is None
    assert accepts(net, scaler) is None
    assert accepts(net, world=2) == accepts(sharded) == {"exact_only": True}
    assert accepts(net, mesh=object()) == {"single_stage": True, "exact_only": True}
    assert accepts(net, mesh=object(), pipeline=True) == {"exact_only": True}
    assert accepts(net, mesh=object(), pipeline=True, cp=True) == {"cp": True, "exact_only": True}
    # a pipeline's losses are not scaled
    assert accepts(net, scaler, mesh=object(), pipeline=True) == {"single_stage": True, "exact_only": True}
    # its ends would be two matrices
    assert accepts(net, mesh=object(), pipeline=True, tied=True) == {"single_stage": True, "exact_only": True}


def test_a_loop_with_a_bare_agent_exchanges_exactly() -> None:
    """No plan is to count on what it does not do."""
    settings = AgentSettings(accepts={"blocks": True})
    assert Agent(settings, Plan()).status["accepts"] == {"blocks": True, "exact_only": True}
    assert Agent(settings, Plan(), exchanges_less=True).status["accepts"] == {"blocks": True}
