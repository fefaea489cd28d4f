"""The state of DeepSpeed's engine in a checkpoint, and on another number of ranks by its universal checkpoint.

DeepSpeed writes what each rank holds. On as many ranks it loads that itself; without ZeRO on any number. Else its program
ds_to_universal makes a universal checkpoint of it in a folder beside, which is removed once it is loaded. That one lacks buffers and
frozen parameters, and ZeRO 3 takes the first parameter group's settings for all of them: both are put right here.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from synergy_launch.agent.checkpoint import Checkpoint, attempt, reason
from synergy_launch.agent.collectives import Collectives
from synergyd.errors import UsageError

_CONVERTER = "deepspeed.checkpoint.ds_to_universal"
_PREFIX = "universal_"  # of folders beside the checkpoints; one that a kill left is removed at the next conversion
_LOOK_S = 0.2


class EngineState:
    """`read` and `load` are for all ranks together."""

    def __init__(self, engine: Any, ranks: Collectives) -> None:
        self._engine, self._ranks = engine, ranks

    def write(self, folder: Path) -> Mapping[str, Any]:
        """Writes to `folder`; the metadata that `load` needs."""
        self._engine.save_checkpoint(str(folder.parent), tag=folder.name, save_latest=False)
        return {
            "kind": "deepspeed",
            "dp": self._ranks.world,
            "stage": self._engine.zero_optimization_stage(),
            "parameters": _digest(self._engine.module),
            "groups": [_settings(group) for group in self._engine.optimizer.param_groups],
        }

    def load(self, checkpoint: Checkpoint) -> str:
        """From a checkpoint of any number of ranks; what to tell of it, "" if nothing. Raises UsageError."""
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
        with self._converted(where, checkpoint.path) as folder:
            spent_s = time.monotonic() - began
            self._by_engine(where, folder, universal=True)
        self._complete(checkpoint)
        was, now = meta["dp"], self._ranks.world
        return f"checkpoint of step {checkpoint.step} was converted from {was} to {now} ranks in {spent_s:.1f} s"

    def _by_engine(self, where: str, folder: Path, universal: bool) -> None:
        engine = self._engine
        # read at loading only, and only there is it known whether the checkpoint is a universal one
        before, engine._config.load_universal_checkpoint = engine._config.load_universal_checkpoint, universal
        loaded, error = attempt(lambda: engine.load_checkpoint(str(folder.parent), tag=folder.name))
        engine._config.load_universal_checkpoint = before
        if self._ranks.maximum([0 if loaded and loaded[0] else 1])[0]:
            what = f"can't be loaded by DeepSpeed: {error or 'another rank has failed'}"
            raise UsageError(where, what, "use what it was made with, or another folder")

    def _check_shares(self, where: str) -> None:
        """DeepSpeed's ZeRO 1 and 2 load no universal checkpoint on a rank whose part of a group is nothing but padding."""
        groups = getattr(self._engine.optimizer, "bit16_groups", [])
        empty = any(all(getattr(p, "_hp_mapping", None) is None for p in group) for group in groups)
        if self._ranks.maximum([int(empty)])[0]:
            what = f"a parameter group is too small to be shared out to {self._ranks.world} ranks"
            raise UsageError(where, what, "fewer ranks, or larger groups")

    @contextlib.contextmanager
    def _converted(self, where: str, folder: Path) -> Iterator[Path]:
        """`folder` as a universal checkpoint, made by rank 0 while the others wait. Raises UsageError."""
        target: Path | None = None
        log = process = None
        if self._ranks.rank == 0:
            for left in folder.parent.glob(f"{_PREFIX}*"):
                shutil.rmtree(left, ignore_errors=True)
            target = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder.parent), folder.name)
            command = [sys.executable, "-m", _CONVERTER, "--inject_missing_state"]
            command += ["--input_folder", str(folder), "--output_folder", str(target)]
            log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed below
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            # many short collectives: a single one would run into its time limit on a large model
            while (code := self._ranks.broadcast(process.poll() if process else None)) is None:
                time.sleep(_LOOK_S)
            said = ""
            if code and log is not None:
                log.seek(0)
                said = reason(RuntimeError(log.read()[-4000:]))
            said, target = self._ranks.broadcast((said, target))
            if code:
                what = f"can't be converted to {self._ranks.world} ranks: {said}"
                raise UsageError(where, what, "room for two more copies of it, and DeepSpeed's ds_to_universal")
            assert target is not None
            yield target
            self._ranks.barrier()  # all have loaded it
        finally:
            if process is not None and log is not None and target is not None:
                process.kill()
                process.wait()
                log.close()
                shutil.rmtree(target.parent, ignore_errors=True)

    def _complete(self, checkpoint: Checkpoint) -> None:
        """What the universal checkpoint left out or mixed up."""
        optimizer, module = self._engine.optimizer, self._engine.module
        for group, kept in zip(optimizer.param_groups, checkpoint.meta["groups"], strict=True):
            group.update({name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()})
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


def _digest(module: Any) -> str:
    """Of the names and shapes of all parameters."""
    shapes = [f"{name}{tuple(getattr(p, 'ds_shape', p.shape))}" for name, p in module.named_parameters()]
    return hashlib.blake2b("\n".join(shapes).encode(), digest_size=16).hexdigest()


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group's numbers, such as its rate, as JSON keeps them."""
    numbers = (bool, int, float)
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in group.items()
        if isinstance(value, numbers) or (isinstance(value, tuple) and all(isinstance(v, numbers) for v in value))
    }
