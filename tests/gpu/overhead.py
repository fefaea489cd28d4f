"""Share of a step that Synergy takes: blocks of steps with and without it take turns; medians over the blocks."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from synergy_core.records import Plan

from tests.gpu import device, gpt
from tests.gpu.sizes import Sizes

Ways = Mapping[str, Callable[[], Any]]


def alternate(ways: Ways, steps: int, blocks: int) -> dict[str, float]:
    """Median seconds a step of each way; the order is turned round from block to block. The first block warms up."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(blocks + 1):
        order = list(ways) if number % 2 else list(reversed(list(ways)))
        for way in order:
            spent = device.seconds_of_steps(ways[way], steps)
            if number:
                taken[way].append(spent)
    return {way: statistics.median(times) for way, times in taken.items()}


def plain(sizes: Sizes, micro_batches: int) -> dict[str, float]:
    """Seconds a step in plain PyTorch: without Synergy, with the agent alone, with agent and noise scale.

    Two models, since what the noise scale hooks into the gradients stays there.
    """
    from synergy_launch import SynergyTask
    from synergy_launch.batch.noise_scale import SILENT

    data = gpt.RandomTokens(sizes.model)
    micro, batch = sizes.overhead_micro, sizes.overhead_micro * micro_batches
    bare, watched = gpt.make(sizes.model), gpt.make(sizes.model)
    bare_adam = gpt.adamw(bare)
    task = SynergyTask(watched, gpt.adamw(watched), global_batch=batch, micro_batch=micro)
    loader: Iterator[torch.Tensor] = iter(torch.utils.data.DataLoader(data, batch_size=micro))
    ahead = task.batches(data, 1 << 30)

    def bare_step() -> None:
        nonlocal loader
        for _ in range(micro_batches):
            try:
                rows = next(loader)
            except StopIteration:
                loader = iter(torch.utils.data.DataLoader(data, batch_size=micro))
                rows = next(loader)
            (bare(rows.to(device.DEVICE)) / micro_batches).backward()
        bare_adam.step()
        bare_adam.zero_grad()

    def task_step() -> None:
        for _ in range(micro_batches):
            task.step(watched(next(ahead).to(device.DEVICE)))

    norms = task._norms
    measured, within = norms.take, norms._within

    def silent_step() -> None:
        norms._within, norms.take = False, lambda loss, unscale=1.0: (float(loss), SILENT)  # type: ignore[method-assign]
        task_step()
        norms._within, norms.take = within, measured  # type: ignore[method-assign]

    try:
        with task:
            ways: Ways = {"without": bare_step, "agent": silent_step, "agent and noise": task_step}
            return alternate(ways, sizes.overhead_steps, sizes.overhead_blocks)
    finally:  # the agent's handlers would keep both models
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def megatron(run: Any, sizes: Sizes, micro_batches: int, finalize: Any) -> dict[str, float]:
    """The same of a MegatronRun, on one model: its own finalize_model_grads is put back for the steps without."""
    from synergy_launch.agent.agent import Agent
    from synergy_launch.agent.settings import AgentSettings
    from synergy_launch.pytorch.device import device_memory, peak_memory

    micro = sizes.overhead_micro
    plan = Plan(micro_batch=micro, global_batch=micro * micro_batches)
    run.follow(plan)
    agent = Agent(AgentSettings(), plan, run.ranks, peak_memory=peak_memory, device_memory=device_memory)
    agent.start(run.step, model=run.spec, tokens=run.tokens, base_batch=run.following.base, peers=0)
    watching = run.config.finalize_model_grads_func

    def step(noise: bool, with_agent: bool) -> None:
        within = run.noise._within
        run.noise._within = within and noise
        run.config.finalize_model_grads_func = watching if noise else finalize
        loss = run.train_step()
        run.noise._within = within
        own_s = run.forward_timer.take()
        if with_agent:
            agent.after_step(run.step, loss=loss, tokens=run.tokens, noise_scale=run.noise_scale, own_s=own_s)

    return alternate(
        {
            "without": lambda: step(False, False),
            "agent": lambda: step(False, True),
            "agent and noise": lambda: step(True, True),
        },
        sizes.overhead_steps,
        sizes.overhead_blocks,
    )


def shares(found: Mapping[str, float]) -> dict[str, float]:
    """Parts of a step without Synergy."""
    return {way: seconds / found["without"] - 1 for way, seconds in found.items() if way != "without"}
