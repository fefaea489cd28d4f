"""The norms that SynergyTask takes from a step, and the same by hand; executed in the ranks of training_ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from synergy_core.records import ModelSpec
from synergy_launch.examples.text import TextWindows

SPEC = ModelSpec(
    "test", layers=2, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=256, seq=16, gated=True, tied_embeddings=False
)
STEPS = 2
LOOKED_AT = 4  # small batches of a step: of FSDP2 the first, the steps of DDP have no more
Step = tuple[float, float, float, float]  # |g_small|^2, |g_big|^2, small and big batch


def norms(kind: str, batch: int, micro: int) -> tuple[list[Step], list[Step]]:
    """(taken, by hand) of STEPS steps with weights that stay."""
    import torch
    from synergy_launch import SynergyTask

    mesh, model, pipeline, loss_from = cut(kind)
    text, found = TextWindows(SPEC.seq), []
    with SynergyTask(
        model, torch.optim.SGD(model.parameters(), lr=0.0), global_batch=batch, micro_batch=micro, mesh=mesh, lr_rule="none",
        pipeline=pipeline, cp=pipeline is not None,
    ) as task:  # fmt: skip
        update = task.noise.update

        def taken(*step: float) -> float | None:
            found.append(step)
            return update(*step)

        task.noise.update = taken  # type: ignore[method-assign, assignment]
        for rows in task.batches(text, STEPS, collate=rows_of):
            task.step(loss_from(rows))
        dp, pp = task.plan.dp, task.plan.pp
    small = batch if pp > 1 else micro if kind == "ddp" else micro * dp
    return found, _by_hand(text, batch, small) if os.environ["RANK"] == "0" else []  # type: ignore[return-value]


def cut(kind: str) -> tuple[Any, Any, Any, Callable[[Any], Any]]:
    """(mesh, model, pipeline, what SynergyTask.step takes of a batch), in the plan's ranks. `kind`: ddp, fsdp; mesh as the template
    cuts its model; loose: its norms are on no dimension tp; tensor: loose, and no FSDP2; split: into stages and parts of sequences too."""
    import torch
    import torch.distributed as dist
    from synergy_launch import Pipeline, plan_mesh, stage_blocks
    from synergy_launch.examples.fsdp_tp import compute_loss
    from synergy_launch.examples.plain_gpt import Gpt
    from synergy_launch.pytorch.context_parallel import own_positions

    dist.init_process_group("gloo")
    split = kind == "split"
    mesh = plan_mesh("cpu", pp=split, cp=split) if kind not in ("ddp", "fsdp") else None
    torch.manual_seed(0)
    stage = stage_blocks(SPEC.layers, mesh) if split else None
    model = _parallel(Gpt(SPEC, mesh, stage), kind, mesh)
    if not split:
        return mesh, model, None, lambda rows: loss_by(model, rows)
    pipeline, own = Pipeline(model, mesh, compute_loss), own_positions(SPEC.seq, mesh)
    return mesh, model, pipeline, lambda rows: pipeline(rows[:, :-1][:, own], rows[:, 1:][:, own])


def _parallel(model: Any, kind: str, mesh: Any) -> Any:
    from synergy_launch.examples.plain_gpt import parallelize
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        fully_shard(model)
    elif kind in ("mesh", "split"):
        parallelize(model, mesh)
    else:
        first, last = ColwiseParallel, RowwiseParallel
        parts = {f"attention.{name}": first() for name in ("query", "key", "value")}
        parts |= {"attention.output": last(), "mlp.gate": first(), "mlp.up": first(), "mlp.down": last()}  # type: ignore[dict-item]
        for block in model.blocks.values():
            parallelize_module(block, mesh["tp"], parts)  # type: ignore[arg-type]
        if kind == "loose":
            fully_shard(model, mesh=mesh["dp"])
    return model


def rows_of(items: list[bytes]) -> Any:
    import torch

    return torch.tensor([list(item) for item in items])


def loss_by(model: Any, rows: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def _by_hand(text: TextWindows, batch: int, small: int) -> list[Step]:
    """By one process with the whole model, the first small batches of a step; where a step is no more than one, or goes
    through a pipeline, two steps are compared."""
    import torch
    from synergy_launch.examples.plain_gpt import Gpt

    torch.manual_seed(0)
    model = Gpt(SPEC)

    def square(first: int, count: int) -> float:
        loss = loss_by(model, rows_of([text.sample(number) for number in range(first, first + count)]))
        return sum(float(g.double().square().sum()) for g in torch.autograd.grad(loss, list(model.parameters())))

    if small == batch:
        pair = (square(0, batch) + square(batch, batch)) / 2, square(0, 2 * batch), float(batch), 2.0 * batch
        return [(0.0, 0.0, 0.0, 0.0), pair]
    steps = []
    for start in range(0, STEPS * batch, batch):
        found = [square(first, small) for first in range(start, start + batch, small)[:LOOKED_AT]]
        steps.append((sum(found) / len(found), square(start, batch), float(small), float(batch)))
    return steps
