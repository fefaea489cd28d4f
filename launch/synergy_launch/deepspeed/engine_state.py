"""The state of DeepSpeed's engine in a checkpoint, and on another number of ranks by its universal checkpoint.

DeepSpeed writes what each rank holds. On as many ranks it loads that itself; without ZeRO on any number. Else its program
ds_to_universal makes a universal checkpoint of it in a folder beside, which is removed once it is loaded. That one lacks buffers and
frozen parameters, and ZeRO 3 takes the first parameter group's settings for all of them: both are put right here.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from synergy_core.errors import UsageError

from synergy_launch.agent.checkpoint import Checkpoint, attempt, error_cause
from synergy_launch.agent.collectives import Collectives

_CONVERTER = "deepspeed.checkpoint.ds_to_universal"
_PREFIX = "universal_"  # folders beside the checkpoints; one that a kill left is removed at the next conversion
_LOOK_S = 0.2


class EngineState:
    """The state of an engine in a checkpoint. `read` and `load` are for all ranks together."""

    def __init__(self, engine: Any, ranks: Collectives) -> None:
        self._engine, self._ranks = engine, ranks

    def write(self, folder: Path) -> Mapping[str, Any]:
        """Write to `folder`; return the metadata that `load` needs. Where a file can't be written it raises once all ranks are through."""
        engine, files, errors = self._engine, self._engine.checkpoint_engine, list[str]()

        def collect_error(write: Callable[..., Any]) -> Callable[..., None]:
            return lambda *args, **kwargs: errors.append(attempt(lambda: write(*args, **kwargs))[1])

        # a rank that left save_checkpoint early would leave the others in its last collectives
        with (
            _replace_method(files, "save", collect_error(files.save)),
            _replace_method(engine, "_copy_recovery_script", collect_error(engine._copy_recovery_script)),
        ):
            engine.save_checkpoint(str(folder.parent), tag=folder.name, save_latest=False)
        if any(errors):
            raise OSError(next(error for error in errors if error))
        return {
            "kind": "deepspeed",
            "dp": self._ranks.world,
            "stage": self._engine.zero_optimization_stage(),
            "parameters": _digest(self._engine.module),
            "groups": [_settings(group) for group in self._engine.optimizer.param_groups],
        }

    def load(self, checkpoint: Checkpoint) -> str:
        """Load a checkpoint of any number of ranks; return what to tell of it, "" if nothing. Raises UsageError."""
        where, meta, stage = f"checkpoint {checkpoint.path}", checkpoint.meta, self._engine.zero_optimization_stage()
        if meta.get("kind") != "deepspeed":
            raise UsageError(where, "was not written by a run of DeepSpeed with Synergy", "name another folder")
        if meta["stage"] != stage:
            what = f"was written with ZeRO stage {meta['stage']}, the run has stage {stage}"
            raise UsageError(where, what, "the same stage, or another folder")
        if meta["parameters"] != _digest(self._engine.module):
            raise UsageError(where, "has other parameters than this model", "use its model, or another folder")
        if len(meta["groups"]) != len(self._engine.optimizer.param_groups):
            raise UsageError(
                where, "has other parameter groups than this optimizer", "as many groups, or another folder"
            )
        if stage == 0 or meta["dp"] == self._ranks.world:
            self._by_engine(where, checkpoint.path, universal=False)
            return ""
        self._check_shares(where)
        began = time.monotonic()
        with self._as_universal(where, checkpoint.path) as folder:
            spent_s = time.monotonic() - began
            self._by_engine(where, folder, universal=True)
        self._complete(checkpoint)
        was, now = meta["dp"], self._ranks.world
        return f"checkpoint of step {checkpoint.step} was converted from {was} to {now} ranks in {spent_s:.1f} s"

    def _by_engine(self, where: str, folder: Path, universal: bool) -> None:
        engine = self._engine
        # read at loading only, and only there is it known whether the checkpoint is a universal one
        before, engine._config.load_universal_checkpoint = engine._config.load_universal_checkpoint, universal
        # DeepSpeed globs the path as it is, and folders may have brackets in their names
        names = engine._get_all_ckpt_names
        with _replace_method(engine, "_get_all_ckpt_names", lambda path, tag: names(glob.escape(path), tag)):
            loaded, error = attempt(lambda: engine.load_checkpoint(str(folder.parent), tag=folder.name))
        engine._config.load_universal_checkpoint = before
        if self._ranks.maximum([0 if loaded and loaded[0] else 1])[0]:
            what = f"can't be loaded by DeepSpeed: {error or 'another rank has failed'}"
            raise UsageError(where, what, "use what it was made with, or another folder")

    def _check_shares(self, where: str) -> None:
        """Check that each rank's part of a group is more than padding.

        Otherwise DeepSpeed's ZeRO 1 and 2 load no universal checkpoint on that rank. Raises UsageError.
        """
        groups = getattr(self._engine.optimizer, "bit16_groups", [])
        empty = any(all(getattr(p, "_hp_mapping", None) is None for p in group) for group in groups)
        if self._ranks.maximum([int(empty)])[0]:
            what = f"a parameter group is too small to be shared out to {self._ranks.world} ranks"
            raise UsageError(where, what, "fewer ranks, or larger groups")

    @contextlib.contextmanager
    def _as_universal(self, where: str, folder: Path) -> Iterator[Path]:
        """Yield `folder` as a universal checkpoint, made by rank 0 while the others wait. Raises UsageError."""
        begun: _Conversion | None = None
        error = ""
        with contextlib.ExitStack() as stack:
            if self._ranks.rank == 0:
                begun, error = attempt(lambda: _begin(folder, stack))
            # many short collectives: a single one would run into its time limit on a large model
            while (failure := self._ranks.broadcast(begun.failure() if begun else error)) is None:
                time.sleep(_LOOK_S)
            if failure:
                what = f"can't be converted to {self._ranks.world} ranks: {failure}"
                raise UsageError(where, what, "room for two more copies of it, and DeepSpeed's ds_to_universal")
            target: Path = self._ranks.broadcast(begun.target if begun else None)
            yield target
            self._ranks.barrier()  # all have loaded it

    def _complete(self, checkpoint: Checkpoint) -> None:
        """Complete and correct what the universal checkpoint left out or mixed up."""
        optimizer, module = self._engine.optimizer, self._engine.module
        for group, saved_values in zip(optimizer.param_groups, checkpoint.meta["groups"], strict=True):
            group.update(
                {name: tuple(value) if isinstance(value, list) else value for name, value in saved_values.items()}
            )
        for state in optimizer.optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()  # ZeRO 3 loads one tensor, which every group would count up
        rest = dict(module.named_buffers())
        rest |= {name: p for name, p in module.named_parameters() if not p.requires_grad}
        if not rest:
            return
        file = sorted(checkpoint.path.glob("*mp_rank_00_model_states.pt"))[0]
        saved = torch.load(file, map_location="cpu", weights_only=False)["module"]
        with torch.no_grad():
            for name in rest.keys() & saved.keys():  # those not there are not persistent
                rest[name].copy_(saved[name])


