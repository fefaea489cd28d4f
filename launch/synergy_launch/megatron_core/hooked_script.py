"""A runner of a Megatron-LM script as it is, with Synergy's hooks in it.

    python -m synergy_launch.megatron_core.hooked_script SCRIPT ...      (or -m MODULE ...)

The launcher puts it before the script. When Megatron-LM's training loop begins, the chunks that it trains are watched for the gradient
noise scale (script_noise.py), and it gets a batch that may move (script_batch.py): where that fails on one rank, it is done on none, or
the others would wait for it. Where the job has a link arbiter its all-reduces are gated (links/gated_script.py). A fault in a hook turns
that hook off; the script runs on.
SYNERGY_NOISE=0 leaves the first two out. A run whose batch can't move takes its learning rates from its arguments at each start, not from
the checkpoint (script_batch.follow_arguments).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from synergy_launch.agent import run_folder
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.links import gated_script, link_gate
from synergy_launch.megatron_core import script_batch

TRAINING = "megatron.training.training"
NOISE = "synergy-noise.json"  # in the checkpoint folder: the estimate, so that a restart does not begin it afresh
_KEEP_S = 60.0
_TELL_S = 0.5


def install() -> None:
    """Put the hooks into every Megatron that this process imports from now on."""
    if os.environ.get(link_gate.ADDRESS):
        gated_script.install()
    run = ScriptRun(measures=os.environ.get("SYNERGY_NOISE") != "0")
    if TRAINING in sys.modules:
        run.watch_training(sys.modules[TRAINING])
    else:
        sys.meta_path.insert(0, gated_script.ImportWatch(TRAINING, run.watch_training, _say))


class ScriptRun:
    """One process of the run. The last rank, on the node with the log, tells the rest of its reports and hears proposals."""

    def __init__(self, measures: bool = True) -> None:
        self._measures = measures
        self.noise: Any = None
        self.batch: Any = None  # MovingBatch, where the batch may move
        self._settings: Any = None
        self._tuner: Any = None
        self._timer: Any = None
        self._followed = self._tells = False
        self._folder: Path | None = None
        self._note = ""
        self._began = math.nan
        self._known_batch = 0
        self._told_at = self._kept_at = -math.inf

    # -- hooks ------------------------------------------------------------------------------------------------------

    def watch_training(self, module: ModuleType) -> None:
        """Wrap Megatron-LM's train() so that it is measured and its batch may move, and read its checkpoints as ours are read."""
        original: Any = module.train

        @functools.wraps(original)
        def train(*args: Any, **kwargs: Any) -> Any:
            if not self._followed:
                self._followed = True
                values_of = functools.partial(_values, original, args, kwargs)
                if self._measures:
                    self._follow(module, values_of)
                if self.batch is None:
                    self._follow_arguments(module, values_of)
            return original(*args, **kwargs)

        module.train = train  # type: ignore[attr-defined]
        from synergy_launch.megatron_core import checkpoint_reading  # imports torch, as the script has by now

        checkpoint_reading.install()

    def _follow(self, module: Any, arguments: Callable[[], list[Any]]) -> None:
        """Set up the measurement and the moving batch as training begins. If one rank can't do a thing, no rank does it."""
        import torch.distributed as dist

        from synergy_launch.megatron_core import script_noise

        if not dist.is_initialized():
            return
        calculators: Any = None
        noise: Any = None
        moving: Any = None
        proposed: tuple[int, int] | None = None
        try:
            from megatron.core import num_microbatches_calculator

            calculators = num_microbatches_calculator
            _, model, optimizer, scheduler, *_ = arguments()
            noise = self._make_noise(model)
            args = module.get_args()
            self._settings = AgentSettings.from_environment()
            self._tells = bool(dist.get_rank() == dist.get_world_size() - 1)
            self._folder = Path(args.save) if args.save else None
            # none: Megatron's FSDP or PyTorch's, which is no DistributedDataParallel
            if noise is not None and (self._settings.daemon_chooses_batch or self._settings.batch_range):
                moving = self._make_moving_batch(
                    args, calculators._GLOBAL_NUM_MICROBATCHES_CALCULATOR, optimizer, scheduler
                )
            if self._tells and self._settings.run_dir:
                # a run that is started again in place goes on with what it was told before
                proposed = run_folder.read_proposed_batch(self._settings.run_dir)
        except Exception as error:  # this Megatron may differ inside from the known ones
            _say(error)
        able, movable, proposed_batch = script_noise.total(
            [noise is not None, moving is not None, proposed[0] if proposed else 0]
        )
        if able == dist.get_world_size():
            self.noise = noise
        elif noise is not None:
            noise.stop()
        if self.noise is not None and movable == able:
            self.batch = moving
            calculators._GLOBAL_NUM_MICROBATCHES_CALCULATOR = moving
            moving.start()
            moving.ask(round(proposed_batch))
        self._tells = self._tells and self.noise is not None
        if self._tells:
            self._safely(self._prepare)

    def _follow_arguments(self, module: Any, arguments: Callable[[], list[Any]]) -> None:
        """Make the learning rates follow the arguments, on every rank alike: nothing is agreed on."""
        try:
            _, _, optimizer, scheduler, *_ = arguments()
            script_batch.follow_arguments(module.get_args(), optimizer, scheduler)
        except Exception as error:  # this Megatron may differ inside from the known ones
            gated_script.say("the checkpoint's learning rates stay", error)

    def _make_noise(self, model: Any) -> Any:
        """Return the object that measures these chunks; None where they are not all Megatron's DistributedDataParallel."""
        from megatron.core import num_microbatches_calculator as calculator
        from megatron.core import parallel_state
        from megatron.core.distributed import DistributedDataParallel

        from synergy_launch.megatron_core.script_noise import Degrees, ScriptNoise, StepSize

        chunks = model if isinstance(model, list) else [model]
        if not all(isinstance(chunk, DistributedDataParallel) for chunk in chunks):
            return None
        degrees = Degrees(
            dp=parallel_state.get_data_parallel_world_size(),
            cp=parallel_state.get_context_parallel_world_size(),
            tp=parallel_state.get_tensor_model_parallel_world_size(),
            cp_group=parallel_state.get_context_parallel_group(),
        )

        def size() -> StepSize:
            return StepSize(calculator.get_num_microbatches(), calculator.get_micro_batch_size())

        noise = ScriptNoise(degrees, size, self._propose, self._accept_batch, self._stop_agreeing)
        for chunk in chunks:
            noise.add(chunk)
        return noise

    def _make_moving_batch(self, args: Any, present: Any, optimizer: Any, scheduler: Any) -> Any:
        """Return the stand-in for Megatron's calculator; None where the batch can't move, which the output says once."""
        why = script_batch.batch_obstacle(args, present)
        if why and self._tells:
            print(f"synergy: the batch does not move between iterations: {why}", flush=True)
        if why:
            return None
        length = script_batch.RunLength.parse(os.environ.get(script_batch.RUN, ""))
        return script_batch.MovingBatch(args, present, optimizer, scheduler, length, self._begin_iteration)

    def _safely(self, act: Callable[[], None]) -> None:
        """Call `act`, which this rank alone does: a fault ends its reports, and not the training."""
        try:
            act()
        except Exception as error:
            self._tells = False
            _say(error)

    def _prepare(self) -> None:
        """Prepare the rank that reports: its timer, its batch tuner and the noise scale of the last start."""
        from synergy_launch.agent.step_timer import StepTimer
        from synergy_launch.batch.tuner import BatchTuner

        self._timer = StepTimer()
        if self.batch is not None and self._settings.batch_range is not None:
            self._tuner = BatchTuner(self._settings.batch_range, self.batch.base)
        if self._folder is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                state = json.loads((self._folder / NOISE).read_text(encoding="ascii"))
                self.noise.scale.restore({name: float(state[name]) for name in ("trace", "square", "weight")})
        self._tell()

    # -- each step --------------------------------------------------------------------------------------------------

    def _begin_iteration(self, iteration: int, batch: int) -> None:
        """Time an iteration that begins with this batch."""
        if self._tells:
            self._safely(lambda: self._time(iteration, batch))

    def _time(self, iteration: int, batch: int) -> None:
        now = time.perf_counter()
        if batch == self._known_batch:
            if math.isfinite(self._began):
                self._timer.add(now - self._began)
        else:
            self._timer = type(self._timer)(skip=1)
            self._known_batch = batch
            self._keep_history(iteration, batch)
        self._began = now

    def _propose(self) -> int:
        """Return the batch to go on with: the daemon's, else the run's own choice; 0 where this rank knows of no other one."""
        if not self._tells or self.batch is None:
            return 0
        folder, now = self._settings.run_dir, self.batch.batch
        proposed = run_folder.read_proposed_batch(folder) if folder is not None else None
        next_batch = proposed[0] if proposed is not None else self._own_choice()
        if next_batch in (0, now):
            return 0
        if not self.batch.can_take(next_batch):
            self._note = (
                f"global batch {next_batch} does not divide into micro-batches of {self.batch.micro_batch_size}"
            )
            return 0
        return next_batch

    def _own_choice(self) -> int:
        from synergy_core.records import Plan

        if self._tuner is None:
            return 0
        plan: Plan = self._settings.plan or Plan()
        plan = self.batch.as_plan(plan)
        tuned_plan = self._tuner.after_step(plan, self._timer.median_s, self.noise.scale.value)
        return int(self.batch.nearest(tuned_plan.global_batch))

    def _accept_batch(self, batch: int) -> None:
        if batch and self.batch is not None:
            self.batch.ask(batch)
        if self._tells:
            self._tell()

    def _stop_agreeing(self) -> None:
        """Keep the batch as it is: nothing is agreed on any more."""
        self.batch = None
        if self._tells and self.noise is not None:
            self._told_at = -math.inf
            self._safely(self._tell)

    def _tell(self) -> None:
        """Write the status for the launcher, and the estimate for the next start; a full disk does not end training."""
        now = time.monotonic()
        folder = self._settings.run_dir
        if folder is None or now < self._told_at + _TELL_S:
            return
        self._told_at = now
        values = {"noise_scale": self.noise.scale.value, "rebatching": self.batch is not None, "note": self._note}
        values["base_batch"] = self.batch.tuned_for if self.batch is not None else None
        with contextlib.suppress(OSError):
            run_folder.write_hook_state(folder, values)
        if self._folder is not None and now > self._kept_at + _KEEP_S and self.noise.measured:
            self._kept_at = now
            with contextlib.suppress(OSError):
                fresh = self._folder / f".{NOISE}"
                fresh.write_text(json.dumps(self.noise.scale.state()) + "\n", encoding="ascii")
                fresh.replace(self._folder / NOISE)

    def _keep_history(self, iteration: int, batch: int) -> None:
        if self._folder is None:
            return
        try:
            script_batch.keep_history(self._folder, iteration, batch)
        except OSError as error:
            self._note = (
                f"{self._folder}: the batch can't be noted ({error.strerror}): the run may end too early or late"
            )


def _values(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments in the function's own order."""
    return list(inspect.signature(function).bind(*args, **kwargs).arguments.values())


def _say(error: Exception) -> None:
    gated_script.say("the script runs without Synergy's hook", error)


def main() -> None:
    """Put the hooks in, and run the script."""
    install()
    gated_script.run_script()


if __name__ == "__main__":
    main()
