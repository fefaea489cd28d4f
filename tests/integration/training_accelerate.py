"""A small model in a loop of Hugging Face Accelerate with AcceleratedTask, for torchrun: `-m tests.integration.training_accelerate`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from synergy_launch.examples.ddp import ByteModel
from synergy_launch.examples.text import TextWindows
from synergy_launch.huggingface import AcceleratedTask


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    told = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(1)
    model = ByteModel(16, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    with AcceleratedTask(
        accelerator, model, optimizer, scheduler=schedule, global_batch=8, checkpoint=told.checkpoint
    ) as task:
        for rows in task.batches(
            TextWindows(32), told.steps, collate=lambda items: torch.tensor([list(item) for item in items])
        ):
            logits = model(rows[:, :-1])
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
        if accelerator.is_main_process:
            print(json.dumps({"schedule": schedule.scheduler.last_epoch, "samples": task.samples}))


if __name__ == "__main__":
    main()