@dataclass(frozen=True)
class _Conversion:
    """A run of DeepSpeed's conversion program on `target`, with its log."""

    process: subprocess.Popen[bytes]
    log: IO[str]
    target: Path

    def failure(self) -> str | None:
        """Return None if the conversion is not done yet, "" if it is done, else why it failed."""
        if not (code := self.process.poll()):
            return None if code is None else ""
        self.log.seek(0)
        return error_cause(RuntimeError(self.log.read()[-4000:]))


def _begin(folder: Path, stack: contextlib.ExitStack) -> _Conversion:
    """Start the conversion of `folder`, in a folder beside it; `stack` ends it and removes all that it has made."""
    for leftover in folder.parent.glob(f"{_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work_folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder.parent))
    stack.callback(shutil.rmtree, work_folder, ignore_errors=True)
    log = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))  # noqa: SIM115
    # it takes both paths for patterns, which these, seen from `work_folder`, are not; modules are found as they are here
    command = [sys.executable, "-P", "-m", _CONVERTER, "--inject_missing_state"]
    command += ["--input_folder", f"../{folder.name}", "--output_folder", folder.name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}
    # ignored across the exec: Slurm sends requests for a checkpoint to all processes of a step
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            command, cwd=work_folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    finally:
        signal.signal(signal.SIGUSR2, before)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return _Conversion(process, log, work_folder / folder.name)


@contextlib.contextmanager
def _replace_method(holder: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Put `function` in the place of `holder`'s method of that name."""
    setattr(holder, name, function)
    try:
        yield
    finally:
        delattr(holder, name)


def _digest(module: Any) -> str:
    """Return a digest of the names and shapes of all parameters."""
    shapes = [f"{name}{tuple(getattr(p, 'ds_shape', p.shape))}" for name, p in module.named_parameters()]
    return hashlib.blake2b("\n".join(shapes).encode(), digest_size=16).hexdigest()


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter group's numbers, such as its rate, as JSON keeps them."""
    numbers = (bool, int, float)
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in group.items()
        if isinstance(value, numbers) or (isinstance(value, tuple) and all(isinstance(v, numbers) for v in value))
    }
