"""A script with Hugging Face's Trainer as a user writes it, without a word of Synergy: `plain_trainer.py --output_dir DIR ...`.

Each rank notes which examples each step has seen in OUTPUT/seen-RANK.jsonl, and rank 0 the rates of its log in trainer_state.json.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

SEQ = 16


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 104

    def __getitem__(self, i: int) -> Any:
        row = torch.randint(256, (SEQ,), generator=torch.Generator().manual_seed(i))
        row[0] = i
        return {"input_ids": row, "labels": row}


def main() -> None:
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=SEQ, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=Rows())
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    seen = Path(args.output_dir, f"seen-{os.environ.get('RANK', '0')}.jsonl").open("a")  # noqa: SIM115

    def note(_module: Any, _args: Any, kwargs: Any) -> None:
        print(json.dumps([trainer.state.global_step + 1, kwargs["input_ids"][:, 0].tolist()]), file=seen, flush=True)
        time.sleep(float(os.environ.get("DELAY", "0")))

    model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    main()
