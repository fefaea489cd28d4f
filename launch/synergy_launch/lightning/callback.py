"""Synergy in PyTorch Lightning's Trainer, data parallel (DDP or one process).

    synergy = SynergyCallback("/shared/run1", global_batch=64, micro_batch=8)
    trainer = Trainer(max_steps=1000, callbacks=[synergy], **synergy.trainer_arguments)
    trainer.fit(model, synergy.loader(dataset), ckpt_path=synergy.resume_from())

One of Lightning's steps has `global_batch` examples for the whole run, on any number of ranks: in accumulate_grad_batches
micro-batches, which the plan says. So the step tells the place in the data, and Lightning's own counters follow at a resume
(synergy_launch.lightning.progress). The batch moves in multiples of it (synergy_launch.pytorch.accumulation).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from synergy_core.errors import UsageError
from synergy_core.exchange import EXACT
from synergy_core.records import Plan

from synergy_launch.agent.agent import Agent, Boundary
from synergy_launch.agent.checkpoint import FoundCheckpoint, latest_good
from synergy_launch.agent.collectives import Collectives, OneProcess, TorchCollectives
from synergy_launch.agent.settings import AgentSettings, check_degrees, check_plan, micro_batch, read_number
from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.batch.learning_rate import Following, choose_rule
from synergy_launch.lightning.loader import SampleLoader
from synergy_launch.lightning.progress import rewrite
from synergy_launch.lightning.refused import batch_obstacle, check_optimizers, check_trainer
from synergy_launch.pytorch.accumulation import Accumulation, round_batch
from synergy_launch.pytorch.device import device_memory, peak_memory
from synergy_launch.pytorch.kernels import detect_kernels
from synergy_launch.pytorch.rng_state import load_random, save_random

FILE = "lightning.ckpt"  # in the checkpoint's folder

with exit_on_error():
    try:
        if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
            from pytorch_lightning import Callback  # its classes are not those of `lightning`
        else:
            from lightning.pytorch import Callback
    except ImportError as _error:
        _what = f"lightning can't be imported ({_error})"
        raise UsageError("synergy_launch.lightning", _what, "pip install lightning") from None


class SynergyCallback(Callback):  # type: ignore[misc]  # no types where lightning is not installed
    """A callback that reports each step, and saves, waits and stops with all ranks together when it is asked to.

    `checkpoint` is the folder of checkpoints, before which SYNERGY_CHECKPOINT_DIR comes. `global_batch` (examples) is what
    learning rate and steps were chosen for, and the batch where no plan has chosen one, in micro-batches of up to `micro_batch`. All
    numbers of ranks must divide it; the batch may be a multiple of it, from one step to the next: rate and decay then follow
    `lr_rule` ("": the usual one of the optimizer). `seed` is that of the order of the examples. `checkpoint_interval` in steps, 0: on
    request and at the end, None: as often as loses least. `tokens_per_sample` turns samples into the tokens that are reported.
    `is_own_folder`: `checkpoint` comes before SYNERGY_CHECKPOINT_DIR.

    SIGTERM ends the process after a checkpoint with code 0, from inside `fit`; a mistake with one line and code 2.
    """

    def __init__(
        self,
        checkpoint: str | Path | None = None,
        *,
        global_batch: int,
        micro_batch: int | None = None,
        seed: int = 0,
        checkpoint_interval: int | None = None,
        tokens_per_sample: int = 1,
        lr_rule: str = "",
        is_own_folder: bool = False,
    ) -> None:
        self.agent: Agent | None = None
        self.accumulation: Accumulation | None = None  # None: the batch stays, and its noise is not measured
        with exit_on_error():
            settings = self._settings = AgentSettings.from_environment()
            Following(global_batch, lr_rule or "none")  # checks both
            self._unit = _unit(settings, global_batch, micro_batch)
            here = read_number(os.environ, "LOCAL_WORLD_SIZE", int, 1) or 1
            if settings.world % here:
                what = f"{here} processes on this node, of {settings.world}"
                raise UsageError("SynergyCallback", what, "as many on each node: Lightning knows no other")
        #: for Trainer
        self.trainer_arguments = {
            "devices": here,
            "num_nodes": settings.world // here,
            "accumulate_grad_batches": self._unit.micro_batches,
        }
        checkpoint_folder = Path(checkpoint).absolute() if checkpoint else None
        if is_own_folder:
            settings = self._settings = replace(settings, checkpoint_dir=checkpoint_folder)
        self._folder = settings.checkpoint_dir or checkpoint_folder
        self._rule, self._seed = lr_rule, seed
        self._interval, self._tokens_per_sample = checkpoint_interval, tokens_per_sample
        self._trainer: Any = None  # while it fits
        self._data: SampleLoader | None = None
        self._restored: Mapping[str, Any] = {}  # of the checkpoint that was loaded
        self._fresh = False  # training goes on before an epoch
        self._last = self._epoch_ends = True  # of the step under way: ends a batch, an epoch
        self._losses: list[torch.Tensor] = []  # of the step under way, where the batch stays
        self._due: Boundary | None = None  # to be acted on when a validation that comes first is over
        self._handle: Any = None

    # -- for the script ---------------------------------------------------------------------------------------------

    @property
    def unit(self) -> Plan:
        """Return the plan of one of Lightning's steps."""
        return self._unit

    def loader(self, dataset: Any, *, shuffle_by_synergy: bool = True, **options: Any) -> SampleLoader:
        """Return the training data, for `fit` or train_dataloader: examples of `dataset` (len and [index]) by their number in the run.

        Without `shuffle_by_synergy` they come in the data set's own order.

        `options` are a DataLoader's, such as num_workers. Ends with one line and code 2 where a batch or an order is among them.
        """
        with exit_on_error():
            seed = self._seed if shuffle_by_synergy else None
            return SampleLoader(dataset, self._unit, self._settings.rank, seed, self._samples, options)

    def resume_from(self) -> str | None:
        """Return the newest checkpoint that was finished, for `fit`; None: start afresh."""
        newest = FoundCheckpoint(None)
        if self._folder is not None and self._folder.is_dir():
            newest = latest_good(self._folder)
        if newest.note and self._settings.rank == 0:
            print(f"synergy: {newest.note}", flush=True)
        if newest.checkpoint is None:
            return None
        with exit_on_error():
            if newest.checkpoint.meta.get("kind") != "lightning":
                where = f"checkpoint {newest.checkpoint.path}"
                raise UsageError(where, "was not written under Lightning", "name another folder")
        return str(newest.checkpoint.path / FILE)

    # -- Lightning's hooks, in their order --------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if str(getattr(stage, "value", stage)) != "fit":
            return
        with exit_on_error(trainer.global_rank):
            check_trainer(trainer, pl_module, self._unit)
        self._trainer, self._restored, self._fresh, self._due = trainer, {}, False, None

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self._trainer is None:
            return  # for test or predict
        with exit_on_error(trainer.global_rank):
            state = (checkpoint.get("callbacks") or {}).get(self.state_key)
            where, unit = "fit: ckpt_path", self._unit
            if state is None:
                what = "it was written without SynergyCallback, so its place in the data is not known"
                raise UsageError(where, what, "synergy.resume_from(), or load_from_checkpoint for its weights alone")
            if state["unit"] != unit.global_batch:
                what = f"its steps have {state['unit']} examples, those of global_batch={unit.global_batch} others"
                raise UsageError(where, what, f"global_batch={state['unit']}, or another folder")
            if state["inside"]:
                what = "it was written inside a batch, whose gradients it has not"
                raise UsageError(where, what, "synergy.resume_from()")
            self._fresh = rewrite(checkpoint, state["micro_batches"], unit.micro_batches, state["epoch_steps"])

    def state_dict(self) -> dict[str, Any]:
        accumulation, plan = self.accumulation, self.agent.plan if self.agent is not None else self._unit
        return {
            "unit": self._unit.global_batch,
            "micro_batches": self._unit.micro_batches,
            "epoch_steps": self._data.steps if self._data is not None else 0,
            "inside": accumulation is not None and accumulation.is_inside_batch,
            "batch": [plan.global_batch, plan.micro_batch],
            "noise": accumulation.noise.state() if accumulation is not None else self._restored.get("noise"),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        with exit_on_error(trainer.global_rank):
            check_optimizers(trainer.optimizers, trainer.lr_scheduler_configs)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        step, unit, settings = int(trainer.global_step), self._unit, self._settings
        with exit_on_error(trainer.global_rank):
            data = trainer.train_dataloader
            if not isinstance(data, SampleLoader) or data.start != self._samples:
                raise UsageError("fit", "its training data is not synergy.loader(dataset)", "that one alone")
            self._data = data
            ranks: Collectives = TorchCollectives() if dist.is_available() and dist.is_initialized() else OneProcess()
            settings = replace(settings, accepts={**(settings.accepts or {}), "in_multiples": True})
            agent = Agent(settings, unit, ranks, peak_memory=peak_memory, device_memory=device_memory)
            agent.install_signals()  # after Lightning's own, which would leave without a checkpoint
            newest = agent.find_checkpoint(self._folder).checkpoint
            newest_step = newest.step if newest is not None else None
            most, least = ranks.maximum([step, (1 << 62) - step])
            if (newest_step is not None and newest_step != step) or most != (1 << 62) - least:
                what = f"{newest.path if newest else 'no checkpoint'} is the newest, but training starts at step {step}"
                raise UsageError("fit", what, "ckpt_path=synergy.resume_from(), or another folder")
        self.agent = agent
        if settings.exchange != EXACT:
            agent.note(f"gradients are exchanged exactly, not as {settings.exchange}: Lightning averages them itself")
        if _is_in_micro_batches(trainer.val_check_interval, data.steps):
            agent.note(
                f"val_check_interval={trainer.val_check_interval} counts micro-batches: other steps at another dp"
            )
        self._accumulate(trainer, pl_module)
        if newest is not None:
            load_random(newest.path, ranks)
        if self._fresh:
            trainer.fit_loop.restarting = False  # else Lightning runs an empty batch first, with its hooks
        agent.start(
            step,
            save=self._save,
            checkpoint_interval=self._interval,
            tokens=self._samples() * self._tokens_per_sample,
            base_batch=unit.global_batch if self.accumulation is not None else None,
            kernels=detect_kernels(pl_module, trainer.optimizers[0]),
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._act()
        accumulation, count = self.accumulation, self._unit.micro_batches
        if batch_idx % count == 0:
            assert self._data is not None
            self._epoch_ends = batch_idx // count + 1 == self._data.steps
            if accumulation is not None:
                ends = self._epoch_ends or trainer.global_step + 1 == trainer.max_steps
                self._last = ends or accumulation.steps_left <= 1
                accumulation.begin(self._last)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        if self.accumulation is not None:
            self.accumulation.restore()  # Lightning has taken the gradients away just before
            self.accumulation.add_loss(loss)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.accumulation is not None:
            self.accumulation.before_optimizer(self._last, self._epoch_ends)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        agent, accumulation, unit = self.agent, self.accumulation, self._unit
        assert agent is not None, "on_train_start comes first"
        if accumulation is None and isinstance(outputs, Mapping) and "loss" in outputs:
            self._losses.append(outputs["loss"].detach())
        if (batch_idx + 1) % unit.micro_batches or (accumulation is not None and not self._last):
            return
        total = self._total(trainer)
        boundary = agent.look(
            int(trainer.global_step),
            loss=accumulation.loss if accumulation is not None else self._loss(agent.ranks),
            tokens=self._samples() * self._tokens_per_sample,
            noise_scale=accumulation.noise.value if accumulation is not None else None,
            done=float(self._samples()),
            total=float(total) if total is not None else None,
            finite=accumulation is None or accumulation.finite,
        )
        changed = agent.take_batch(unit.global_batch) if accumulation is not None else None
        if changed is not None and accumulation is not None:
            accumulation.follow(changed)
            self._note_batch()
        self._due = boundary
        # at the next batch's start, so that this one's other hooks come first; a checkpoint leaves time for a validation before it
        if (boundary.stop or not boundary.save) and not self._has_next_batch(trainer):
            self._act()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._act()
        if self.agent is not None:
            self.agent.finish()
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._trainer = None

    # -- inside -----------------------------------------------------------------------------------------------------

    def _samples(self) -> int:
        """Return the number of examples seen so far."""
        assert self._trainer is not None, "its batches are for fit"
        return int(self._trainer.global_step) * self._unit.global_batch

    def _total(self, trainer: Any) -> int | None:
        """Return the examples of the whole run; None: without an end."""
        assert self._data is not None
        epochs = trainer.max_epochs
        limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
        limits += [epochs * self._data.steps] if epochs is not None and epochs >= 0 else []
        return min(limits) * self._unit.global_batch if limits else None

    def _loss(self, ranks: Collectives) -> float | None:
        """Return the mean loss over the step's micro-batches and all ranks; Lightning has divided each by their number."""
        losses, self._losses = self._losses, []
        if len(losses) != self._unit.micro_batches:
            losses = [torch.tensor(float("nan"))]
        mean = ranks.total([float(torch.stack(losses).sum())])[0] / ranks.world
        return mean if mean == mean else None

    def _accumulate(self, trainer: Any, module: Any) -> None:
        """Set up what measures the noise and moves the batch, where this Trainer allows it."""
        agent, unit, settings = self.agent, self._unit, self._settings
        assert agent is not None
        self._close()
        self._last = True
        launcher_plan = None if settings.own_batch else settings.plan
        why = batch_obstacle(trainer)
        if why or os.environ.get("SYNERGY_NOISE") == "0":
            if why:
                agent.note(f"the batch stays, and its noise is not measured: {why}")
            if launcher_plan is not None and launcher_plan.global_batch != unit.global_batch:
                agent.note(f"global batch {unit.global_batch} in place of the plan's {launcher_plan.global_batch}")
            return
        plan = round_batch(launcher_plan, unit) if launcher_plan is not None else unit
        if launcher_plan is None and settings.batch_range is not None and self._restored:
            plan = round_batch(
                replace(unit, global_batch=int(self._restored["batch"][0])), unit
            )  # the run's own choice
        agent.plan = plan
        agent.status.update(plan=asdict(plan))
        optimizer = trainer.optimizers[0]
        rule = choose_rule(optimizer, self._rule, noise_known=False)
        accumulation = Accumulation(
            module, optimizer, unit=unit, plan=plan, ranks=agent.ranks, rule=rule, whole=True,
            wrapped=trainer.strategy.model,
        )  # fmt: skip
        if self._restored.get("noise"):
            accumulation.noise.restore(dict(self._restored["noise"]))
        # before Lightning's schedules step, which go on from the tuned rates
        self._handle = optimizer.register_step_post_hook(lambda *_: accumulation.after_optimizer())
        self.accumulation = accumulation
        self._note_batch()
        if launcher_plan is not None and plan.global_batch != launcher_plan.global_batch:
            what = f"global batch {plan.global_batch} in place of the plan's {launcher_plan.global_batch}"
            agent.note(f"{what}: it is a multiple of {unit.global_batch}")

    def _note_batch(self) -> None:
        assert self.agent is not None and self.accumulation is not None
        words = self.accumulation.following.format_factors(self.agent.plan.global_batch, self.accumulation.noise.value)
        if words:
            self.agent.note(words)

    def _has_next_batch(self, trainer: Any) -> bool:
        """Return whether another batch of this epoch follows, with no validation before it: on all ranks alike."""
        loop = trainer.fit_loop
        if self._epoch_ends or trainer.global_step == trainer.max_steps:
            return False
        timed = getattr(trainer, "_val_check_time_interval", None) is not None  # each rank goes by its own clock
        return not timed and not loop.epoch_loop._should_check_val_fx(loop._data_fetcher)

    def _act(self) -> None:
        due, self._due = self._due, None
        if due is not None and self.agent is not None and not self.agent.act(due):
            raise SystemExit(0)

    def _save(self, folder: Path) -> Mapping[str, Any]:
        trainer, ranks = self._trainer, self.agent.ranks if self.agent is not None else OneProcess()
        micro, accumulation = trainer.fit_loop.epoch_loop.batch_progress.current.processed, self.accumulation
        if micro % self._unit.micro_batches or (accumulation is not None and accumulation.is_inside_batch):
            what = "it was stopped inside a batch, whose gradients no checkpoint has"
            raise UsageError("fit", what, "stop it at the end of an epoch, or by SIGTERM")
        # not Trainer.save_checkpoint, where the other ranks would wait for one that could not write
        trainer.strategy.save_checkpoint(trainer._checkpoint_connector.dump_checkpoint(False), folder / FILE)
        if ranks.rank == 0 and not (folder / FILE).is_file():
            raise FileNotFoundError(f"{type(trainer.strategy.checkpoint_io).__name__} has written no {FILE}")
        save_random(folder, ranks)
        return {"kind": "lightning", **self.state_dict()}

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self.accumulation is not None:
            self.accumulation.close()


def _is_in_micro_batches(interval: Any, steps: int) -> bool:
    """Return whether a val_check_interval is no whole number of an epoch's steps: Lightning then counts micro-batches."""
    if not isinstance(interval, float):
        return isinstance(interval, int)
    part = interval * steps
    return not math.isclose(part, max(1, int(part)))  # it rounds down


def _unit(settings: AgentSettings, global_batch: int, most: int | None) -> Plan:
    """Return the plan of one of Lightning's steps, in micro-batches of at most the plan's or `most` examples. Raises UsageError."""
    launcher_plan = check_degrees(settings.plan, (), "SYNERGY_PLAN_JSON") if settings.plan is not None else None
    if most is not None and most < 1:
        raise UsageError("SynergyCallback", f"micro_batch={most}", "a whole number of 1 or more")
    micro = micro_batch(
        global_batch, settings.world, launcher_plan.micro_batch if launcher_plan else most or global_batch
    )
    if micro is None:
        what = f"global_batch={global_batch} can't be shared out to {settings.world} processes"
        raise UsageError("SynergyCallback", what, "a multiple of each number of GPUs that the job may have")
    plan = replace(launcher_plan or Plan(), dp=settings.world, global_batch=global_batch, micro_batch=micro)
    return check_plan(plan, settings.world, "SynergyCallback")
