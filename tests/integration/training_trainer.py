"""A small GPT-2 with random weights under Hugging Face's Trainer and Synergy, for torchrun: `-m tests.integration.training_trainer`.

Each rank writes which examples each of its steps has seen to OUTPUT/seen-RANK.jsonl. Rank 0 answers in OUTPUT/answer.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from synergy_launch.huggingface.trainer import SynergyCallback, apply_plan, resume_from
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from tests.integration.seen_examples import seen_in
from tests.integration.training_rows import Rows, noise_of

SEQ = 16


class Labelled(Rows):
    """Rows as Trainer takes them."""

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(i)
        return {"input_ids": row, "labels": row}


class AllStepsAlike(TrainerCallback):  # type: ignore[misc]  # no types where transformers is not installed
    """Where the weights stay, each step's noise counts as much as the last one's."""

    def __init__(self, ours: SynergyCallback) -> None:
        self.ours = ours

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.learning_rate == 0 and self.ours.accumulation is not None:
            self.ours.accumulation.noise.decay = 0.99999


def gpt() -> Any:
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=SEQ, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    )  # fmt: skip


def by_hand(told: argparse.Namespace, ends: list[int]) -> torch.Tensor:
    """The weights after plain AdamW steps on the examples that were seen, in batches that end with these of Trainer's steps."""
    seen, model, rows, began = seen_in(told.output), gpt(), Labelled(told.examples, SEQ), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    for end in ends:
        batch = [rows[i]["input_ids"] for step in range(began + 1, end + 1) for i in seen[step]]
        loss = model(input_ids=torch.stack(batch), labels=torch.stack(batch)).loss
        (loss * (SEQ - 1) / SEQ).backward()  # Trainer divides by the labels, of which the model does not use the first
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        way = min((end - 1) / 4, (told.steps - end + 1) / (told.steps - 4))
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * way * math.sqrt(end - began)
        optimizer.step()
        optimizer.zero_grad()
        began = end
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def noise_by_brute_force(examples: int) -> float:
    """At the first weights."""
    model, rows, found = gpt(), Rows(examples, SEQ), []
    for i in range(examples):
        row = rows[i][None]
        loss = model(input_ids=row, labels=row).loss
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    return noise_of(found)


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
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--answer", choices=["weights", "noise"])
    told = parser.parse_args()
    model = gpt()
    args = TrainingArguments(
        output_dir=str(told.output), max_steps=told.steps, learning_rate=told.learning_rate, warmup_steps=4, logging_steps=1,
        per_device_train_batch_size=told.micro_batch, gradient_accumulation_steps=told.accumulation,
        use_cpu=not torch.cuda.is_available(),
        save_steps=told.save_steps, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    if told.global_batch:
        args = apply_plan(args, global_batch=told.global_batch)
    callback = SynergyCallback()
    trainer = Trainer(model, args, train_dataset=Labelled(told.examples, SEQ), callbacks=[callback])
    seen = (told.output / f"seen-{os.environ.get('RANK', '0')}.jsonl").open("a")

    def note(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        print(json.dumps([trainer.state.global_step + 1, kwargs["input_ids"][:, 0].tolist()]), file=seen, flush=True)
        time.sleep(told.delay)

    model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.add_callback(AllStepsAlike(callback))
    trainer.train(resume_from_checkpoint=resume_from(told.output))
    if not told.answer or args.process_index:
        return
    if told.answer == "noise":
        assert callback.accumulation is not None
        answer = [callback.accumulation.noise.value, noise_by_brute_force(told.examples)]
    else:
        log = Path(os.environ["SYNERGY_RUN_DIR"]).parent / "steps.jsonl"
        expected = by_hand(told, [json.loads(line)["step"] for line in log.read_text().splitlines()])
        # the mean: the gradient of a key's bias is nothing but rounding, which Adam blows up
        answer = [float((torch.cat([p.detach().flatten() for p in model.parameters()]) - expected).abs().mean())]
    (told.output / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
