"""Lightning's Trainer in a script that does not know of Synergy.

Its processes are the job's, and the first `fit` gets a SynergyCallback, its batch on the requested GPUs, and a loader of the same examples
whose place does not depend on the number of GPUs. After a restart of the job `fit` goes on from the newest checkpoint of the job. A use
that Synergy can't follow runs as it is written, and one line says why.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from synergy_core.errors import SynergyError

from synergy_launch.agent.settings import ASKED_GPUS, read_number


def hook_lightning(module: ModuleType) -> None:
    """Wrap the Trainer of `lightning.pytorch.trainer.trainer`, or of pytorch_lightning's: its construction and `fit`."""
    trainer_class: Any = module.Trainer
    original_init, original_fit = trainer_class.__init__, trainer_class.fit
    is_first = True

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        world, here = _number("WORLD_SIZE"), _number("LOCAL_WORLD_SIZE")
        if not any(_is_ours(callback) for callback in _as_list(kwargs.get("callbacks"))):
            kwargs.update(devices=here, num_nodes=world // here)
        original_init(self, *args, **kwargs)

    @functools.wraps(original_fit)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        if any(_is_ours(callback) for callback in self.callbacks):
            return original_fit(self, *args, **kwargs)
        bound = inspect.signature(original_fit).bind(self, *args, **kwargs)
        why = "fit is called a second time" if not is_first else _prepare(self, bound.arguments)
        is_first = False
        if why and self.is_global_zero:
            print(f"synergy: the job keeps its size: {why}", flush=True)
        return original_fit(*bound.args, **bound.kwargs)

    trainer_class.__init__, trainer_class.fit = init, fit


def _prepare(trainer: Any, arguments: dict[str, Any]) -> str:
    """Put Synergy's callback, loader and checkpoint into the arguments of `fit`. Return why that can't be, or ""."""
    from synergy_launch.lightning import callback as ours
    from synergy_launch.lightning.refused import check_trainer

    loader: Any = arguments.get("train_dataloaders")
    job = os.environ.get("SLURM_JOB_ID", "")
    why = loader_obstacle(loader)
    if why:
        return why
    own = loader.batch_size * trainer.accumulate_grad_batches * (_number(ASKED_GPUS) or _number("WORLD_SIZE"))
    base = os.environ.get("SYNERGY_CHECKPOINT_DIR", "") or trainer.default_root_dir
    folder = Path(base).absolute() / f"synergy-{job or 'run'}"  # of this job alone
    with contextlib.suppress(OSError):
        folder.parent.mkdir(exist_ok=True)  # only this one: a folder above it that is missing is a wrong path
    synergy = ours.SynergyCallback(folder, global_batch=own, micro_batch=loader.batch_size, is_own_folder=True)
    before, trainer.accumulate_grad_batches = (
        trainer.accumulate_grad_batches,
        synergy.trainer_arguments["accumulate_grad_batches"],
    )
    newest = synergy.resume_from()
    try:
        check_trainer(trainer, arguments["model"], synergy.unit)
        if arguments.get("ckpt_path") is not None and newest is None:
            return "ckpt_path: the place in the data of another run's checkpoint is not known"
    except SynergyError as error:
        trainer.accumulate_grad_batches = before
        return str(error)
    options = {
        name: getattr(loader, name) for name in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    }
    # Lightning itself shuffles the training data of several processes
    shuffles = type(loader.sampler).__name__ == "RandomSampler" or own > loader.batch_size * before
    arguments["train_dataloaders"] = synergy.loader(loader.dataset, shuffle_by_synergy=shuffles, **options)
    arguments["ckpt_path"] = newest
    trainer.callbacks.insert(0, synergy)
    return ""


def loader_obstacle(loader: Any) -> str:
    """Return why the examples of a loader can't be numbered, or "" if they can."""
    if loader is None:
        return "its training data comes from a data module or a hook, not from a DataLoader in fit(...)"
    if type(loader).__name__ != "DataLoader" or getattr(loader, "batch_size", None) is None:
        return (
            f"its training data is a {type(loader).__name__} with batches of its own, not a DataLoader with batch_size"
        )
    if not hasattr(loader.dataset, "__len__") or not hasattr(loader.dataset, "__getitem__"):
        return "its data set has no examples by number"
    sampler = type(loader.sampler).__name__
    if sampler == "SequentialSampler" or (
        sampler == "RandomSampler"
        and not loader.sampler.replacement
        and loader.sampler.num_samples == len(loader.dataset)
    ):
        return ""
    return f"its order comes from {sampler}"


def _number(name: str) -> int:
    return int(read_number(os.environ, name, int, 0)) or (0 if name == ASKED_GPUS else 1)


def _as_list(callbacks: Any) -> list[Any]:
    return callbacks if isinstance(callbacks, list) else [callbacks]


def _is_ours(callback: Any) -> bool:
    return any(kind.__module__ == "synergy_launch.lightning.callback" for kind in type(callback).__mro__)
