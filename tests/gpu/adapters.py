"""Each adapter's small run on the device: half-way through it is saved, made anew and goes on; noise scales against brute force."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from synergy_core.records import ModelSpec, Plan

from tests.gpu import device
from tests.gpu.sizes import Sizes
from tests.paths import ROOT, python_path

_SPEC = ModelSpec("test", layers=4, hidden=64, heads=4, kv_heads=4, ffn=256, vocab=256, seq=32)
_STEPS = 8
Losses = list[float]


def one_rank() -> None:
    """A process group of this process alone, NCCL's where there is a GPU."""
    from synergy_launch.megatron_core.training import start_process_group

    start_process_group()


def _plain(kind: str, steps: int, checkpoint: Path | None) -> tuple[Losses, float | None]:
    from synergy_launch import SynergyTask
    from synergy_launch.examples.ddp import ByteModel
    from synergy_launch.examples.text import TextWindows
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model: Any = ByteModel(32, 2).to(device.DEVICE)
    if kind == "FSDP2":
        fully_shard(model)
    elif kind == "DDP":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: Losses = []
    with SynergyTask(
        model, optimizer, global_batch=8, micro_batch=2, checkpoint=checkpoint, checkpoint_interval=0
    ) as task:
        for rows in task.batches(TextWindows(32), steps, collate=lambda i: torch.tensor([list(x) for x in i])):
            window, before = rows.to(device.DEVICE), task.step_count
            logits = model(window[:, :-1])
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()))
            if task.step_count > before:
                losses.append(float(task.agent.status["loss"]))
        return losses, task.noise.value


def _megatron(bf16: bool, distributed: bool, steps: int, checkpoint: Path | None) -> tuple[Losses, float | None]:
    from synergy_launch.agent.checkpoint import Checkpoints
    from synergy_launch.examples.text import TextWindows
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group

    ranks = start_process_group()
    store = Checkpoints(checkpoint, ranks) if checkpoint else None
    found = store.find().checkpoint if store else None
    run = MegatronRun(
        _SPEC, Plan(micro_batch=2, global_batch=8), ranks, TextWindows(_SPEC.seq).sample, lr=3e-3, bf16=bf16,
        distributed_optimizer=distributed, checkpoint=found,
    )  # fmt: skip
    losses = [run.train_step() for _ in range(run.step, steps)]
    if store:
        store.save(run.step, run.save)
    run.close()
    return losses, run.noise_scale


def _resumed(train: Callable[[int, Path | None], tuple[Losses, float | None]], folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    whole, noise = train(_STEPS, None)
    first, _ = train(_STEPS // 2, folder)
    rest, _ = train(_STEPS, folder)
    if len(first) + len(rest) != len(whole):
        raise RuntimeError(f"{len(first)} and {len(rest)} steps in place of {len(whole)}")
    apart = max(abs(a - b) for a, b in zip(whole, first + rest, strict=True))
    return {"first_loss": whole[0], "last_loss": whole[-1], "apart": apart, "noise": noise}


def _trainer(folder: Path) -> dict[str, Any]:
    """Hugging Face's Trainer under the launcher's torchrun: 6 steps, then to 12."""
    command = [sys.executable, "-m", "synergy_launch.launcher.torchrun", "--standalone", "--nproc-per-node", "1"]
    command += ["-m", "tests.integration.training_trainer", "--output", str(folder), "--global-batch", "8"]
    environment = {**os.environ, "PYTHONPATH": python_path(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "4"}
    folder.mkdir(parents=True)
    for steps in ("6", "12"):
        done = subprocess.run([*command, "--steps", steps], cwd=ROOT, env=environment, timeout=120, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stdout[-600:])
    state = json.loads((folder / "checkpoint-12" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    return {"steps": len(losses), "first_loss": losses[0], "last_loss": losses[-1]}


def _noise(sizes: Sizes) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    from tests.benchmarks import noise

    for case in noise.CASES:
        if case.plan.gpus > 1:
            continue

        def against(case: noise.Case = case) -> dict[str, Any]:
            try:
                return noise.errors(noise.train(case, sizes.noise_steps, device=device.DEVICE.type), sizes.noise_after)
            finally:
                os.environ.pop("SYNERGY_PLAN_JSON", None)

        yield f"noise: {case.name}", against
    for distributed in (False, True):
        yield (
            f"noise: Megatron, {'distributed' if distributed else 'plain'} optimizer",
            (
                lambda d=distributed: _megatron_noise(sizes.noise_samples, d)  # type: ignore[misc]
            ),
        )


def _megatron_noise(samples: int, distributed: bool) -> dict[str, Any]:
    """At frozen weights: the estimate of `samples` / 8 steps over one gradient a sample."""
    from megatron.core import parallel_state

    from tests.integration import training_ranks

    truth = training_ranks.gpt_noise_by_brute_force(samples)
    parallel_state.destroy_model_parallel()
    found = training_ranks.gpt(
        Plan(global_batch=8), samples // 8, lr=0.0, decay=0.9999, distributed_optimizer=distributed
    )
    parallel_state.destroy_model_parallel()
    return {"estimate": found["noise"], "truth": truth, "bias": abs((found["noise"] or 0.0) / truth - 1)}


def cases(sizes: Sizes, folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name, how to run it) of every adapter; each needs `one_rank`."""
    for kind in ("DDP", "FSDP2"):
        yield f"PyTorch, {kind}", lambda k=kind: _resumed(lambda n, c: _plain(k, n, c), folder / k)  # type: ignore[misc]
    for bf16, distributed in ((False, False), (True, False), (True, True)):
        name = f"Megatron, {'bf16' if bf16 else 'fp32'}, {'distributed' if distributed else 'plain'} optimizer"
        yield (
            name,
            lambda b=bf16, d=distributed, n=name: _resumed(lambda s, c: _megatron(b, d, s, c), folder / n),  # type: ignore[misc]
        )
    if importlib.util.find_spec("transformers") is not None:
        yield "Hugging Face Trainer", lambda: _trainer(folder / "trainer")
    yield from _noise(sizes)
