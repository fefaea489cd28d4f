"""Hugging Face's Trainer in a script that does not know of Synergy.

Every Trainer gets a SynergyCallback, and its batch stays what it was on the requested GPUs. After a restart of the job it goes on from the
newest checkpoint of the job, whatever the script says of `resume_from_checkpoint`; at the job's first start the script's own word counts.
A use of Trainer whose place in the data or whose checkpoint depends on the number of GPUs keeps its size, and one line says why.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from synergy_launch.agent.settings import ASKED_GPUS, read_number
from synergy_launch.agent.user_errors import exit_on_error

_OWN_BATCH = "_synergy_own_batch"  # attribute of TrainingArguments: the batch before the plan's


def hook_trainer(module: ModuleType) -> None:
    """Wrap `transformers.trainer`'s Trainer: its construction and `train`."""
    from synergy_launch.huggingface.trainer import SynergyCallback, apply_plan

    trainer_class: Any = module.Trainer
    original_init, original_train = trainer_class.__init__, trainer_class.train
    trained: set[str] = set()  # output folders whose training has begun in this process

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        arguments = arguments_of(original_init, self, *args, **kwargs)
        training, job = arguments.get("args"), os.environ.get("SLURM_JOB_ID", "")
        own = any(isinstance(callback, SynergyCallback) for callback in arguments.get("callbacks") or ())
        why = ""
        if training is not None and not own:
            why = size_obstacle(training)
            if not why:
                apply_plan(training, global_batch=_own_batch(training), job=job)
        original_init(self, *args, **kwargs)
        if not own:
            self.add_callback(SynergyCallback(own_size=why, job=job))

    @functools.wraps(original_train)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        ours = next((c for c in self.callback_handler.callbacks if isinstance(c, SynergyCallback)), None)
        folder = str(Path(self.args.output_dir).absolute())
        if ours is not None and ours.job and folder not in trained:
            newest = ours.newest(folder)
            resume_from_checkpoint = newest or resume_from_checkpoint
        trained.add(folder)
        return original_train(self, resume_from_checkpoint, *args, **kwargs)

    trainer_class.__init__, trainer_class.train = init, train


def arguments_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, without those that the function does not show.

    transformers 4 takes `tokenizer=` by a decorator whose signature lacks it.
    """
    signature = inspect.signature(function)
    visible_arguments = {name: value for name, value in kwargs.items() if name in signature.parameters}
    return dict(signature.bind_partial(*args, **visible_arguments).arguments)


def size_obstacle(args: Any) -> str:
    """Return why a run with these TrainingArguments can't go on at another size, or "" if it can."""
    for name, why in (
        ("fsdp", "FSDP's checkpoints are not proven to load on other GPUs"),
        ("deepspeed", "DeepSpeed's checkpoints load on as many GPUs alone"),
        ("dataloader_drop_last", "dataloader_drop_last: an epoch's length depends on the GPUs"),
        ("group_by_length", "group_by_length: the order of the examples depends on the GPUs"),
        ("auto_find_batch_size", "auto_find_batch_size: the batch is not known before"),
        ("ignore_data_skip", "ignore_data_skip: a restart begins the data again"),
        ("save_only_model", "save_only_model: a checkpoint has no optimizer"),
        ("num_generations", "its groups of generations depend on the GPUs"),
    ):
        if getattr(args, name, None):
            return why
    if getattr(args, "train_sampling_strategy", "random") not in ("random", "sequential"):
        return f"train_sampling_strategy={args.train_sampling_strategy}: the order of the examples depends on the GPUs"
    if getattr(getattr(args, "accelerator_config", None), "split_batches", False):
        return "split_batches: a batch of the data loader is that of all GPUs"
    return "several GPUs of one process" if getattr(args, "n_gpu", 1) > 1 else ""


def _own_batch(args: Any) -> int:
    """Return the batch that the script has on the requested GPUs."""
    batch = getattr(args, _OWN_BATCH, None)
    if batch is None:
        with exit_on_error(args.process_index):
            gpus = read_number(os.environ, ASKED_GPUS, int, 0) or args.world_size
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * gpus
        setattr(args, _OWN_BATCH, batch)
    return int(batch)
