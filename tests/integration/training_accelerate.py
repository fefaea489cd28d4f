"""A small model in a loop of Hugging Face Accelerate with AcceleratedTask, for torchrun: `-m tests.integration.training_accelerate`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from synergy_launch.examples.plain_gpt import Gpt
from synergy_launch.examples.text import TextWindows
from synergy_launch.huggingface import AcceleratedTask

from tests.integration.training_batch import LR, TUNED, by_hand, noise_by_hand, tuned
from tests.integration.training_norms import SPEC, loss_by, rows_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--fsdp2", action="store_true")
    parser.add_argument("--hand", type=int, nargs="*", help="print the losses at these batches, by hand")
    parser.add_argument("--noise", action="store_true", help="print the noise scale of weights that stay, and by hand")
    told = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    if told.fsdp2:  # not by the argument: with that Accelerate takes FSDP2 on an accelerator only, and DDP on a CPU
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    torch.manual_seed(0)
    model = Gpt(SPEC)
    model, optimizer, schedule = accelerator.prepare(model, *tuned(model, 0.0 if told.noise else LR))
    with AcceleratedTask(
        accelerator, model, optimizer, scheduler=schedule, global_batch=TUNED, checkpoint=told.checkpoint
    ) as task:
        if told.noise:
            task.noise.decay = 0.99999  # all steps count alike
        for rows in task.batches(TextWindows(SPEC.seq), told.steps, collate=rows_of):
            task.step(loss_by(model, rows))
    if accelerator.is_main_process:
        found = {"schedule": schedule.scheduler.last_epoch, "samples": task.samples, "model": type(model).__name__}
        found |= {"hand": by_hand(told.hand)} if told.hand else {}
        found |= {"noise": [task.noise.value, noise_by_hand(task.samples)]} if told.noise else {}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
