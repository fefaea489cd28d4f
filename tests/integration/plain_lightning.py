"""A script with Lightning's Trainer as a user writes it, without a word of Synergy: `plain_lightning.py OUTPUT`.

Each rank notes which examples each step has seen in OUTPUT/seen-RANK.jsonl, and rank 0 the rates in OUTPUT/rates.jsonl.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

OUTPUT = Path(sys.argv[1])


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 104

    def __getitem__(self, i: int) -> Any:
        row = torch.randn(8, generator=torch.Generator().manual_seed(i))
        return i, row


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.seen = (OUTPUT / f"seen-{os.environ.get('RANK', '0')}.jsonl").open("a")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        which, rows = batch
        print(json.dumps([self.trainer.global_step + 1, which.tolist()]), file=self.seen, flush=True)
        time.sleep(float(os.environ.get("DELAY", "0")))
        return self.net(rows).square().mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.trainer.is_global_zero:
            with (OUTPUT / "rates.jsonl").open("a") as file:
                print(json.dumps([self.trainer.global_step, self.optimizers().param_groups[0]["lr"]]), file=file)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    OUTPUT.mkdir(exist_ok=True)
    module = Module()
    trainer = pl.Trainer(
        max_steps=20, devices=2, accelerator="cpu", default_root_dir=OUTPUT, logger=False, enable_progress_bar=False,
        enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(Rows(), batch_size=4, drop_last=True))
    if trainer.is_global_zero:
        (OUTPUT / "weights.json").write_text(json.dumps([p.flatten().tolist() for p in module.parameters()]))


if __name__ == "__main__":
    main()
