"""Pipeline parallelism: a step's micro-batches go through the stages of a model, by the schedules of torch.distributed.pipelining.

    blocks = stage_blocks(12, mesh)  # of this rank's stage
    pipeline = Pipeline(model, mesh, loss_function)  # `model`: those blocks
    with SynergyTask(model, optimizer, global_batch=64, mesh=mesh, pipeline=pipeline) as task:
        for inputs, labels in task.batches(dataset, steps=1000):
            task.step(pipeline(inputs, labels))

The loop is the same on a mesh without pp.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from synergy_core.errors import UsageError
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.pytorch.mesh import PP, dimension_rank, dimension_size

Loss = Callable[[Any, Any], torch.Tensor]


class Pipeline:
    """A rank's stage of a model, and how a step goes through all of them.

    `model` is the stage's part of the model, after fully_shard: the first stage's takes the inputs of a micro-batch, each other one what
    the stage before it gives. Its parameters have the names that they have in the whole model, so that checkpoints fit any number of
    stages. `loss(output, labels)` is the mean loss of a micro-batch. On a mesh without pp `model` is the whole one.
    """

    def __init__(self, model: torch.nn.Module, mesh: DeviceMesh | None, loss: Loss) -> None:
        self.model, self.stage, self.stages = model, dimension_rank(mesh, PP), dimension_size(mesh, PP)
        self.group = mesh.get_group(PP) if mesh is not None and self.stages > 1 else None
        self._loss = loss
        self._schedule: Schedule1F1B | ScheduleGPipe | None = None
        self._more: dict[str, Any] = {}

    def follow(self, micro_batches: int) -> None:
        """Use so many micro-batches a step from the next step on. SynergyTask calls it."""
        if self.group is None:
            return
        device = next(self.model.parameters()).device
        stage = PipelineStage(self.model, self.stage, self.stages, device, group=self.group)
        kind = Schedule1F1B if micro_batches >= self.stages else ScheduleGPipe  # fewer can't keep all stages busy
        self._schedule = kind(stage, micro_batches, loss_fn=self._loss)
        # without it the last stage keeps the logits of all micro-batches; older torch has no such argument
        parameters = inspect.signature(self._schedule.step).parameters
        self._more = {"return_outputs": False} if "return_outputs" in parameters else {}

    def __call__(self, inputs: Any, labels: Any) -> torch.Tensor:
        """Return what SynergyTask.step takes, from what SynergyTask.batches gave.

        Without pp this is the loss of a micro-batch, whose backward is still to come. With pp `inputs` and `labels` are those of all
        micro-batches of a step, cut along their first dimension; forward and backward of all are done then, and the answer is their mean
        loss on the last stage, 0 on the others, which do not know it.
        """
        if self.group is None:
            return self._loss(self.model(inputs), labels)
        if self._schedule is None:
            with exit_on_error():
                raise UsageError("Pipeline", "SynergyTask does not know it", "SynergyTask(..., pipeline=pipeline)")
        first, last = self.stage == 0, self.stage == self.stages - 1
        losses: list[torch.Tensor] | None = [] if last else None
        self._schedule.step(*([inputs] if first else []), target=labels if last else None, losses=losses, **self._more)
        return torch.stack(losses).detach().mean() if losses else torch.zeros(())


def stage_blocks(blocks: int, mesh: DeviceMesh | None) -> range:
    """Return those of a model's `blocks` that this rank's stage has: consecutive ones, equally many on each stage as far as possible.

    The stage is the first one where it starts at 0, the last where it stops at `blocks`. Ends with one line and code 2 where there are
    more stages than blocks.
    """
    stages = dimension_size(mesh, PP)
    with exit_on_error():
        if stages > blocks:
            raise UsageError("SYNERGY_PLAN_JSON", f"pp={stages} with a model of {blocks} blocks", f"at most {blocks}")
    return split_blocks(blocks, stages, dimension_rank(mesh, PP))


def split_blocks(blocks: int, stages: int, stage: int) -> range:
    """Return the part of `blocks` that `stage` has, of `stages` stages (at least one block each)."""
    each, more = divmod(blocks, stages)
    # the ends have the embedding and the logits besides
    longer = sorted(range(stages), key=lambda number: number in (0, stages - 1))[:more]
    first = stage * each + sum(number < stage for number in longer)
    return range(first, first + each + (stage in longer))
