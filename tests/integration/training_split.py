"""What the tests of context and pipeline parallel let their ranks do; executed in the ranks of training_ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from synergy_core.records import ModelSpec
from synergy_launch.examples.text import TextWindows

SPEC = ModelSpec(
    "test", layers=2, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=256, seq=16, gated=True, tied_embeddings=False
)


def attention_differences(seq: int) -> tuple[float, ...]:
    """Largest differences of causal attention over the plan's cp from that of one process: of its result, then of the gradients of query,
    key and value."""
    import torch
    import torch.distributed as dist
    from synergy_launch import plan_mesh
    from synergy_launch.pytorch.context_parallel import causal_attention, own_positions

    dist.init_process_group("gloo")
    mesh = plan_mesh("cpu", cp=True)
    torch.manual_seed(0)
    whole = [torch.randn(2, 3, seq, 8, requires_grad=True) for _ in range(3)]
    weight, own = torch.randn(2, 3, seq, 8), own_positions(seq, mesh)
    parts = [tensor.detach()[..., own, :].requires_grad_() for tensor in whole]
    query, key, value = whole
    own_query, own_key, own_value = parts
    result = causal_attention(own_query, own_key, own_value, mesh)
    right = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    (result * weight[..., own, :]).sum().backward()  # type: ignore[no-untyped-call]
    (right * weight).sum().backward()  # type: ignore[no-untyped-call]
    pairs = [(result, right[..., own, :]), *((a.grad, b.grad[..., own, :]) for a, b in zip(parts, whole, strict=True))]  # type: ignore[index]
    differences = torch.stack([(a - b).detach().abs().max() for a, b in pairs])  # type: ignore[operator]
    dist.all_reduce(differences, op=dist.ReduceOp.MAX)
    return tuple(differences.tolist())


def clipped(steps: int) -> list[float]:
    """Losses of plain SGD steps at a rate at which the bound on the gradient's norm makes the steps."""
    import torch
    import torch.distributed as dist
    from synergy_launch import Pipeline, SynergyTask, plan_mesh, stage_blocks
    from synergy_launch.examples.fsdp_tp import compute_loss
    from synergy_launch.examples.plain_gpt import Gpt, parallelize
    from synergy_launch.pytorch.context_parallel import own_positions

    dist.init_process_group("gloo")
    mesh = plan_mesh("cpu", pp=True, cp=True)
    torch.manual_seed(0)
    model = Gpt(SPEC, mesh, stage_blocks(SPEC.layers, mesh))
    parallelize(model, mesh)
    pipeline, own, losses = Pipeline(model, mesh, compute_loss), own_positions(SPEC.seq, mesh), []
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with SynergyTask(
        model, sgd, global_batch=4, micro_batch=2, mesh=mesh, pipeline=pipeline, cp=True, clip=0.5, lr_rule="none"
    ) as task:
        for rows in task.batches(TextWindows(SPEC.seq), steps, collate=_rows):
            before = task.step_count
            task.step(pipeline(rows[:, :-1][:, own], rows[:, 1:][:, own]))
            if task.step_count > before:
                losses.append(float(task.agent.status["loss"]))
    return losses


