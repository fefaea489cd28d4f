"""The two gradient norms of a step that the noise scale is estimated from, in plain PyTorch."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from synergy_core.records import Plan
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.batch.gradient_sample import GradientSample, sample_interval
from synergy_launch.batch.noise_scale import SILENT, Norms

# Micro-batches of a step of FSDP2 that are looked at. Over eight stretches of 32 steps of four, the estimate of a noise scale of 9.6 was
# between 4.9 and 23.8 by the first micro-batch alone, 8.5 to 14.4 by all four.
_COUNTED = 4


@dataclass(frozen=True)
class _Kept:
    """A sample of the step before's gradients, of the parameters with these ids."""

    ids: list[int]
    places: GradientSample
    sample: torch.Tensor


class GradientNorms:
    """Squared norms of the gradient over few and over many samples, and when gradients are averaged over the ranks.

    DDP and one process: each parameter's hook sees the micro-batch's own gradient before it is added or averaged.
    FSDP2 never shows a rank's own gradient; there the averaged gradients of the first few micro-batches are the small ones.
    Where a step is a single micro-batch of a single replica (or FSDP2 does not accumulate), two consecutive steps are
    compared, every other step: their mean is the gradient of twice the batch, as far as one step changes the
    weights little. All norms are those of a sample of bounded size (synergy_launch.batch.gradient_sample); of a model that is
    larger, not of every step.
    A pipeline reduces once a step: two consecutive steps there too. A rank has the norms of its own stage, and the sum is the whole's:
    whether a step shows anything is for all stages to say, by `vote` and `agreed_batches`.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan) -> None:
        self._model = model
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._sharded = any(isinstance(p, DTensor) for p in self._parameters)
        # reading every element of every micro-batch's gradient took 5 % of a step of a 1B model on an H100
        world = dist.get_world_size() // plan.pp if (self._sharded or plan.pp > 1) and dist.is_initialized() else 1
        self._weights = [_weight(p, world) for p in self._parameters]
        self._places = GradientSample([_local(p) for p in self._parameters], self._weights)
        self._small: list[torch.Tensor] = []  # norms
        self._numbers: list[int] = []  # of whose parameters
        self._sums: dict[int, torch.Tensor] = {}  # sharded: the sample after the micro-batch before
        self._before: _Kept | None = None
        # of a pipeline: this step's, from which pairs begin anew if another stage has to
        self._now: _Kept | None = None
        #: of the step that was taken last, to be summed over the ranks: 1 it shows something, 0 it has nothing to show, -inf it can't yet
        self.vote = 0.0
        self._step, self._every = 0, sample_interval(sum(p.numel() for p in self._parameters))
        self.follow(plan)
        self._handles: list[Any] = []
        if not self._sharded:
            for number, parameter in enumerate(self._parameters):
                self._handles.append(parameter.register_hook(partial(self._take_gradient, number)))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Stop looking at gradients."""
        for handle in self._handles:
            handle.remove()

    def follow(self, plan: Plan) -> None:
        """Measure with this plan from the next step on."""
        self._plan = plan
        self._b_small = plan.micro_batch * (plan.dp if self._sharded else 1)
        self._within = plan.global_batch > self._b_small and plan.pp == 1
        self._step = 0
        self._forget()
        self._before = self._now = None

    def sync_context(self, micro_step: int) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a micro-batch: DDP averages on the last micro-batch of a step only."""
        last = micro_step == self._plan.micro_batches - 1 or self._plan.pp > 1
        if isinstance(self._model, DistributedDataParallel) and not last:
            return self._model.no_sync()
        return contextlib.nullcontext()

    def after_backward(self, done: int) -> None:
        """Take the norms after the backward of micro-batch number `done` (from 1) of the step."""
        if not self._sharded or not self._is_sampling or done > self._sampled_micro_batches:
            return
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                now = self._places.part(_local(parameter.grad), number)
                own = now - self._sums[number] if number in self._sums else now
                self._small.append(torch.linalg.vector_norm(own))
                self._numbers.append(number)
                self._sums[number] = now

    @property
    def _is_sampling(self) -> bool:
        """Return whether the norms of this step's micro-batches are wanted."""
        return self._within and self._step % self._every == 0

    @property
    def _sampled_micro_batches(self) -> int:
        """Return how many micro-batches of a step are looked at when the model is sharded."""
        return min(_COUNTED, self._plan.micro_batches)

    def take(self, loss: torch.Tensor, unscale: float = 1.0) -> tuple[float, Norms]:
        """Return `loss`, and this rank's shares of the step's norms; their sums over the ranks are the norms.

        Gradients times `unscale` are those of the loss. The device is waited for once, for all of these numbers.
        """
        self.vote = 0.0
        if not self._within:
            return self._consecutive(loss, unscale)
        self._step += 1
        if not self._small:
            return float(loss), SILENT
        self.vote = 1.0
        square = unscale * unscale
        plan, places = self._plan, self._places
        small = places.square(self._small, self._numbers)
        self._forget()
        numbered_gradients = [(n, p.grad) for n, p in enumerate(self._parameters) if p.grad is not None]
        big = places.square(
            [places.norm(_local(g), n) for n, g in numbered_gradients], [n for n, _ in numbered_gradients]
        )
        mean, small_, big_ = _read(loss, small, big)
        count = plan.micro_batches
        # Each loss was divided by the number of micro-batches.
        if self._sharded:
            return mean, Norms(
                small_ * square * count * count / self._sampled_micro_batches,
                big_ * square,
                self._b_small,
                plan.global_batch,
            )
        share = square / plan.dp
        return mean, Norms(small_ * count * share, big_ * share, self._b_small, plan.global_batch)

    def agreed_batches(self, votes: float) -> tuple[int, int]:
        """Return the small and the big batch of the norms' sums, by the sum of the votes; 0 where the step shows nothing.

        They are equal on all ranks.
        """
        batch = self._plan.global_batch
        if votes and self._plan.pp > 1:  # pairs begin at the same steps on all stages
            self._before = self._now if votes < 0 else None
        self._now = None
        if votes <= 0:
            return SILENT.b_small, SILENT.b_big
        return (self._b_small, batch) if self._within else (batch, 2 * batch)

    def _forget(self) -> None:
        self._small, self._numbers, self._sums = [], [], {}

    def _take_gradient(self, number: int, gradient: torch.Tensor) -> None:
        if self._is_sampling:
            self._small.append(self._places.norm(_local(gradient), number))
            self._numbers.append(number)

    def _consecutive(self, loss: torch.Tensor, unscale: float) -> tuple[float, Norms]:
        gradient_pairs = [(id(p), _local(p.grad).detach()) for p in self._parameters if p.grad is not None]
        ids, gradients = [i for i, _ in gradient_pairs], [g for _, g in gradient_pairs]
        if not gradients:
            return float(loss), SILENT
        before, self._before = self._before, None
        if before is None or before.ids != ids:  # not of the same parameters: no pair
            # unscaled here: the scale may be another at the next step
            places = self._places
            if len(ids) != len(self._parameters):
                weights = [w for p, w in zip(self._parameters, self._weights, strict=True) if p.grad is not None]
                places = GradientSample(gradients, weights)
            self._before = self._now = _Kept(ids, places, places.take(gradients, unscale))
            self.vote = -math.inf
            return float(loss), SILENT
        now, places = before.places.take(gradients, unscale), before.places
        self.vote = 1.0
        self._now = _Kept(ids, places, now) if self._plan.pp > 1 else None
        # of the same sample, so that what it leaves out cancels in their difference
        pairs = ((before.sample, before.sample), (now, now), (before.sample, now))
        mean, first, second, product = _read(loss, *(places.product(a, b) for a, b in pairs))
        small = (first + second) / 2
        batch = self._plan.global_batch
        return mean, Norms(small, (small + product) / 2, batch, 2 * batch)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _weight(parameter: torch.Tensor, world: int) -> float:
    """Return what each rank's part counts in the sum over `world` ranks.

    Ranks that hold the same part share it, on the parameter's mesh or not.
    """
    if not isinstance(parameter, DTensor):
        return 1.0 / world
    sizes = zip(parameter.placements, parameter.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in sizes if not placement.is_replicate()) / world


def _read(*values: torch.Tensor) -> list[float]:
    """Read numbers that lie on the device, all in one transfer."""
    device = values[-1].device
    numbers: list[float] = torch.stack([value.to(device, torch.float64) for value in values]).tolist()
    return numbers


def clip_gradients(model: torch.nn.Module, bound: float, stages: dist.ProcessGroup | None) -> None:
    """Scale the gradients so that their norm is at most `bound`.

    `stages`: the ranks that have the other stages of the model, None where there is one.
    """
    if stages is None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
        return
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    square = (norm.full_tensor() if isinstance(norm, DTensor) else norm).square()
    # a stage without gradients has its norm on the CPU, where NCCL can't sum it
    square = square.to(next(model.parameters()).device)
    dist.all_reduce(square, group=stages)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), bound, square.sqrt())
