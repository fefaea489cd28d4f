"""A small GPT-2 with random weights under Hugging Face's Trainer and Synergy, for torchrun: `-m tests.integration.training_trainer`.

Each rank writes which examples each of its steps has seen to OUTPUT/seen-RANK.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from synergy_launch.huggingface.trainer import SynergyCallback, apply_plan, resume_from
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

SEQ = 16


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Example i begins with i; what follows can be learnt."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        row = torch.tensor([i, *((3 * i + 5 * j) % 64 for j in range(1, SEQ))])
        return {"input_ids": row, "labels": row}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--global-batch", type=int, help="with apply_plan (default: without)")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--save-steps", type=int, default=10_000)
    told = parser.parse_args()
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=SEQ, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    )  # fmt: skip
    args = TrainingArguments(
        output_dir=str(told.output), max_steps=told.steps, learning_rate=3e-3, warmup_steps=4, logging_steps=1,
        per_device_train_batch_size=told.micro_batch, gradient_accumulation_steps=told.accumulation,
        use_cpu=not torch.cuda.is_available(),
        save_steps=told.save_steps, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    if told.global_batch:
        args = apply_plan(args, global_batch=told.global_batch)
    trainer = Trainer(model, args, train_dataset=Rows(told.examples), callbacks=[SynergyCallback()])
    seen = (told.output / f"seen-{os.environ.get('RANK', '0')}.jsonl").open("a")

    def note(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        print(json.dumps([trainer.state.global_step + 1, kwargs["input_ids"][:, 0].tolist()]), file=seen, flush=True)
        time.sleep(told.delay)

    model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train(resume_from_checkpoint=resume_from(told.output))


if __name__ == "__main__":
    main()
