"""Seconds and GB/s of checkpoints: in the foreground, beside training, and loading them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from synergy_core.records import ModelSpec, Plan

from tests.gpu import device, gpt


def _timed(call: Callable[[], Any]) -> float:
    device.settle()
    began = time.perf_counter()
    call()
    device.settle()
    return time.perf_counter() - began


def _rates(seconds: dict[str, float], size_bytes: int) -> dict[str, float]:
    found = {"gb": size_bytes / 1e9, **{f"{what}_s": value for what, value in seconds.items()}}
    return found | {f"{what}_gb_per_s": size_bytes / 1e9 / value for what, value in seconds.items() if what != "held"}


def plain(spec: ModelSpec, folder: Path, batch: int) -> dict[str, float]:
    """Of SynergyTask in one process; the last checkpoint stays in `folder`."""
    from synergy_launch import SynergyTask
    from synergy_launch.agent.checkpoint import step_folder

    seconds, size = _saved(spec, folder, batch)
    device.free_memory()
    model = gpt.make(spec)
    adam = gpt.adamw(model)
    made: list[Any] = []
    seconds["load"] = _timed(
        lambda: made.append(SynergyTask(model, adam, global_batch=batch, checkpoint=folder, checkpoint_interval=0))
    )
    if made[0].step_count != 2:
        raise RuntimeError(f"step {made[0].step_count} was loaded in place of 2")
    shutil.rmtree(step_folder(folder, 1))  # the disk is small
    return _rates(seconds, size)


def _saved(spec: ModelSpec, folder: Path, batch: int) -> tuple[dict[str, float], int]:
    """Seconds of saving after the first and the second step, and the bytes of one checkpoint."""
    from synergy_launch import SynergyTask

    data, model = gpt.RandomTokens(spec), gpt.make(spec)
    seconds: dict[str, float] = {}
    with SynergyTask(model, gpt.adamw(model), global_batch=batch, checkpoint=folder, checkpoint_interval=0) as task:
        ahead = task.batches(data, 1 << 30)

        def step() -> None:
            task.step(model(next(ahead).to(device.DEVICE)))

        saves = task.agent.checkpointer
        step()
        seconds["save"] = _timed(lambda: saves.checkpoint(task.step_count))
        step()
        # held: until training goes on; beside: until it is on disk
        seconds["held"] = _timed(lambda: saves.checkpoint(task.step_count, planned=False))
        seconds["beside"] = seconds["held"] + _timed(saves.settle)
        assert saves.store is not None
        return seconds, saves.store.size_bytes(task.step_count) or 0


def megatron(run: Any, folder: Path, remake: Callable[[Any], Any]) -> dict[str, float]:
    """Of a MegatronRun; `remake(checkpoint)` makes one that goes on from there, in the same process."""
    from synergy_launch.agent.background_save import BackgroundSave
    from synergy_launch.agent.checkpoint import Checkpoints

    run.follow(Plan())
    folder.mkdir(parents=True)
    seconds: dict[str, float] = {}
    store = Checkpoints(folder, run.ranks, keep=1)
    run.train_step()
    seconds["save"] = _timed(lambda: store.save(run.step, run.save))
    loss = run.train_step()
    background = BackgroundSave(store)
    seconds["held"] = _timed(lambda: background.begin(run.step, run.stage_save))
    seconds["beside"] = seconds["held"] + _timed(background.wait)
    at, size = run.step, store.size_bytes(run.step) or 0
    after = run.train_step()
    run.close()
    found = store.find().checkpoint
    assert found is not None and found.step == at, found
    made: list[Any] = []
    seconds["load"] = _timed(lambda: made.append(remake(found)))
    again = made[0].train_step()
    shutil.rmtree(folder)
    return _rates(seconds, size) | {"loss": loss, "next": after, "next_after_load": again}
