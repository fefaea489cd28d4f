"""Synergy in a plain PyTorch training loop: DDP, FSDP2 or one process.

    dist.init_process_group()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters())
    with SynergyTask(model, optimizer, global_batch=64, checkpoint="/shared/run1") as task:
        for inputs, labels in task.batches(dataset, steps=1000):
            task.step(loss_function(model(inputs), labels))

The data-parallel degree may differ from one start to the next: the global batch and the order of the examples do not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, default_collate

from launch.agent import Agent
from launch.agent_settings import AgentSettings, check_degrees, check_plan
from launch.checkpoint import Checkpoint, reason
from launch.data_order import SampleOrder, rank_samples
from launch.gradient_noise import NoiseScale
from launch.memory import peak_memory
from launch.ranks import Alone, Ranks, TorchRanks
from synergyd.errors import SynergyError, UsageError
from synergyd.records import Plan


class SynergyTask:
    """One rank's side of a run. All ranks make it, after the process group, with the same arguments.

    `global_batch` and `micro_batch` (examples; None: the global batch over the ranks) hold where Synergy gave no plan.
    `checkpoint` is the folder of checkpoints, before which SYNERGY_CHECKPOINT_DIR comes; `checkpoint_interval` in
    steps, 0: on request and at the end. `scheduler` is stepped and kept with the optimizer. `clip` bounds the norm of
    the gradient.
    `tokens_per_sample` turns samples into the tokens that are reported.

    A mistake in the arguments or the environment ends the process with one line and exit code 2; SIGTERM, after a
    checkpoint, with code 0, from inside `batches`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        global_batch: int,
        micro_batch: int | None = None,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_interval: int = 0,
        scheduler: Any = None,
        clip: float | None = None,
        tokens_per_sample: int = 1,
    ) -> None:
        self.model, self.optimizer, self.scheduler, self.seed, self.clip = model, optimizer, scheduler, seed, clip
        self.step_count = 0
        self.samples = 0
        self._tokens_per_sample = tokens_per_sample
        together = dist.is_available() and dist.is_initialized()
        with _one_line(int(os.environ.get("RANK", "0"))):
            settings = AgentSettings.from_environment()
            self.plan = _plan(settings.plan, dist.get_world_size() if together else 1, global_batch, micro_batch)
            self.ranks: Ranks = TorchRanks() if together else Alone()
            self.agent = Agent(settings, self.plan, self.ranks, peak_memory=peak_memory)
            self.agent.install_signals()
            found = self.agent.find_checkpoint(Path(checkpoint) if checkpoint else None)
            self.noise = NoiseScale()
            if found.checkpoint is not None:
                self._load(found.checkpoint)
        self._losses: list[torch.Tensor] = []
        self._go_on = True
        self._norms = _GradientNorms(model, self.plan)
        self.agent.start(
            self.step_count,
            save=self._save,
            checkpoint_interval=checkpoint_interval,
            resharding=False,
            tokens=self.samples * tokens_per_sample,
        )

    def __enter__(self) -> SynergyTask:
        self._watching = self.agent.watching()
        self._watching.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.__exit__(kind, error, trace)

    def batches(
        self,
        dataset: Any,
        steps: int,
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        workers: int = 0,
    ) -> Iterator[Any]:
        """This rank's micro-batches from where the run stands up to `steps` optimizer steps in all.

        `dataset` has `len` and `[index]`; `workers` processes load ahead. Call `step` once for each micro-batch.
        """
        order = SampleOrder(len(dataset), self.seed)
        loader = DataLoader(
            dataset, batch_sampler=_Indices(order, self, steps), num_workers=workers, collate_fn=collate
        )
        ahead = iter(loader)
        while self.step_count < steps:
            before = self.step_count
            for micro_step in range(self.plan.micro_batches):
                with self._norms.synchronised(micro_step):
                    yield next(ahead)
            if self.step_count != before + 1:
                raise UsageError("SynergyTask", "step(loss) was not called for each batch", "call it once for each")
            if not self._go_on:
                raise SystemExit(0)
        self.agent.finish()

    def step(self, loss: torch.Tensor) -> None:
        """Backward of one micro-batch's mean loss; on the last one of a step also the optimizer's step."""
        count = self.plan.micro_batches
        (loss / count).backward()  # type: ignore[no-untyped-call]
        self._losses.append(loss.detach())
        self._norms.after_backward(len(self._losses))
        if len(self._losses) < count:
            return
        sums = self._norms.take()
        mean = float(torch.stack(self._losses).mean())
        self._losses.clear()
        loss_all, small, big = self.ranks.total([mean / self.plan.dp, *sums])
        self.noise.update(small, big, self._norms.b_small, self.plan.global_batch)
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()
        self.step_count += 1
        self.samples += self.plan.global_batch
        self._go_on = self.agent.after_step(
            self.step_count,
            loss=loss_all,
            tokens=self.samples * self._tokens_per_sample,
            noise_scale=self.noise.value,
        )

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def _save(self, folder: Path) -> Mapping[str, Any]:
        with _quiet():
            dcp_save(self._state(), checkpoint_id=str(folder), no_dist=isinstance(self.ranks, Alone))
        return {
            "kind": "pytorch",
            "samples": self.samples,
            "noise": self.noise.state(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
        }

    def _load(self, found: Checkpoint) -> None:
        where = f"checkpoint {found.path}"
        if found.meta.get("kind") != "pytorch":
            raise UsageError(where, "was not written by a plain PyTorch run", "name another folder")
        state = self._state()
        try:
            with _quiet():
                dcp_load(state, checkpoint_id=str(found.path), no_dist=isinstance(self.ranks, Alone))
            set_state_dict(
                self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
            )
        except (Exception, CheckpointException) as error:
            # It is intact (its digests match), so it holds another model or optimizer.
            what = f"does not fit this model and optimizer: {reason(error)}"
            raise UsageError(where, what, "use what it was made with, or another folder") from error
        if self.scheduler is not None and found.meta.get("scheduler"):
            self.scheduler.load_state_dict(found.meta["scheduler"])
        self.step_count, self.samples = found.step, int(found.meta["samples"])
        self.noise.restore(found.meta["noise"])


class _GradientNorms:
    """Squared norms of the gradient over few and over many samples, and when gradients are averaged over the ranks.

    DDP and one process: each parameter's hook sees the micro-batch's own gradient before it is added or averaged.
    FSDP2 never shows a rank's own gradient; there the averaged gradient of the first micro-batch is the small one.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan) -> None:
        self._model, self._plan = model, plan
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._sharded = any(isinstance(p, DTensor) for p in self._parameters)
        self.b_small = plan.micro_batch * (plan.dp if self._sharded else 1)
        self._useful = plan.global_batch > self.b_small
        self._small: list[torch.Tensor] = []
        if self._useful and not self._sharded:
            for parameter in self._parameters:
                parameter.register_hook(self._seen)  # type: ignore[no-untyped-call]

    def synchronised(self, micro_step: int) -> contextlib.AbstractContextManager[Any]:
        """DDP averages on the last micro-batch of a step only."""
        if isinstance(self._model, DistributedDataParallel) and micro_step < self._plan.micro_batches - 1:
            return self._model.no_sync()
        return contextlib.nullcontext()

    def _seen(self, gradient: torch.Tensor) -> None:
        self._small.append(_square(gradient))

    def after_backward(self, done: int) -> None:
        if self._useful and self._sharded and done == 1:
            self._small.extend(_square(p.grad) for p in self._parameters if p.grad is not None)

    def take(self) -> tuple[float, float]:
        """This rank's shares of the two squared norms of the step; their sums over the ranks are the norms."""
        plan = self._plan
        if not self._useful or not self._small:
            return 0.0, 0.0
        small = float(torch.stack(self._small).sum())
        self._small.clear()
        big = float(torch.stack([_square(p.grad) for p in self._parameters if p.grad is not None]).sum())
        count = plan.micro_batches
        # Each loss was divided by the number of micro-batches.
        if self._sharded:
            return small * count * count, big
        return small * count / plan.dp, big / plan.dp


class _Indices:
    """The indices of this rank's micro-batches, from where `task` stands."""

    def __init__(self, order: SampleOrder, task: SynergyTask, steps: int) -> None:
        self._order, self._plan, self._rank = order, task.plan, task.ranks.rank
        self._first, self._steps = task.samples, steps - task.step_count

    def __iter__(self) -> Iterator[list[int]]:
        plan = self._plan
        for step in range(self._steps):
            start = self._first + step * plan.global_batch
            for numbers in rank_samples(start, plan.global_batch, plan.dp, self._rank, plan.micro_batch):
                yield [self._order.index(number) for number in numbers]

    def __len__(self) -> int:
        return self._steps * self._plan.micro_batches


def _square(tensor: torch.Tensor) -> torch.Tensor:
    """Squared norm of what this rank holds of `tensor`."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    square: torch.Tensor = torch.linalg.vector_norm(local.detach(), dtype=torch.float32).square()
    return square


def _plan(given: Plan | None, world: int, global_batch: int, micro_batch: int | None) -> Plan:
    if given is not None:
        if given.tp != 1 or given.pp != 1:
            what = f"tp={given.tp} pp={given.pp} was given to a plain PyTorch job"
            raise UsageError("SYNERGY_PLAN_JSON", what, "such a job can change dp only")
        return check_degrees(given, (), "SYNERGY_PLAN_JSON")
    return check_plan(
        Plan(dp=world, global_batch=global_batch, micro_batch=micro_batch or max(1, global_batch // world)), world
    )


@contextlib.contextmanager
def _one_line(rank: int) -> Iterator[None]:
    """A user's mistake as one line on rank 0 and exit code 2."""
    try:
        yield
    except SynergyError as error:
        if rank == 0:
            print(f"synergy: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings of its own future."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# From here on until the agent listens there is nothing to save, and SIGUSR2 must not kill the process.
if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
    with contextlib.suppress(ValueError):  # imported by another thread than the main one
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
