"""A training with SynergyTask whose loss spikes at some of its examples: in the ranks of training_ranks, and as a script of a job."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from synergy_core.records import Plan
from synergy_launch import SynergyTask
from synergy_launch.batch.data_order import SampleOrder, SkippedSamples
from synergy_launch.examples.text import TextWindows
from torch.nn.parallel import DistributedDataParallel

from tests.integration.training_ranks import SPEC

EXAMPLES, BATCH, INTERVAL = 100_000, 24, 80
FIRST, LAST = (
    200 * BATCH,
    215 * BATCH - 1,
)  # numbers, in the run's order, of the examples with wrong labels: steps 201 to 215


class Numbers(torch.utils.data.Dataset[Any]):
    """Example -> (its index, features, label)."""

    def __init__(self) -> None:
        order = SampleOrder(EXAMPLES)
        self.wrong = {order.index(number) for number in range(FIRST, LAST + 1)}

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        features = torch.randn(4, generator=draw)
        label = features.sum() + 0.3 * torch.randn((), generator=draw) + (20.0 if index in self.wrong else 0.0)
        return index, features, label.reshape(1)


def train(
    steps: int, seen: str, checkpoint: str = "", step_s: float = 0.0, skipped: tuple[tuple[int, int], ...] = ()
) -> None:
    """Train, and append the examples of each step to the file `seen` with this rank's number behind it.

    `skipped`: examples that are left out from the beginning.
    """
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(4, 1)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with (
        Path(f"{seen}{os.environ.get('RANK', '0')}").open("a") as log,
        SynergyTask(
            model, optimizer, global_batch=BATCH, checkpoint=checkpoint or None, checkpoint_interval=INTERVAL
        ) as task,
    ):
        if skipped:
            task.agent._spikes.skipped = SkippedSamples(skipped)
        log.write(json.dumps({"start": task.step_count}) + "\n")
        for indices, features, labels in task.batches(Numbers(), steps):
            log.write(json.dumps({"step": task.step_count + 1, "examples": indices.tolist()}) + "\n")
            log.flush()
            task.step(torch.nn.functional.mse_loss(model(features), labels))
            time.sleep(step_s)


def train_gpt(
    plan: Plan, steps: int, skipped: tuple[tuple[int, int], ...] = (), shift: tuple[int, int] = (0, 0)
) -> list[float]:
    """Return the losses of a run on megatron-core. `shift`: (first, by), the numbers from `first` on are moved in the script itself."""
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group

    text = TextWindows(SPEC.seq)
    ranks = start_process_group()
    run = MegatronRun(
        SPEC,
        plan,
        ranks,
        lambda n: text.sample(n + (shift[1] if n >= shift[0] else 0)),
        skipped=SkippedSamples(skipped),
    )
    return [run.train_step() for _ in range(steps)]


def trained_numbers(seen: Path, first: int, last: int) -> list[int]:
    """Return the numbers, in the run's order, of the examples of steps `first` to `last`; of a step made again, those of the last time."""
    order = SampleOrder(EXAMPLES)
    numbers = {order.index(n): n for n in range(2 * last * BATCH)}
    found: list[int] = []
    for path in seen.parent.glob(f"{seen.name}*"):
        steps: dict[int, list[int]] = {}
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if "start" in entry:
                steps = {step: examples for step, examples in steps.items() if step <= entry["start"]}
            else:
                steps.setdefault(entry["step"], []).extend(entry["examples"])
        found += [numbers[index] for step in range(first, last + 1) for index in steps[step]]
    return sorted(found)


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2], step_s=float(sys.argv[3]))
