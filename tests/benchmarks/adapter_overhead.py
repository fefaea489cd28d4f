"""What an adapter adds to a step: the median CPU time of a step with it against the same loop without, in one process.

    [SYNERGY_TEST_HUGGINGFACE=FOLDER] [SYNERGY_TEST_LIGHTNING=FOLDER] python -m tests.benchmarks.adapter_overhead [--adapter lightning ...]

A GPT-2 of 4 layers and width 256 (with Lightning torch's own encoder of that size), 8 sequences of 128 tokens in two
micro-batches, AdamW. A run of `--steps` steps with it and one
without make a pair, so that a change of the machine's load meets both; what is printed is the median over the pairs. transformers and
accelerate are looked for as in tests/integration/test_training_huggingface.py, lightning as in test_training_lightning.py there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

sys.path += filter(None, [os.environ.get(f"SYNERGY_TEST_{name}", "") for name in ("HUGGINGFACE", "LIGHTNING")])
SEQ, BATCH, MICRO = 128, 8, 4


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        row = torch.tensor([(3 * i + 5 * j) % 64 for j in range(SEQ)])
        return {"input_ids": row, "labels": row}


def gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=SEQ, n_embd=256, n_layer=4, n_head=4))


def plain(steps: int) -> list[float]:
    """A loop by hand."""
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    ahead = iter(torch.utils.data.DataLoader(Rows(), batch_size=MICRO))
    ends = [time.process_time()]
    for _ in range(steps):
        for _ in range(BATCH // MICRO):
            (model(**next(ahead)).loss / (BATCH // MICRO)).backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.process_time())
    return ends


def task(steps: int, accelerate: bool = False) -> list[float]:
    """The same with SynergyTask."""
    from synergy_launch import SynergyTask
    from synergy_launch.huggingface import AcceleratedTask

    made: Callable[..., Any] = SynergyTask
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    if accelerate:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        given = accelerator.prepare(model, optimizer)
        made = lambda *_, **more: AcceleratedTask(accelerator, *given, **more)  # noqa: E731
    with made(model, optimizer, global_batch=BATCH, micro_batch=MICRO) as run:
        ends, count = [time.process_time()], 0
        for rows in run.batches(Rows(), steps):
            run.step(model(**rows).loss)
            if run.step_count > count:
                count = run.step_count
                ends.append(time.process_time())
    return ends


def trainer(steps: int, ours: bool = True) -> list[float]:
    from synergy_launch.huggingface.trainer import SynergyCallback, apply_plan
    from transformers import Trainer, TrainerCallback, TrainingArguments

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.process_time())

    with tempfile.TemporaryDirectory() as name:
        args = TrainingArguments(
            name, max_steps=steps, per_device_train_batch_size=MICRO, gradient_accumulation_steps=BATCH // MICRO,
            use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
            logging_steps=1000,
        )  # fmt: skip
        args = apply_plan(args, global_batch=BATCH) if ours else args
        Trainer(gpt(), args, train_dataset=Rows(), callbacks=[*([SynergyCallback()] if ours else []), Clock()]).train()
    return ends


def lightning(steps: int, ours: bool = True) -> list[float]:
    import lightning.pytorch as pl
    from synergy_launch.lightning import SynergyCallback

    ends: list[float] = []

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, 0.1, batch_first=True)
            self.net = torch.nn.Sequential(
                torch.nn.Embedding(256, 256), torch.nn.TransformerEncoder(layer, 4), torch.nn.Linear(256, 256)
            )

        def training_step(self, rows: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            logits = self.net(rows["input_ids"])
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows["labels"].flatten())

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx % 2:
                ends.append(time.process_time())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )
    synergy = SynergyCallback(global_batch=BATCH, micro_batch=MICRO)
    more: dict[str, Any] = {"accumulate_grad_batches": BATCH // MICRO, "devices": 1}
    more = {**synergy.trainer_arguments, "callbacks": [synergy]} if ours else more
    data = synergy.loader(Rows()) if ours else torch.utils.data.DataLoader(Rows(), batch_size=MICRO)
    pl.Trainer(accelerator="cpu", max_steps=steps, **quiet, **more).fit(Module(), data)
    return ends


ADAPTERS: dict[str, tuple[Callable[[int], list[float]], Callable[[int], list[float]]]] = {
    "task": (task, plain),
    "accelerate": (lambda steps: task(steps, accelerate=True), plain),
    "lightning": (lightning, lambda steps: lightning(steps, ours=False)),
    "trainer": (trainer, lambda steps: trainer(steps, ours=False)),
}


def _median_s(loop: Callable[[int], list[float]], steps: int) -> float:
    """Processor time of a step of one run."""
    real, sys.stdout = sys.stdout, sys.stderr  # the agent's own lines
    try:
        ends = loop(steps)
    finally:
        sys.stdout = real
    return statistics.median(b - a for a, b in pairwise(ends[2:]))  # the first ones allocate


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", choices=ADAPTERS, action="append", help="default: all")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in args.adapter or ADAPTERS:
        pairs = []
        for turn in range(args.turns):
            # which of the two comes first changes from turn to turn
            order = (0, 1) if turn % 2 else (1, 0)
            took = {which: _median_s(ADAPTERS[name][which], args.steps) for which in order}
            pairs.append((took[0], took[1]))
        ours, without = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
        more = sorted(a / b - 1 for a, b in pairs)
        print(
            f"{name:<12}{ours:8.1f} ms, without {without:8.1f} ms: {statistics.median(more):+.2%} in the median of {len(more)} pairs "
            f"({more[0]:+.2%} to {more[-1]:+.2%}), load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
