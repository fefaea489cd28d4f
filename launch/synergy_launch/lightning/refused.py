"""Checks for uses of Lightning's Trainer that do not go with Synergy, one line each.

Classes are known by their names, so Lightning is not imported.
"""

from __future__ import annotations

import inspect
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.records import Plan

_STRATEGIES = ("DDPStrategy", "SingleDeviceStrategy")
# callbacks that set the batch, the accumulation or the length of an epoch, which are the plan's
_CALLBACKS = ("GradientAccumulationScheduler", "BatchSizeFinder", "LearningRateFinder", "StochasticWeightAveraging")


def check_trainer(trainer: Any, module: Any, unit: Plan) -> None:
    """Check a Trainer that has its strategy, before anything is loaded. Raises UsageError."""
    strategy = type(trainer.strategy).__name__
    if strategy not in _STRATEGIES:
        what = f"strategy {strategy}, whose gradients and checkpoints are not those of DDP"
        raise UsageError("Trainer", what, "DDP or one process; or SynergyTask, which takes FSDP2")
    if getattr(trainer.strategy, "_model_averaging_period", None):
        what = "model_averaging_period: the replicas' weights are not the same"
        raise UsageError("Trainer", what, "leave it out")
    if not hasattr(trainer.fit_loop.epoch_loop, "restarted_on_train_batch_end"):
        # the forms of synergy_launch.lightning.progress are those that it tells apart
        raise UsageError("lightning", "this release goes on from a checkpoint in another way", "lightning 2.6 or newer")
    have = (trainer.world_size, trainer.accumulate_grad_batches)
    if have != (unit.dp, unit.micro_batches):
        what = f"{have[0]} processes and accumulate_grad_batches={have[1]} where the plan has {unit.dp} and {unit.micro_batches}"
        raise UsageError("Trainer", what, "Trainer(**synergy.trainer_arguments), under synergy-launch or torchrun")
    for name in ("limit_train_batches", "overfit_batches"):
        value = getattr(trainer, name)
        if value != (1.0 if name == "limit_train_batches" else 0.0):
            what = f"{name}={value} (or fast_dev_run) counts micro-batches, which are others at another dp"
            raise UsageError("Trainer", what, "leave it out")
    for callback in trainer.callbacks:
        if type(callback).__name__ in _CALLBACKS:
            raise UsageError("Trainer", f"{type(callback).__name__} sets what the plan sets", "leave it out")
    if "AsyncCheckpointIO" in _names(trainer.strategy.checkpoint_io):
        what = "AsyncCheckpointIO: a checkpoint counts before it is written"
        raise UsageError("Trainer", what, "leave it out")
    if not module.automatic_optimization:
        what = "manual optimization: the script steps by itself, so that the batch is not the plan's"
        raise UsageError("LightningModule", what, "automatic optimization, or SynergyTask")
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise UsageError("LightningModule", "training_step(dataloader_iter) takes its batches itself", "(batch)")


def check_optimizers(optimizers: list[Any], schedules: list[Any]) -> None:
    """Check Lightning's optimizers and its settings of schedules. Raises UsageError."""
    where = "configure_optimizers"
    if len(optimizers) != 1:
        raise UsageError(where, f"{len(optimizers)} optimizers", "one")
    if "LBFGS" in _names(optimizers[0]):
        raise UsageError(where, "LBFGS goes over a batch several times", "another optimizer")
    for schedule in schedules:
        if schedule.interval == "step" and schedule.frequency != 1:
            what = f"frequency={schedule.frequency} of a schedule by steps counts micro-batches"
            raise UsageError(where, what, "frequency 1")


def batch_obstacle(trainer: Any) -> str:
    """Return why neither noise nor another batch is possible in this Trainer; "" if they are."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return "fp16 scales the gradients" if scaler is not None else ""


def _names(thing: Any) -> list[str]:
    return [kind.__name__ for kind in type(thing).__mro__]
