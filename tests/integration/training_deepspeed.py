"""A small model in a loop of DeepSpeed's engine with DeepSpeedTask, for torchrun: `-m tests.integration.training_deepspeed`.

Weights, buffer and frozen parameter are drawn by `--draw`, another number at each start: a run that goes on must have its checkpoint's.
With `--plain` it is the same loop of SynergyTask, which knows nothing of DeepSpeed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from synergy_launch import SynergyTask
from synergy_launch.deepspeed import DeepSpeedTask, with_plan
from synergy_launch.examples.text import TextWindows

from tests.integration.training_rows import noise_of

SEQ, WIDTH, CLIP = 16, 16, 0.5


class Model(torch.nn.Module):
    """The next byte from this one, with tied embeddings, a buffer and, if it is to, a frozen parameter."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.inner = torch.nn.Linear(WIDTH, 37)
        self.outer = torch.nn.Linear(37, WIDTH)
        self.head = torch.nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.nn.Parameter(1 + torch.rand(WIDTH), requires_grad=not frozen)
        self.shift: torch.Tensor
        self.register_buffer("shift", torch.rand(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        moved = self.norm(hidden) * self.scale + self.shift.to(hidden.dtype)  # DeepSpeed leaves buffers in fp32
        hidden = hidden + self.outer(torch.nn.functional.gelu(self.inner(moved)))
        found: torch.Tensor = self.head(hidden)
        return found


def rows_of(items: list[Any]) -> torch.Tensor:
    return torch.tensor([list(item) for item in items])


def loss_of(model: Any, rows: torch.Tensor) -> torch.Tensor:
    logits = model(rows[:, :-1]).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def noise_by_brute_force(model: torch.nn.Module, dataset: Any) -> float:
    """At the model's weights."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return noise_of([torch.autograd.grad(loss_of(model, rows_of([item])), parameters) for item in dataset])


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Matrices with weight decay and their own rate, the rest without."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, rest = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() == 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 1e-3}]


def engine_of(model: torch.nn.Module, optimizer: Any, schedule: Any, told: argparse.Namespace) -> Any:
    import deepspeed

    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": told.stage, "stage3_param_persistence_threshold": 100},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": CLIP,
        **told.config,
    }
    config = with_plan(config, global_batch=8)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
    return engine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--move", help="STEP:BATCH:MICRO: a batch that is asked for during this step")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--draw", type=int, default=1)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--config", type=json.loads, default={}, help="more of DeepSpeed's configuration, as JSON")
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--noise", type=Path, help="file for the noise scale that is measured and that by brute force")
    parser.add_argument("--examples", type=int, default=64)
    told = parser.parse_args()
    torch.manual_seed(told.draw)
    model = Model(told.frozen)
    windows = TextWindows(SEQ)
    dataset = [windows[i] for i in range(told.examples)]
    truth = noise_by_brute_force(model, dataset) if told.noise else 0.0
    optimizer = getattr(torch.optim, told.optimizer)(groups_of(model), lr=told.rate)
    if told.noise:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    common: dict[str, Any] = {"global_batch": 8, "checkpoint": told.checkpoint, "checkpoint_interval": 0}
    engine: Any = model
    if told.plain:
        task: Any = SynergyTask(model, optimizer, scheduler=schedule, clip=CLIP, **common)
    else:
        engine = engine_of(model, optimizer, schedule, told)
        task = DeepSpeedTask(engine, **common)
    move = told.move.split(":") if told.move else []
    with task:
        if told.noise:
            task.noise.decay = 0.99999  # each step counts as much as the last one
        for rows in task.batches(dataset, told.steps, collate=rows_of):
            if move and task.step_count + 1 == int(move[0]):
                wanted = {"global_batch": int(move[1]), "micro_batch": int(move[2])}
                Path(os.environ["SYNERGY_RUN_DIR"], "batch").write_text(json.dumps(wanted))
            task.step(loss_of(engine, rows))
            time.sleep(told.delay)
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps({"schedule": schedule.last_epoch, "samples": task.samples}), flush=True)
            if told.noise:
                told.noise.write_text(json.dumps([task.noise.value, truth]))


if __name__ == "__main__":
    main()
