"""SynergyTask's noise scale by kind of model, executed in the ranks of training_ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from synergy_launch.examples.text import TextWindows

from synergyd.records import ModelSpec

SPEC = ModelSpec(
    "test", layers=1, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=256, seq=16, gated=True, tied_embeddings=False
)
BATCH = 8


def noise(kind: str, steps: int, checkpoint: Path) -> tuple[float | None, float]:
    """(the estimate of `steps` steps with weights that stay, of the same samples one gradient each): ddp, fsdp, or mesh (dp, tp)."""
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask, plan_mesh
    from synergy_launch.examples.fsdp_tp import Gpt, parallelize
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    mesh = plan_mesh("cpu") if kind == "mesh" else None
    torch.manual_seed(0)
    model: Any = Gpt(SPEC)
    if mesh is not None:
        parallelize(model, mesh)
    elif kind == "fsdp":
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    text = TextWindows(SPEC.seq)
    with SynergyTask(
        model, torch.optim.SGD(model.parameters(), lr=0.0), global_batch=BATCH, micro_batch=1, mesh=mesh,
        checkpoint=checkpoint, checkpoint_interval=0, lr_rule="none",
    ) as task:  # fmt: skip
        task.noise.decay = 0.99999
        for rows in task.batches(text, steps, collate=_rows):
            task.step(_loss(model, rows))
    truth = _by_brute_force(text, steps * BATCH) if os.environ["RANK"] == "0" else 0.0
    return task.noise.value, truth


def _rows(items: list[bytes]) -> Any:
    import torch

    return torch.tensor([list(item) for item in items])


def _loss(model: Any, rows: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def _by_brute_force(text: TextWindows, samples: int) -> float:
    """tr(covariance) / |mean|^2 at the first weights, both unbiased."""
    import torch
    from synergy_launch.examples.fsdp_tp import Gpt

    torch.manual_seed(0)
    model, found = Gpt(SPEC), []
    for number in range(samples):
        gradients = torch.autograd.grad(_loss(model, _rows([text.sample(number)])), list(model.parameters()))
        found.append(torch.cat([g.flatten().double() for g in gradients]))
    each = torch.stack(found)
    whole = float(each.mean(0).square().sum())
    trace = (float(each.square().sum(1).mean()) - whole) * samples / (samples - 1)
    return trace / (whole - trace / samples)
