"""Two real torchrun jobs on gloo over one shaped link between two network namespaces: the rule gates, the rule shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_launch.links import link_gate
from synergy_launch.links.hooks import is_across_nodes

from tests.integration import training_ranks
from tests.integration.training_ranks import Call
from tests.throwaway.gating import GATE, OPEN, SHARE, Outcome, Phase, measure
from tests.throwaway.netns import why_not
from tests.throwaway.slurm import missing_programs

pytestmark = pytest.mark.training


def words(outcomes: list[Outcome]) -> str:
    return ", ".join(f"{o.mean_s * 1000:.0f} ms a step ({o.waited} of {o.asked} waited)" for o in outcomes)


@pytest.mark.timeout(900)
def test_equal_messages_take_turns_and_a_small_one_shares() -> None:
    reason = why_not() or ("munged is not installed" if "munged" in missing_programs() else "")
    if reason:
        pytest.skip(reason)
    cases = [(OPEN, GATE), ("ada-srsf", GATE), (OPEN, SHARE), ("ada-srsf", SHARE)]
    phases = [Phase(rule, loads) for rule, loads in cases]
    found = measure(phases, seconds=8.0)
    for _ in range(2):  # two jobs whose steps a busy machine has pulled apart do not meet on the link
        if sum(outcome.waited for outcome in found[1]) > 4:
            break
        found = measure(phases, seconds=8.0)
    check(phases, found)


def check(phases: list[Phase], found: list[list[Outcome]]) -> None:
    """Check who waits for whom. How long steps take depends on the machine's load: tests.benchmarks.gating measures that."""
    turns_off, turns_on, share_off, share_on = found
    for phase, outcomes in zip(phases, found, strict=True):
        print(f"{phase.rule}: {words(outcomes)}")
    for outcomes in (turns_off, share_off):
        assert [o.waited for o in outcomes] == [0, 0]
    # in step and as large as each other: they take turns
    assert sum(o.waited for o in turns_on) > 4
    # the small job is hardly ever held up by a large message
    assert share_on[1].waited < share_on[1].asked / 3


# -- the hooks, two ranks as if on two nodes ---------------------------------------------------------------------------


class Recorder:
    """A gate that counts; `begin` takes a while on the rank that asks."""

    is_asking = True

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def begin(self, size_bytes: int) -> float:
        self.told.append(("begin", size_bytes))
        return 0.0

    def end(self) -> None:
        self.told.append(("end", 0))

    def close(self) -> None:
        self.told.append(("close", 0))


def _gates(made: list[tuple[int, Recorder]]) -> None:
    """In this process `from_environment` gives Recorders."""

    def fake(environment: Any, channel: int = 0) -> Recorder:
        made.append((channel, Recorder()))
        return made[-1][1]

    link_gate.from_environment = fake  # type: ignore[assignment]


def ddp_told(own_hook: str) -> list[tuple[str, int]]:
    """Three steps of DDP with several buckets and accumulation, gated; what rank 0's gate was told. Gradients are checked."""
    import torch
    import torch.distributed as dist
    from synergy_launch.links.hooks import gate_ddp
    from torch.nn.parallel import DistributedDataParallel

    made: list[tuple[int, Recorder]] = []
    _gates(made)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]), bucket_cap_mb=0.03
    )
    seen = []

    def scaled(state: object, bucket: Any) -> Any:
        seen.append(bucket.index())
        future: Any = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda reduced: reduced.value()[0] / 2)

    scaled.__annotations__ = {}
    if own_hook == "before":
        model.register_comm_hook(None, scaled)
    gate = gate_ddp(model)
    assert (gate is None) == (rank != 0 or own_hook == "before")
    if own_hook == "after":
        model.register_comm_hook(None, scaled)
    for _ in range(3):
        model.zero_grad()
        with model.no_sync():
            model(torch.full((1, 64), float(rank))).sum().backward()
        model(torch.full((1, 64), float(rank + 1))).sum().backward()
        for mine in [p.grad for p in model.parameters() if p.grad is not None]:
            first_ranks = mine.clone()
            dist.broadcast(first_ranks, 0)
            assert torch.equal(mine, first_ranks), "the ranks' gradients differ"
        first = model.module[5].bias.grad  # 1 a sample: two samples a rank
        assert torch.allclose(first, torch.full((64,), 2.0))
    if own_hook:
        assert seen
    return made[0][1].told if made else []


