"""Replicas that exchange less: executed in the ranks of training_ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from synergy_core.records import Plan
from synergy_launch.examples.text import TextWindows


class Gate:
    """A link gate whose arbiter always agrees."""

    is_asking = True

    def __init__(self) -> None:
        self.calls: list[int] = []  # bytes at each begin, 0 at each end

    def begin(self, size_bytes: int) -> float:
        self.calls.append(size_bytes)
        return 0.0

    def end(self) -> None:
        self.calls.append(0)

    def close(self) -> None:
        pass


def trained(
    comm: str,
    checkpoint: Path | None,
    steps: int,
    *,
    batch: int = 8,
    micro: int = 1,
    warm_up: int = 4,
    interval: int = 0,
    optimiser: str = "AdamW",
    arguments: Mapping[str, Any] | None = None,
    decay_steps: int = 0,
    scaler: bool = False,
    batches: Mapping[int, int] | None = None,
    frozen: bool = False,
    gated: bool = False,
    norm: bool = False,
    hooked: bool = False,
) -> dict[str, Any]:
    """A small model under `comm`, up to `steps` steps; the weights, losses and what was reported.

    `decay_steps`: the learning rate falls to 0 over so many. `batches`: the global batch from a step on. `frozen`: the rate is 0, and all
    steps count alike for the noise. `gated`: rank 0 asks a link arbiter, which always agrees. `norm`: with a BatchNorm. `hooked`: with a
    communication hook of the script's own.
    """
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask
    from synergy_launch.communication import communication
    from synergy_launch.examples.ddp import ByteModel
    from synergy_launch.pytorch import training
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(256)

        def forward(self, logits: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.norm(logits.transpose(1, 2)).transpose(1, 2)
            return found

    communication.WARM_UP_STEPS = warm_up
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # buckets of a few parameters each, so that there are several
    net: torch.nn.Module = ByteModel(32, 3)
    if norm:
        net = torch.nn.Sequential(net, Normed())
    model = DistributedDataParallel(net, bucket_cap_mb=0.03)
    if hooked:
        model.register_comm_hook(None, allreduce_hook)
    gate = Gate()
    if gated and dist.get_rank() == 0:
        setattr(training, "gate_ddp", lambda _: gate)  # noqa: B010
    optimizer = getattr(torch.optim, optimiser)(model.parameters(), lr=3e-3 if optimiser == "AdamW" else 0.1)
    if frozen:
        optimizer.param_groups[0]["lr"] = 0.0
    scheduler = (
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: max(0.0, 1 - n / decay_steps)) if decay_steps else None
    )
    if batches is not None:
        plan = Plan(dp=dist.get_world_size(), global_batch=batch, micro_batch=micro)
        os.environ["SYNERGY_PLAN_JSON"] = json.dumps(asdict(plan))
    losses: list[float] = []
    said: list[tuple[str, float | None, float | None]] = []
    with SynergyTask(
        model,
        optimizer,
        global_batch=batch,
        micro_batch=micro,
        checkpoint=checkpoint,
        checkpoint_interval=interval,
        scheduler=scheduler,
        comm=comm,
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10) if scaler else None,
        **(arguments or {}),
    ) as task:
        first = task.step_count
        task.noise.decay = 0.99999 if frozen else task.noise.decay
        for rows in task.batches(
            TextWindows(32), steps, collate=lambda some: torch.tensor([list(one) for one in some])
        ):
            before = task.step_count
            logits = model(rows[:, :-1])
            if batches and before + 1 in batches:
                wanted = batches[before + 1], micro
                task.agent.take_batch = partial(_told, task.agent, wanted)  # type: ignore[method-assign]
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
            if task.step_count > before:
                status = task.agent.status
                losses.append(float(status["loss"]))
                said.append((status["comm"], status["comm_efficiency"], status["noise_scale"]))
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        buffers = [b.detach().flatten() for b in model.module.buffers() if b.is_floating_point()]
        weights = torch.cat([weights, *buffers])
        everywhere = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, weights)
        return {
            "first": first,
            "gate": gate.calls,
            "noise": task.noise.value,
            "weights": weights,
            "apart": max(float((weights - other).abs().max()) for other in everywhere),
            "losses": losses,
            "said": said,
            "note": task.agent.status["note"],
        }


def _told(agent: Any, batch: tuple[int, int]) -> Plan | None:
    """The agent's answer where somebody has told it this batch."""
    agent._batch = batch
    told: Plan | None = type(agent).take_batch(agent)
    return told


