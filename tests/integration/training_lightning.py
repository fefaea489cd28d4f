"""A small byte model under Lightning's Trainer and Synergy, for torchrun: `-m tests.integration.training_lightning`.

Each rank writes which examples each of its steps has seen to OUTPUT/seen-RANK.jsonl, and rank 0 what hooks were called, with the step,
to OUTPUT/hooks.jsonl. Rank 0 answers in OUTPUT/answer.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

if os.environ.get("SYNERGY_TEST_LIGHTNING_NAME") == "pytorch_lightning":
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl
from synergy_launch.examples.ddp import ByteModel
from synergy_launch.lightning import SynergyCallback

from tests.integration.seen_examples import seen_in
from tests.integration.training_rows import Rows, noise_of

SEQ = 16


def loss_of(net: Any, rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def network() -> Any:
    torch.manual_seed(1)
    return ByteModel(16, 1)


def rate_at(step: int, steps: int) -> float:
    """The schedule's factor on the rate, of the step after `step`."""
    return min((step + 1) / 4, (steps - step) / max(1, steps - 3))


class Module(pl.LightningModule):  # type: ignore[misc]
    """`told` as main() parses it."""

    def __init__(self, told: argparse.Namespace) -> None:
        super().__init__()
        self.net, self.told = network(), told
        self.seen = (told.output / f"seen-{os.environ.get('RANK', '0')}.jsonl").open("a")
        self.automatic_optimization = told.wrong != "manual"

    def training_step(self, rows: torch.Tensor, batch_idx: int) -> Any:
        print(json.dumps([self.trainer.global_step + 1, rows[:, 0].tolist()]), file=self.seen, flush=True)
        time.sleep(self.told.delay)
        loss = loss_of(self.net, rows)
        self.log("loss", loss, prog_bar=False)
        return loss

    def validation_step(self, rows: torch.Tensor, batch_idx: int) -> None:
        self.log("checked", loss_of(self.net, rows), sync_dist=True)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Killed, once the checkpoint of a step is there: callbacks come before this."""
        if (self.told.output / "checkpoints" / f"step_{self.told.dies:08d}" / "complete").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """As a script's own averages of the weights, which no resume does once more. Stops as Trainer(max_time=...) may."""
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0:
            (self.told.output / "ended").write_text(str(self.trainer.global_step))
        self.trainer.should_stop |= batch_idx + 1 == self.told.stops

    def _hook(self, name: str) -> None:
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            with (self.told.output / "hooks.jsonl").open("a") as file:
                print(json.dumps([name, self.trainer.current_epoch, self.trainer.global_step]), file=file)

    def on_train_epoch_start(self) -> None:
        self._hook("epoch")

    def on_validation_epoch_end(self) -> None:
        self._hook("validated")

    def on_train_epoch_end(self) -> None:
        self._hook("epoch ends")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.told.learning_rate, weight_decay=0.0)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
        frequency = 2 if self.told.wrong == "frequency" else 1
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": frequency},
        }


class Stay(pl.Callback):  # type: ignore[misc]
    """Where the weights stay, each step's noise counts as much as the last one's."""

    def __init__(self, ours: SynergyCallback) -> None:
        self.ours = ours

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if module.told.learning_rate == 0 and self.ours.accumulation is not None:
            self.ours.accumulation.noise.decay = 0.99999


def by_hand(told: argparse.Namespace, ends: list[int]) -> torch.Tensor:
    """The weights after plain AdamW steps on the examples that were seen, in batches that end with these of the run's steps."""
    seen, net, rows, began = seen_in(told.output), network(), Rows(told.examples, SEQ + 1), 0
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.0, weight_decay=0.0)
    for end in ends:
        loss = loss_of(net, torch.stack([rows[i] for step in range(began + 1, end + 1) for i in seen[step]]))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(net.parameters(), told.clip)
        for group in optimizer.param_groups:
            group["lr"] = told.learning_rate * rate_at(end - 1, told.steps) * math.sqrt(end - began)
        optimizer.step()
        optimizer.zero_grad()
        began = end
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def noise_by_brute_force(examples: int) -> float:
    """At the first weights."""
    net, rows = network(), Rows(examples, SEQ + 1)
    losses = (loss_of(net, rows[i][None]) for i in range(examples))
    return noise_of([torch.autograd.grad(loss, list(net.parameters())) for loss in losses])


def arguments_of(told: argparse.Namespace) -> dict[str, Any]:
    """Those of Trainer that are not Synergy's."""
    more: dict[str, Any] = {"max_epochs": told.epochs} if told.epochs else {"max_steps": told.steps}
    if told.validate:
        more |= {"val_check_interval": told.validate, "num_sanity_val_steps": 1}
    if told.wrong == "limit":
        more["limit_train_batches"] = 4
    if told.wrong == "fp16":
        more["plugins"] = [pl.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]
    return more


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--epochs", type=int, help="in place of --steps")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--interval", type=int, default=0)
    parser.add_argument("--dies", type=int, default=0, help="once the checkpoint of this step is there")
    parser.add_argument("--stops", type=int, default=0, help="after so many micro-batches of an epoch")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--validate", type=float, default=0.0, help="val_check_interval")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--answer", choices=["weights", "noise"])
    parser.add_argument("--every", type=int, default=0, help="of ModelCheckpoint's own, in steps")
    parser.add_argument("--wrong", choices=["manual", "frequency", "limit", "fp16", "loader", "resume"])
    parser.add_argument("--from", dest="path", help="a checkpoint")
    told = parser.parse_args()
    told.output.mkdir(exist_ok=True)
    logging.getLogger(pl.__name__).setLevel(logging.ERROR)
    synergy = SynergyCallback(
        told.output / "checkpoints", global_batch=told.global_batch, checkpoint_interval=told.interval
    )
    own = [pl.callbacks.ModelCheckpoint(told.output, "{step}", every_n_train_steps=told.every, save_top_k=-1)]
    own = own if told.every else []
    trainer = pl.Trainer(
        accelerator="cuda" if torch.cuda.is_available() else "cpu", callbacks=[synergy, Stay(synergy), *own], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=bool(own), gradient_clip_val=told.clip or None,
        **arguments_of(told) | synergy.trainer_arguments,
    )  # fmt: skip
    module = Module(told)
    ours = synergy.loader(Rows(told.examples, SEQ + 1), num_workers=told.workers)
    data = torch.utils.data.DataLoader(Rows(told.examples, SEQ + 1), 8) if told.wrong == "loader" else ours
    checks = torch.utils.data.DataLoader(Rows(8, SEQ + 1), 4) if told.validate else None
    path = None if told.wrong == "resume" else told.path or synergy.resume_from()
    trainer.fit(module, data, checks, ckpt_path=path, weights_only=True)
    if not told.answer or trainer.global_rank:
        return
    if told.answer == "noise":
        assert synergy.accumulation is not None
        answer = [synergy.accumulation.noise.value, noise_by_brute_force(told.examples)]
    else:
        log = Path(os.environ["SYNERGY_RUN_DIR"]).parent / "steps.jsonl"
        expected = by_hand(told, [json.loads(line)["step"] for line in log.read_text().splitlines()])
        answer = [float((torch.cat([p.detach().flatten() for p in module.net.parameters()]) - expected).abs().mean())]
    (told.output / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