def fsdp_told(gated: bool) -> dict[str, Any]:
    """Three steps of FSDP2 with several groups and accumulation; what rank 0's gate was told, and the weights after them."""
    import torch
    import torch.distributed as dist
    from synergy_launch.links.fsdp_gate import gate_fsdp
    from torch.distributed.fsdp import fully_shard

    made: list[tuple[int, Recorder]] = []
    _gates(made)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    gate = gate_fsdp(model) if gated else None
    assert (gate is None) == (rank != 0 or not gated)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            model(torch.full((1, 64), float(rank + step + last))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = [float(p.full_tensor().double().sum()) for p in model.parameters()]
    return {"told": made[0][1].told if made else [], "weights": weights}


def megatron_told(
    plan: Any, steps: int, gated: bool, from_outside: bool = False, distributed: bool = False
) -> dict[str, Any]:
    """What each leader's gate was told in some steps of a small GPT, and the losses. `from_outside`: as an unchanged script is."""
    import torch.distributed as dist
    from synergy_launch.agent.collectives import TorchCollectives
    from synergy_launch.examples.text import TextWindows
    from synergy_launch.links import gated_script
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group

    made: list[tuple[int, Recorder]] = []
    if gated:
        _gates(made)
    if from_outside:
        gated_script.install()
    ranks: TorchCollectives = start_process_group()
    sample = TextWindows(training_ranks.SPEC.seq).sample
    run = MegatronRun(training_ranks.SPEC, plan, ranks, sample, distributed_optimizer=distributed)
    losses = [run.train_step() for _ in range(steps)]
    run.close()
    told = ranks.gather([(channel, recorder.told) for channel, recorder in made])
    return {"told": {c: t for each in told for c, t in each}, "losses": losses, "world": dist.get_world_size()}


TWO_NODES = {"LOCAL_WORLD_SIZE": "1", "SYNERGY_LINK_ARBITER": "127.0.0.1:1"}
HERE = "tests.integration.test_link_gating:"


@pytest.mark.parametrize("own_hook", ["", "after", "before"])
def test_ddp_asks_once_a_step_on_rank_0_alone(tmp_path: Any, own_hook: str) -> None:
    told, _ = training_ranks.run(tmp_path, 2, Call(HERE + "ddp_told", own_hook), environment=TWO_NODES)
    size = 6 * (64 * 64 + 64) * 4
    # it is closed with the model
    assert told == ([] if own_hook == "before" else [*[("begin", size), ("end", 0)] * 3, ("close", 0)])


def test_fsdp_asks_once_a_step_on_rank_0_alone(tmp_path: Any) -> None:
    gated, _ = training_ranks.run(tmp_path / "on", 2, Call(HERE + "fsdp_told", True), environment=TWO_NODES)
    plain, _ = training_ranks.run(tmp_path / "off", 2, Call(HERE + "fsdp_told", False), environment=TWO_NODES)
    assert gated["told"] == [("begin", 4 * (64 * 64 + 64) * 4), ("end", 0)] * 3
    assert gated["weights"] == plain["weights"] and plain["told"] == []


def test_megatron_asks_once_a_step_for_each_reduction_group(tmp_path: Any) -> None:
    """tp 2, dp 2, the replicas on two nodes: ranks 0 and 1 lead a group each. The losses are those without a gate."""
    from synergy_core.records import Plan

    plan = Plan(tp=2, dp=2, micro_batch=1, global_batch=4)
    environment = {**TWO_NODES, "LOCAL_WORLD_SIZE": "2"}
    gated, _ = training_ranks.run(
        tmp_path / "on", 4, Call(HERE + "megatron_told", plan, 2, True), environment=environment
    )
    plain, _ = training_ranks.run(tmp_path / "off", 4, Call(HERE + "megatron_told", plan, 2, False))
    assert gated["losses"] == plain["losses"] and plain["told"] == {}
    assert sorted(gated["told"]) == [0, 1]
    for told in gated["told"].values():
        assert [word for word, _ in told] == ["begin", "end", "begin", "end", "close"] and told[0][1] > 100_000
    outside, _ = training_ranks.run(
        tmp_path / "out", 4, Call(HERE + "megatron_told", plan, 2, True, True), environment=environment
    )
    assert outside["losses"] == plain["losses"]
    assert {c: told[:4] for c, told in outside["told"].items()} == {c: told[:4] for c, told in gated["told"].items()}
    # pipeline stages on a node each: no reduction group crosses nodes
    stages = replace(plan, tp=1, pp=2, dp=2)
    apart, _ = training_ranks.run(
        tmp_path / "pp", 4, Call(HERE + "megatron_told", stages, 1, True), environment=environment
    )
    assert apart["told"] == {}


@pytest.mark.parametrize("from_outside", [False, True])
def test_megatrons_distributed_optimizer_asks_for_its_reduce_scatter(tmp_path: Any, from_outside: bool) -> None:
    """A rank a node: one question a step for all of the gradients, and the losses are those without a gate."""
    from synergy_core.records import Plan

    plan = Plan(dp=2, micro_batch=1, global_batch=4)
    found = [
        training_ranks.run(
            tmp_path / str(gated),
            2,
            Call(HERE + "megatron_told", plan, 2, gated, from_outside and gated, True),
            environment=TWO_NODES,
        )[0]
        for gated in (True, False)
    ]
    on, off = found
    assert on["losses"] == off["losses"] and off["told"] == {} and list(on["told"]) == [0]
    words = [word for word, _ in on["told"][0]]
    assert words[:4] == ["begin", "end"] * 2 and on["told"][0][0] == on["told"][0][2] and on["told"][0][0][1] > 100_000


@pytest.mark.parametrize(
    ("ranks", "environment", "crosses"),
    [
        ([0, 1], {"LOCAL_WORLD_SIZE": "2"}, False),
        ([0, 2], {"LOCAL_WORLD_SIZE": "2"}, True),
        ([0, 1], {"WORLD_SIZE": "2"}, False),
        ([0, 1], {"LOCAL_WORLD_SIZE": "0"}, False),
        ([0, 1], {"LOCAL_WORLD_SIZE": "x"}, False),
        ([0, 1], {}, False),
    ],
)
def test_which_groups_cross_nodes(ranks: list[int], environment: dict[str, str], crosses: bool) -> None:
    assert is_across_nodes(ranks, environment) is crosses
