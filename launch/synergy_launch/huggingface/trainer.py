"""Synergy in Hugging Face's Trainer, data parallel (DDP or one process).

    args = apply_plan(TrainingArguments("/shared/run1", max_steps=1000, ...), global_batch=64)
    trainer = Trainer(model, args, train_dataset=dataset, callbacks=[SynergyCallback()])
    trainer.train(resume_from_checkpoint=resume_from(args.output_dir))

Trainer counts steps, its place in the data included: step n is on examples n * batch and on, whatever the number of
processes, but only while that batch stays, its sampler does not look at the batch (group_by_length and batch_rebalance
do) and dataloader_drop_last is off. So the examples of one of Trainer's steps, the unit, are kept over all resizes. The
batch moves in multiples of it (synergy_launch.pytorch.accumulation).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from synergy_core.errors import UsageError
from synergy_core.exchange import EXACT
from synergy_core.rates import factors, usual_rule
from synergy_core.records import Plan

from synergy_launch.agent.agent import Agent, Boundary
from synergy_launch.agent.collectives import Collectives, OneProcess, TorchCollectives
from synergy_launch.agent.settings import AgentSettings, check_degrees, check_plan, micro_batch
from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.huggingface.accumulation import TrainerAccumulation, batch_obstacle
from synergy_launch.huggingface.checkpoints import TrainerCheckpoints
from synergy_launch.pytorch.accumulation import round_batch
from synergy_launch.pytorch.device import device_memory, peak_memory
from synergy_launch.pytorch.kernels import detect_kernels

RULE = "_synergy_rule"  # attribute of TrainingArguments: the learning-rate rule, by apply_plan

with exit_on_error():
    try:
        from transformers import TrainerCallback
    except ImportError as _error:
        _what = f"transformers can't be imported ({_error})"
        raise UsageError("synergy_launch.huggingface.trainer", _what, "pip install transformers accelerate") from None


class SynergyCallback(TrainerCallback):  # type: ignore[misc]  # no types where transformers is not installed
    """A callback that reports each step, and saves, waits and stops with all ranks together when it is asked to.

    Checkpoints are Trainer's own, sealed (synergy_launch.huggingface.checkpoints): those of its save_strategy, those asked for, and
    the last one. `checkpoint_interval` in steps are further ones, None: as often as loses least. `tokens_per_sample`
    turns samples into the tokens that are reported. The loss is the one Trainer logged last (logging_steps). `job`: only checkpoints of
    this Slurm job count, not those of earlier runs in the folder. `own_size`: why the run can't go on at another size.

    SIGTERM ends the process after a checkpoint with code 0, from inside `train`; a mistake with one line and code 2.
    """

    def __init__(
        self,
        *,
        checkpoint_interval: int | None = 0,
        tokens_per_sample: int = 1,
        job: str = "",
        own_size: str = "",
    ) -> None:
        self.agent: Agent | None = None
        self.job, self._own_size = job, own_size
        self.accumulation: TrainerAccumulation | None = None  # None: the batch stays, and its noise is not measured
        self._interval, self._tokens_per_sample = checkpoint_interval, tokens_per_sample
        self._unit = Plan()  # of one of Trainer's steps
        self._steps_an_epoch = 0
        self._loss: float | None = None
        self._due: Boundary | None = None  # what is to be done when Trainer has saved
        self._began = 0.0
        self._last = True  # whether the step under way is the last one of a batch
        self._put_off = False  # a save that Trainer wanted inside a batch

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        with exit_on_error(args.process_index):
            settings = AgentSettings.from_environment()
            launcher_plan, ranks = settings.plan, _ranks("train")
            unit = _unit_plan(args, check_degrees(launcher_plan, (), "SYNERGY_PLAN_JSON") if launcher_plan else Plan())
            accepts = {"in_multiples": True} | ({"own_size": True} if self._own_size else {})
            settings = replace(settings, accepts={**(settings.accepts or {}), **accepts})
            agent = Agent(settings, unit, ranks, peak_memory=peak_memory, device_memory=device_memory)
            agent.install_signals()
            if settings.exchange != EXACT:
                agent.note(f"gradients are exchanged exactly, not as {settings.exchange}: Trainer averages them itself")
            if self._own_size:
                agent.note(f"the job keeps its size: {self._own_size}")
            self._store = _store(args.output_dir, "train", self.job)
            newest = agent.find_checkpoint_in(self._store).checkpoint
        self.agent, self._unit, self._due = agent, unit, None
        self._last, self._put_off = True, False
        logged = [entry["loss"] for entry in state.log_history if "loss" in entry]
        self._loss = float(logged[-1]) if logged else None
        step = state.global_step
        meta = newest.meta if newest is not None and newest.step == step else {}
        self._accumulate(args, meta, more)
        if newest is not None and newest.step != step:
            agent.note(f"{newest.path} is there, but training starts at step {step}: resume_from was not used")
        if meta and read_unit(meta, unit.global_batch) != unit.global_batch:
            was = read_unit(meta, 0)
            agent.note(
                f"global batch {unit.global_batch} after {was}: Trainer skips or repeats examples; use apply_plan"
            )
        elif (
            launcher_plan is not None
            and not settings.own_batch
            and launcher_plan.global_batch != agent.plan.global_batch
        ):
            self._note_other_batch(args, launcher_plan)
        agent.start(
            step,
            save=lambda _: self._meta(),
            checkpoint_interval=self._interval,
            tokens=step * unit.global_batch * self._tokens_per_sample,
            base_batch=unit.global_batch if self.accumulation is not None else None,
            kernels=detect_kernels(more["model"], more.get("optimizer")) if more.get("model") is not None else None,
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self._loss = float(logs["loss"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # another callback, or save_strategy best, prevented it: it is asked for again at the next step
        self._due = None
        if self.accumulation is not None:
            ends = state.global_step + 1 >= state.max_steps or self._is_epoch_end(state)
            self._last = ends or self.accumulation.steps_left <= 1
            self.accumulation.begin_step(args, self._last)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.accumulation is not None:
            self.accumulation.before_clipped_optimizer(args, self._last, self._is_epoch_end(state))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.accumulation is not None:
            self.accumulation.after_optimizer()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        agent, step, unit = self.agent, state.global_step, self._unit.global_batch
        assert agent is not None, "on_train_begin comes first"
        if not self._last:  # what is accumulated is in no checkpoint
            self._put_off, control.should_save = self._put_off or control.should_save, False
            return control
        control.should_save, self._put_off = control.should_save or self._put_off, False
        boundary = agent.look(
            step,
            loss=self._loss,
            tokens=step * unit * self._tokens_per_sample,
            noise_scale=self.accumulation.noise.value if self.accumulation is not None else None,
            done=float(step * unit),
            total=float(state.max_steps * unit),
        )
        changed = agent.take_batch(unit) if self.accumulation is not None else None
        if changed is not None and self.accumulation is not None:
            self.accumulation.follow(changed)
            self._note_batch()
        last = step >= state.max_steps and args.save_strategy != "no"
        control.should_save = boundary.save or (not boundary.stop and (control.should_save or last))
        if control.should_save:
            self._due, self._began = replace(boundary, save=True), time.monotonic()
        else:
            self._act(boundary)
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        due, self._due = self._due, None
        if not self._last:
            return  # another callback's, inside a batch: it is not sealed
        if self._store.sealed_step == state.global_step:
            self._store.reseal(state.global_step)
        if due is None:
            self._act(Boundary(state.global_step))  # at the end of an epoch
        else:
            self._act(due, time.monotonic() - self._began)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.accumulation is not None:
            self.accumulation.end(args)
        if self.agent is not None:
            self.agent.finish()

    def _accumulate(self, args: Any, meta: Mapping[str, Any], callback_arguments: Mapping[str, Any]) -> None:
        """Set up what measures the noise and moves the batch, where apply_plan was called and this Trainer allows it."""
        rule, agent, model = getattr(args, RULE, None), self.agent, callback_arguments.get("model")
        assert agent is not None
        if self.accumulation is not None:  # left by a train() that an error has ended
            self.accumulation.end(args)
        self.accumulation = None
        if rule is None or os.environ.get("SYNERGY_NOISE") == "0":
            return
        why = batch_obstacle(args, model, callback_arguments.get("train_dataloader"))
        if why:
            agent.note(f"the batch stays, and its noise is not measured: {why}")
            return
        loader: Any = callback_arguments["train_dataloader"]
        settings, unit = agent.settings, self._unit
        self._steps_an_epoch = -(-len(loader) // args.gradient_accumulation_steps)
        launcher_plan = None if settings.own_batch else settings.plan
        plan = round_batch(launcher_plan, unit) if launcher_plan is not None else unit
        if launcher_plan is None and settings.batch_range is not None and meta.get("batch"):
            plan = round_batch(replace(unit, global_batch=int(meta["batch"][0])), unit)  # the run's own choice
        whole = self._steps_an_epoch * unit.global_batch == len(getattr(loader, "dataset", ()))
        agent.plan = plan
        agent.status.update(plan=asdict(plan))
        accumulation = TrainerAccumulation(
            model, callback_arguments["optimizer"], unit=unit, plan=plan, ranks=agent.ranks, rule=rule, whole=whole
        )
        if meta.get("noise"):
            accumulation.noise.restore(dict(meta["noise"]))
        self.accumulation = accumulation
        self._note_batch()

    def _is_epoch_end(self, state: Any) -> bool:
        """Return whether the epoch ends with the step under way, by Trainer's own count."""
        return bool((state.global_step + 1) % self._steps_an_epoch == 0)

    def _note_batch(self) -> None:
        assert self.agent is not None and self.accumulation is not None
        words = self.accumulation.following.format_factors(self.agent.plan.global_batch, self.accumulation.noise.value)
        if words:
            self.agent.note(words)

    def _note_other_batch(self, args: Any, launcher_plan: Plan) -> None:
        assert self.agent is not None
        difference = f"global batch {self.agent.plan.global_batch} in place of the plan's {launcher_plan.global_batch}"
        if getattr(args, RULE, None) is None:
            self.agent.note(f"{difference}: use apply_plan")
        elif self.accumulation is not None:
            self.agent.note(f"{difference}: the batch is a multiple of {self._unit.global_batch}")

    def _meta(self) -> Mapping[str, Any]:
        assert self.agent is not None
        plan = self.agent.plan
        noise = self.accumulation.noise.state() if self.accumulation is not None else None
        batch = {"batch": [plan.global_batch, plan.micro_batch], "unit": self._unit.global_batch}
        return {"kind": "huggingface", **batch, "noise": noise, "job": self.job}

    def newest(self, output_dir: str | Path) -> str | None:
        """Return the newest checkpoint of this run that was finished, as `resume_from` does."""
        return resume_from(output_dir, job=self.job)

    def _act(self, boundary: Boundary, spent_s: float = 0.0) -> None:
        assert self.agent is not None
        if not self.agent.act(boundary, spent_s):
            raise SystemExit(0)


