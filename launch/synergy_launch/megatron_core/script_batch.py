"""The batch of a Megatron-LM script that is not ours, moved between two iterations without a restart.

Megatron asks its micro-batch calculator at the beginning of each iteration; the one that is put in its place answers with the batch
that all ranks have agreed on. The micro-batch stays, for the data loader was made with it: what moves is how many of them a step has.
Samples go on in the same order, since Megatron's sampler counts them one by one. The run ends after as many samples as before.
Learning rate and decoupled weight decay follow the rule of batch_arguments, by the scheduler's own settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synergy_core.rates import factors
from synergy_core.records import Plan

from synergy_launch.megatron_lm import batch_arguments

RUN = "SYNERGY_MEGATRON_RUN"  # a JSON object of `samples`, `exit_interval` and `batch`: the user's own, 0 for none
_RATES = ("max_lr", "min_lr", "init_lr")
_DECAYS = ("start_wd", "end_wd")


@dataclass(frozen=True)
class RunLength:
    """The length of a run in samples; None where the launcher does not know."""

    samples: int | None = None
    exit_interval: int | None = None
    #: the script's own, that its learning rate is tuned for
    batch: int | None = None

    @classmethod
    def parse(cls, text: str) -> RunLength:
        """Parse the launcher's JSON; what makes no sense counts as not said."""
        try:
            content = json.loads(text)
            samples, interval = int(content["samples"]), int(content["exit_interval"])
            batch = int(content.get("batch") or 0)
        except (ValueError, KeyError, TypeError):
            return cls()
        return cls(samples if samples > 0 else None, max(0, interval), batch if batch > 0 else None)


def is_capturing_graphs(config: Any) -> bool:
    """Return whether Megatron makes CUDA graphs, by its arguments or a model's config; older versions have flags."""
    older = any(getattr(config, name, False) for name in ("enable_cuda_graph", "external_cuda_graph"))
    return older or getattr(config, "cuda_graph_impl", "none") not in (None, "none")


def batch_obstacle(args: Any, calculator: Any) -> str:
    """Return why the batch of this run can't move between iterations; "" where it can."""
    if type(calculator).__name__ != "ConstantNumMicroBatchesCalculator":
        return "Megatron-LM ramps the batch up itself"
    if is_capturing_graphs(args):
        return "CUDA graphs are made for one number of micro-batches"
    if getattr(args, "decrease_batch_size_if_needed", False):
        return "--decrease-batch-size-if-needed changes the batch itself"
    if getattr(args, "perform_rl_step", False) or getattr(args, "phase_transition_iterations", None):
        return "its iterations have a fixed batch"
    return ""