def by_hand(
    comm: str,
    steps: int,
    *,
    batch: int = 8,
    world: int = 2,
    warm_up: int = 4,
    decay_steps: int = 0,
    clip: float | None = None,
) -> Any:
    """What `trained` with SGD must come to, written out for replicas in one process: the weights at its end."""
    import torch
    from synergy_launch.batch.data_order import SampleOrder, rank_samples
    from synergy_launch.examples.ddp import ByteModel

    torch.manual_seed(0)
    nets = [ByteModel(32, 3) for _ in range(world)]
    for net in nets[1:]:
        net.load_state_dict(nets[0].state_dict())
    every = [list(net.parameters()) for net in nets]
    text = TextWindows(32)
    order = SampleOrder(len(text), 0)
    name, _, rest = comm.partition(":")
    base, since = int(rest) if name == "local" else 0, 0

    def mean(of: list[list[Any]]) -> list[Any]:
        return [torch.stack(some).mean(0) for some in zip(*of, strict=True)]

    def move(parameters: list[Any], gradients: list[Any], rate: float) -> None:
        norm = float(torch.stack([g.norm() for g in gradients]).norm())
        factor = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        for p, g in zip(parameters, gradients, strict=True):
            p.data -= rate * factor * g

    for step in range(steps):
        rate = 0.1 * (max(0.0, 1 - step / decay_steps) if decay_steps else 1.0)
        gradients = []
        for rank, net in enumerate(nets):
            numbers = [n for micro in rank_samples(step * batch, batch, world, rank, 1) for n in micro]
            rows = torch.tensor([list(text[order.index(n)]) for n in numbers])
            loss = torch.nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            gradients.append(list(torch.autograd.grad(loss, every[rank])))
        if step < warm_up:
            for own in every:
                move(own, mean(gradients), rate)
            continue
        for own, gradient in zip(every, gradients, strict=True):
            move(own, gradient, rate)
        since += 1
        if since >= (base if rate <= 0 else max(base, int(base * (0.1 / rate) ** 2 + 1e-9))):
            since = 0
            together = mean([[p.detach() for p in own] for own in every])
            for own in every:
                for p, t in zip(own, together, strict=True):
                    p.data.copy_(t)
    return torch.cat([p.flatten() for p in mean([[p.detach() for p in own] for own in every])])


def own_norms(steps: int, *, batch: int, micro: int, world: int) -> float:
    """The noise scale that replicas of `trained` come to by their own gradients alone, at the first weights, from one gradient a sample."""
    import torch
    from synergy_launch.batch.data_order import SampleOrder, rank_samples
    from synergy_launch.examples.ddp import ByteModel

    torch.manual_seed(0)
    net = ByteModel(32, 3)
    text, found = TextWindows(32), []
    order = SampleOrder(len(text), 0)
    for number in range(steps * batch):
        rows = torch.tensor([list(text[order.index(number)])])
        loss = torch.nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        found.append(torch.cat([g.flatten().double() for g in torch.autograd.grad(loss, list(net.parameters()))]))
    trace = square = 0.0
    most = batch // world
    for step in range(steps):
        small, big = [], []
        for rank in range(world):
            parts = [list(m) for m in rank_samples(step * batch, batch, world, rank, micro)]
            small += [float(torch.stack([found[n] for n in m]).mean(0).square().sum()) for m in parts]
            big.append(float(torch.stack([found[n] for m in parts for n in m]).mean(0).square().sum()))
        little, much = sum(small) / len(small), sum(big) / len(big)
        square += (most * much - micro * little) / (most - micro)
        trace += (little - much) / (1 / micro - 1 / most)
    return trace / square
