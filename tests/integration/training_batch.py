"""A run whose batch moves under FSDP2 or on a mesh, and the same by hand; executed in the ranks of training_ranks.

torch is imported by the ranks only.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from synergy_launch.batch.data_order import SampleOrder
from synergy_launch.examples.text import TextWindows

from tests.integration.training_norms import SPEC, cut, loss_by, rows_of

TUNED = 8  # the batch that rate and decay are of
LR, DECAY = 5e-3, 0.5


def moved(kind: str, checkpoint: Path, steps: int) -> list[float]:
    """The loss of each step of this start, up to `steps` steps of the tuned batch. `kind` as of training_norms.cut."""
    from synergy_launch import SynergyTask

    mesh, model, pipeline, loss_from = cut(kind)
    (optimizer, falling), losses = tuned(model), []
    with SynergyTask(
        model, optimizer, global_batch=TUNED, checkpoint=checkpoint, checkpoint_interval=0, scheduler=falling, mesh=mesh,
        pipeline=pipeline, cp=pipeline is not None,
    ) as task:  # fmt: skip
        for rows in task.batches(TextWindows(SPEC.seq), steps, collate=rows_of):
            before = task.step_count
            task.step(loss_from(rows))
            if task.step_count > before:
                losses.append(float(task.agent.status["loss"]))
    return losses


def tuned(model: Any, rate: float = LR) -> tuple[Any, Any]:
    """Optimizer and schedule, as chosen for the tuned batch."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)


def by_hand(batches: list[int]) -> list[float]:
    """What the losses of `moved` must be, with one process and no Synergy: plain AdamW steps of these batches."""
    import torch
    from synergy_launch.examples.plain_gpt import Gpt

    torch.manual_seed(0)
    model = Gpt(SPEC)
    optimizer = torch.optim.AdamW(model.parameters())
    text, losses, seen = TextWindows(SPEC.seq), [], 0
    order = SampleOrder(len(text), 0)
    for batch in batches:
        factor = math.sqrt(batch / TUNED)
        optimizer.param_groups[0] |= {"lr": LR * (1 - seen // TUNED / 10) * factor, "weight_decay": DECAY * factor}
        loss = loss_by(model, rows_of([text[order.index(seen + i)] for i in range(batch)]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        seen += batch
    return losses


def noise_by_hand(samples: int) -> float:
    """At the first weights."""
    import torch
    from synergy_launch.examples.plain_gpt import Gpt

    from tests.integration.training_rows import noise_of

    torch.manual_seed(0)
    model, text, found = Gpt(SPEC), TextWindows(SPEC.seq), []
    order = SampleOrder(len(text), 0)
    for i in range(samples):
        gradients = torch.autograd.grad(loss_by(model, rows_of([text[order.index(i)]])), list(model.parameters()))
        found.append(gradients)
    return noise_of(found)
