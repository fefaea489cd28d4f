"""Synergy in a loop of DeepSpeed's engine, with or without ZeRO.

    config = with_plan(ds_config, global_batch=64)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    with DeepSpeedTask(engine, global_batch=64, checkpoint="/shared/run1") as task:
        for inputs, labels in task.batches(dataset, steps=1000):
            task.step(loss_function(engine(inputs), labels))

The number of ranks and the global batch may differ from one start to the next, and the batch from one step to the next: the order of
the examples does not, the learning rate follows (synergy_launch.batch.learning_rate).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from synergy_core.exchange import EXACT

from synergy_launch.agent.agent import Agent
from synergy_launch.agent.checkpoint import Checkpoint
from synergy_launch.agent.collectives import TorchCollectives
from synergy_launch.agent.early_requests import ignore_early_requests
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.batch.learning_rate import at_batch
from synergy_launch.batch.noise_scale import NoiseScale
from synergy_launch.deepspeed.engine_state import EngineState
from synergy_launch.deepspeed.gradient_norms import EngineNorms
from synergy_launch.deepspeed.refused import check_engine
from synergy_launch.pytorch.batch_loop import BatchLoop, make_following
from synergy_launch.pytorch.device import device_memory, on_device, peak_memory
from synergy_launch.pytorch.kernels import detect_kernels
from synergy_launch.pytorch.mesh import Degrees
from synergy_launch.pytorch.rng_state import load_random, save_random
from synergy_launch.pytorch.run_plan import resumed_plan, run_plan


class DeepSpeedTask(BatchLoop):
    """One rank's side of a run. All ranks make it, after deepspeed.initialize, with the same arguments.

    `global_batch`, `seed`, `checkpoint`, `checkpoint_interval`, `tokens_per_sample`, `lr_rule` and `count` are SynergyTask's. Clipping,
    precision, ZeRO and the schedule are the engine's; its schedule is stepped once for every `global_batch` examples. Batches come on
    its device. Training waits while a checkpoint is written.

    What can't go on on another number of ranks (synergy_launch.deepspeed.refused) and other mistakes end the process with one line and
    exit code 2; SIGTERM, after a checkpoint, with code 0, from inside `batches`.
    """

    def __init__(
        self,
        engine: Any,
        *,
        global_batch: int,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_interval: int | None = None,
        tokens_per_sample: int = 1,
        lr_rule: str = "",
        count: str = "",
    ) -> None:
        self.engine, self.seed = engine, seed
        self._tokens_per_sample = tokens_per_sample
        with exit_on_error():
            settings, world = AgentSettings.from_environment(), dist.get_world_size()
            check_engine(engine, world)
            basic = engine.basic_optimizer
            self.following = make_following(basic, global_batch, lr_rule, count)
            # DeepSpeed's FusedAdam says in an attribute what torch's AdamW says in its groups
            self._decoupled: bool | None = getattr(basic, "adam_w_mode", None)
            micro = engine.train_micro_batch_size_per_gpu()
            self.plan = run_plan(settings, Degrees(world), global_batch, micro)
            self.ranks = TorchCollectives()
            self._data_rank = self.ranks.rank
            self.agent = Agent(settings, self.plan, self.ranks, peak_memory=peak_memory, device_memory=device_memory)
            self.agent.install_signals()
            if settings.exchange != EXACT:
                self.agent.note(f"gradients are exchanged exactly, not as {settings.exchange}: DeepSpeed averages them")
            newest = self.agent.find_checkpoint(Path(checkpoint) if checkpoint else None).checkpoint
            self.noise = NoiseScale()
            self._state = EngineState(engine, self.ranks)
            if newest is not None:
                self._load(newest)
                self.plan = self.agent.plan = resumed_plan(self.plan, settings, newest.meta.get("batch"))
            self.plan = self.agent.find_bounded_plan(self.following.base)
        self._losses: list[torch.Tensor] = []
        self._norms = EngineNorms(engine, self.plan)
        self.agent.start(
            self.step_count,
            save=self._save,
            checkpoint_interval=checkpoint_interval,
            tokens=self.samples * tokens_per_sample,
            base_batch=self.following.base,
            kernels=detect_kernels(engine.module, engine.optimizer),
        )
        self._follow()

    def __exit__(self, *error: Any) -> None:
        self._norms.close()
        super().__exit__(*error)

    def _micro_batch_context(self, micro_step: int) -> contextlib.AbstractContextManager[Any]:
        # the engine's own count of micro-batches would be off after a change of their number
        self.engine.set_gradient_accumulation_boundary(micro_step == self.plan.micro_batches - 1)
        return contextlib.nullcontext()

    def _prepare_batch(self, batch: Any) -> Any:
        return on_device(self.engine.device, batch)

    def step(self, loss: torch.Tensor) -> None:
        """Run the backward of one micro-batch's mean loss; on the last one of a step also the optimizer's step."""
        self._losses.append(loss.detach().float())
        self.engine.backward(loss)
        if len(self._losses) < self.plan.micro_batches:
            self.engine.step()
            return
        self._norms.before_step()
        self._update()
        losses = torch.stack(self._losses).mean()
        self._losses.clear()
        mean, norms = self._norms.take(losses)
        loss_all, small, big = self.ranks.total([mean / self.ranks.world, norms.small, norms.big])
        self.noise.update(small, big, norms.b_small, norms.b_big)
        for _ in range(self.following.advance(self.plan.global_batch, self.noise.value)):
            if self.engine.lr_scheduler is not None:
                self.engine.lr_scheduler.step()
        self.step_count += 1
        self._go_on = self.agent.after_step(
            self.step_count,
            loss=loss_all,
            tokens=self.samples * self._tokens_per_sample,
            noise_scale=self.noise.value,
            done=self.following.examples_done,
            total=self.following.total,
            finite=math.isfinite(big),
        )
        changed = self.agent.take_batch()
        if changed is not None:
            self.plan = changed
            self._follow()

    def _update(self) -> None:
        """Run the engine's step at this batch's rate, without its schedule, which counts steps of another batch."""
        engine, schedule = self.engine, self.engine.lr_scheduler
        groups = engine.optimizer.param_groups
        engine.lr_scheduler = None
        with at_batch(groups, self.following, self.plan.global_batch, self.noise.value, self._decoupled):
            engine.step()
        engine.lr_scheduler = schedule

    def _follow(self) -> None:
        """Set the plan's batch in the engine."""
        self.engine.set_train_micro_batch_size(self.plan.micro_batch)
        self.engine.set_train_batch_size(self.plan.global_batch)
        self._norms.follow(self.plan)
        for words in (self._norms.why_silent, self.following.format_factors(self.plan.global_batch, self.noise.value)):
            if words:
                self.agent.note(words)

    def _save(self, folder: Path) -> Mapping[str, Any]:
        written = self._state.write(folder)
        save_random(folder, self.ranks)
        return {
            **written,
            "batch": [self.plan.global_batch, self.plan.micro_batch],
            **self.following.state(),
            "noise": self.noise.state(),
        }

    def _load(self, checkpoint: Checkpoint) -> None:
        state_note = self._state.load(checkpoint)
        self.step_count = checkpoint.step
        for words in (self.following.restore(checkpoint.meta), state_note):
            if words:
                self.agent.note(words)
        self.noise.restore(checkpoint.meta["noise"])
        load_random(checkpoint.path, self.ranks)


ignore_early_requests()