def apply_plan(args: Any, *, global_batch: int, lr_rule: str = "", job: str = "") -> Any:
    """Return TrainingArguments with the micro-batch and accumulation of Synergy's plan; to be called once, before Trainer.

    `global_batch` is what learning rate, weight decay, max_steps and warmup_steps were chosen for, and the batch where no plan has chosen
    one, in micro-batches of up to per_device_train_batch_size. One of Trainer's steps has so many examples, and the batch may be a
    multiple of it, from one step to the next: SynergyCallback then sets rate and decay for each step, by `lr_rule` ("": the usual one of
    `optim`). Where the plan of a run's first start has a batch that is no multiple, that one is the step's: the arguments follow, to as
    many examples, and it is kept. `job`: only checkpoints of this Slurm job count. Ends with one line and code 2 where the step can't be
    divided.
    """
    with exit_on_error(args.process_index):
        settings, world = AgentSettings.from_environment(), args.world_size
        launcher_plan = settings.plan
        if global_batch < 1:
            raise UsageError("apply_plan", f"global_batch={global_batch}", "a whole number of 1 or more")
        newest = _store(args.output_dir, "apply_plan", job).find().checkpoint
        target_batch = (
            check_degrees(launcher_plan, (), "SYNERGY_PLAN_JSON").global_batch if launcher_plan else global_batch
        )
        target_batch = global_batch if settings.own_batch else target_batch
        batch = read_unit(
            newest.meta if newest is not None else {},
            global_batch if target_batch % global_batch == 0 else target_batch,
        )
        micro = micro_batch(
            batch, world, launcher_plan.micro_batch if launcher_plan else args.per_device_train_batch_size
        )
        plan = check_plan(Plan(dp=world, global_batch=batch, micro_batch=micro or 1), world, "apply_plan")
        name = str(getattr(args.optim, "value", args.optim)).partition("_")[0]
        rule = lr_rule or _usual(name)
        scale = factors(rule, global_batch, batch)
    setattr(args, RULE, rule)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = plan.micro_batch, plan.micro_batches
    if batch != global_batch:
        args.learning_rate *= scale.rate
        if name == "adamw":  # its decay is apart from the gradient
            args.weight_decay *= scale.decoupled_decay
        if args.max_steps > 0:
            args.max_steps = math.ceil(args.max_steps * global_batch / batch)
        if args.warmup_steps >= 1:  # below 1 it is a part of all steps
            args.warmup_steps = math.ceil(args.warmup_steps * global_batch / batch)
    return args