def grouped(folder: Path, steps: int, with_pipeline: bool) -> list[float]:
    """Losses of a run whose optimizer has two groups of parameters, the norms' without decay, and a rate that falls by a fifth a step.
    Without `with_pipeline` its script knows of no stages."""
    import torch
    import torch.distributed as dist
    from synergy_launch import Pipeline, SynergyTask, plan_mesh, stage_blocks
    from synergy_launch.examples.fsdp_tp import compute_loss
    from synergy_launch.examples.plain_gpt import Gpt, parallelize

    dist.init_process_group("gloo")
    mesh = plan_mesh("cpu", pp=with_pipeline)
    torch.manual_seed(0)
    model = Gpt(SPEC, mesh, stage_blocks(SPEC.layers, mesh))
    parallelize(model, mesh)
    pipeline, losses = Pipeline(model, mesh, compute_loss), []
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    adam = torch.optim.AdamW([{"params": others, "weight_decay": 0.5}, {"params": norms, "weight_decay": 0.0}], lr=1e-2)
    falling = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: float(0.8**step))
    with SynergyTask(
        model, adam, scheduler=falling, global_batch=4, micro_batch=2, mesh=mesh, pipeline=pipeline if with_pipeline else None,
        checkpoint=folder, checkpoint_interval=0,
    ) as task:  # fmt: skip
        for rows in task.batches(TextWindows(SPEC.seq), steps, collate=_rows):
            before = task.step_count
            task.step(pipeline(rows[:, :-1], rows[:, 1:]))
            if task.step_count > before:
                losses.append(float(task.agent.status["loss"]))
    return losses


def frozen(steps: int, fixed: tuple[str, ...], dropped: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Plain SGD at another batch than the tuned one: each rank's number of steps, weight of the pairs of steps that showed something, noise
    scale, and progress. Parameters whose names begin as `fixed` do are frozen, those of `dropped` have no gradients from the fourth step
    on."""
    import torch
    import torch.distributed as dist
    from synergy_launch import Pipeline, SynergyTask, plan_mesh, stage_blocks
    from synergy_launch.examples.fsdp_tp import compute_loss
    from synergy_launch.examples.plain_gpt import Gpt, parallelize

    dist.init_process_group("gloo")
    mesh = plan_mesh("cpu", pp=True)
    torch.manual_seed(0)
    model = Gpt(SPEC, mesh, stage_blocks(SPEC.layers, mesh))
    parallelize(model, mesh)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(fixed))
    pipeline, sgd = Pipeline(model, mesh, compute_loss), torch.optim.SGD(model.parameters(), lr=0.1)
    with SynergyTask(model, sgd, global_batch=2, mesh=mesh, pipeline=pipeline, clip=10.0) as task:
        take = task._norms.take

        def taken(*args: Any) -> Any:
            for name, parameter in model.named_parameters():
                if task.step_count >= 3 and dropped and name.startswith(dropped):
                    parameter.grad = None
            return take(*args)

        task._norms.take = taken  # type: ignore[method-assign, assignment]
        for rows in task.batches(TextWindows(SPEC.seq), steps, collate=_rows):
            task.step(pipeline(rows[:, :-1], rows[:, 1:]))
    return task.ranks.gather((task.step_count, task.noise.state()["weight"], task.noise.value, task.following.progress))


def unprepared(missing: str) -> None:
    """A script whose SynergyTask is not told what its mesh can do, pipeline or cp, or is told of what can't be with it, scaler or tied."""
    import torch
    import torch.distributed as dist
    from synergy_launch import Pipeline, SynergyTask, plan_mesh
    from synergy_launch.examples.fsdp_tp import compute_loss

    dist.init_process_group("gloo")
    mesh = plan_mesh("cpu", pp=True, cp=True)
    model = torch.nn.Linear(4, 4)
    pipeline = None if missing == "pipeline" else Pipeline(model, mesh, compute_loss)
    scaler: Any = torch.amp.GradScaler("cpu") if missing == "scaler" else None
    spec = replace(SPEC, tied_embeddings=missing == "tied")
    sgd = torch.optim.SGD(model.parameters())
    SynergyTask(model, sgd, global_batch=4, mesh=mesh, pipeline=pipeline, scaler=scaler, model_spec=spec)


def plan(**degrees: int) -> dict[str, str]:
    """The environment of a plan with a batch of four in micro-batches of two, where `degrees` say nothing else."""
    return {"SYNERGY_PLAN_JSON": json.dumps({"global_batch": 4, "micro_batch": 2, **degrees})}


def _rows(items: list[bytes]) -> Any:
    import torch

    return torch.tensor([list(item) for item in items])