class MovingBatch:
    """A stand-in for Megatron's micro-batch calculator. `args`: Megatron-LM's, `scheduler` its OptimizerParamScheduler.

    `ask` may be called at any time with a global batch that all ranks know of; the next iteration has it. `begins` is called with each
    iteration's number (from 0) and batch. Until `start` nothing of the run is changed.
    """

    def __init__(
        self,
        args: Any,
        calculator: Any,
        optimizer: Any,
        scheduler: Any,
        length: RunLength,
        begins: Callable[[int, int], None] = lambda iteration, batch: None,
    ) -> None:
        self._args, self._optimizer, self._scheduler, self._begins = args, optimizer, scheduler, begins
        self.micro_batch_size = int(calculator.get_micro_batch_size())
        self._unit = self.micro_batch_size * int(args.data_parallel_size)
        stages = int(getattr(args, "pipeline_model_parallel_size", 1) or 1)
        interleaved = getattr(args, "virtual_pipeline_model_parallel_size", None)
        self._multiple = stages if interleaved and interleaved > 1 else 1
        self.base = self.batch = self._wanted = int(calculator.get_current_global_batch_size())
        self._iteration = int(args.iteration)
        own = args.train_samples or int(args.train_iters or 0) * self.base
        self._samples = length.samples or own
        self.tuned_for = length.batch
        self._deciding = False
        self._frozen = self.batch // self._unit
        # the launcher's stood for an end that is known better here
        self._exit_interval = args.exit_interval if length.exit_interval is None else length.exit_interval or None
        self._rates = {name: getattr(scheduler, name) for name in (*_RATES, *_DECAYS)}
        self._groups = [_group_rates(args, group) for group in optimizer.param_groups]
        scheduler.step(0)
        #: whether iterations have had different batches
        self.moved = int(args.consumed_train_samples) != self._iteration * self.base

    def start(self) -> None:
        """Set rates and length once Megatron has this calculator, on all ranks."""
        self._args.exit_interval = self._exit_interval
        for group, own in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(own)
        self._scheduler.step(0)
        self._set_length(int(self._args.consumed_train_samples))

    # -- what Megatron asks -----------------------------------------------------------------------------------------

    def get(self) -> int:
        """Return the micro-batches of the iteration.

        While Megatron compares with the iteration before, the number is always the same: a change would make it save a checkpoint, and
        one to fewer would end the run.
        """
        return self._frozen if self._deciding else self.batch // self._unit

    def get_current_global_batch_size(self) -> int:
        return self.batch

    def get_current_running_global_batch_size(self) -> int:
        return self.batch

    def get_micro_batch_size(self) -> int:
        return self.micro_batch_size

    def update(self, consumed_samples: int, consistency_check: bool, verbose: bool = False) -> None:
        """Move to the next iteration. Megatron calls it twice an iteration, first without the check."""
        self._deciding = not consistency_check
        if self._deciding:
            return
        self._move(int(consumed_samples))
        self._begins(self._iteration, self.batch)
        self._iteration += 1

    # -- moving -----------------------------------------------------------------------------------------------------

    def can_take(self, batch: int) -> bool:
        """Return whether a step can have this global batch with the micro-batch as it is."""
        return batch > 0 and batch % (self._unit * self._multiple) == 0

    def nearest(self, batch: int) -> int:
        """Return the largest global batch up to `batch` that fits, at least the smallest one."""
        step = self._unit * self._multiple
        return max(step, batch // step * step)

    def as_plan(self, plan: Plan) -> Plan:
        """Return `plan`, the one of the run's start, with the present batch."""
        return replace(plan, micro_batch=self.micro_batch_size, global_batch=self.batch)

    def ask(self, batch: int) -> None:
        """Use `batch` from the next iteration on. One that does not fit is passed over."""
        if self.can_take(batch):
            self._wanted = batch

    def _move(self, consumed: int) -> None:
        if self._wanted != self.batch:
            self.batch, self.moved = self._wanted, True
            self._set_rates()
        remaining_samples = self._samples - consumed
        if self.moved and remaining_samples < self.batch:
            self.batch = self.nearest(remaining_samples)  # the last iteration ends where the samples do
        self._set_length(consumed)

    def _set_length(self, consumed: int) -> None:
        if not self._samples or not self.moved:
            return
        whole, rest = divmod(max(0, self._samples - consumed), self.batch)
        more = 1 if rest >= self._unit * self._multiple else 0
        self._args.train_iters = self._iteration + whole + more

    def _set_rates(self) -> None:
        scale = factors(batch_arguments.choose_rule(self._args.optimizer), self.base, self.batch)
        decay = scale.decoupled_decay if self._args.optimizer == "adam" else 1.0
        by = {**dict.fromkeys(_RATES, scale.rate), **dict.fromkeys(_DECAYS, decay)}
        for name, value in self._rates.items():
            setattr(self._scheduler, name, value * by[name])
        for group, tuned_rates in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update({name: value * by[name] for name, value in tuned_rates.items()})
        self._scheduler.step(0)


def follow_arguments(args: Any, optimizer: Any, scheduler: Any) -> None:
    """Apply each start's --lr and --min-lr, for a run whose batch stays until it is started again.

    They hold where its scheduler takes them. Megatron's scheduler goes by the param groups' own rates, and those come from the
    checkpoint.
    """
    if not getattr(args, "override_opt_param_scheduler", False):
        return
    for group in optimizer.param_groups:
        group.update(_group_rates(args, group))
    scheduler.step(0)


def _group_rates(args: Any, group: dict[str, Any]) -> dict[str, Any]:
    """Return the rates of a param group, with the arguments' in place of the checkpoint's.

    A checkpoint's param groups bring the rates of the batch that it was written at; the arguments' are this batch's.
    """
    if group.get("default_config", True) and not group.get("is_decoupled_lr"):
        argument_rates = {"max_lr": args.lr, "min_lr": args.min_lr}
    else:
        argument_rates = {"max_lr": args.decoupled_lr, "min_lr": args.decoupled_min_lr}
    of_arguments = {name: value for name, value in argument_rates.items() if name in group and value is not None}
    return {name: group[name] for name in (*_RATES, *_DECAYS) if name in group} | of_arguments


def keep_history(folder: Path, iteration: int, batch: int) -> None:
    """Write into the checkpoint folder that iterations from this one on have `batch`, for the launcher's next start. Raises OSError."""
    record = batch_arguments.Trained(iteration, batch_arguments.history(folder))
    batch_arguments.write(folder, record.with_batch(batch))