def resume_from(output_dir: str | Path, *, job: str = "") -> str | None:
    """Return the newest checkpoint under `output_dir` that was finished, for `Trainer.train`; None: start afresh.

    `job`: only checkpoints of this Slurm job count.

    Call it on all ranks after TrainingArguments are made. Trainer's own choice (True) may be one that a kill left half-written.
    """
    rank = int(os.environ.get("RANK", "0") or 0)
    with exit_on_error(rank):
        newest = _store(output_dir, "resume_from", job).find()
    if newest.note and rank == 0:
        print(f"synergy: {newest.note}", flush=True)
    return str(newest.checkpoint.path) if newest.checkpoint else None


def _store(output_dir: str | Path, who: str, job: str) -> TrainerCheckpoints:
    """Return the checkpoints under `output_dir`, for the function `who`."""
    store = TrainerCheckpoints(Path(output_dir).absolute(), _ranks(who))
    store.job = job
    return store


def _ranks(who: str) -> Collectives:
    if dist.is_available() and dist.is_initialized():
        return TorchCollectives()
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise UsageError(who, "the processes don't know each other yet", "make TrainingArguments first")
    return OneProcess()


def read_unit(meta: Mapping[str, Any], default: int) -> int:
    """Return the examples of one of Trainer's steps, as a checkpoint's metadata has them."""
    batch = meta.get("batch")
    return int(meta.get("unit") or (batch[0] if batch else default))


def _unit_plan(args: Any, plan: Plan) -> Plan:
    """Return the plan of one of Trainer's steps."""
    micro, dp = args.train_batch_size, args.world_size
    return replace(plan, dp=dp, micro_batch=micro, global_batch=micro * args.gradient_accumulation_steps * dp)


def _usual(optimiser: str) -> str:
    """Return the optimizer's usual rule without a noise scale; "none" for an unknown optimizer."""
    try:
        return usual_rule(optimiser, noise_known=False)
    except UsageError:
        return "none"
