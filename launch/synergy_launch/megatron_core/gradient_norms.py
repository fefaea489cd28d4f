"""Gradient noise of a Megatron run, from the gradients that pass by anyway; Megatron's files stay as they are.

Small batch: every micro-batch's own gradient, seen by a hook on each parameter as it is accumulated (so that it works
on every schedule, and for one replica as well as many). Big batch: the averaged gradient after Megatron has reduced it.
Where one micro-batch of one replica is all of a step, two consecutive steps are compared, every other step. All norms are
those of a sample of the gradient (synergy_launch.batch.gradient_sample); of a model larger than the sample, not of every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from synergy_core.records import Plan

from synergy_launch.agent.collectives import Collectives
from synergy_launch.batch.gradient_sample import GradientSample, sample_interval
from synergy_launch.batch.noise_scale import NoiseScale


class GradientNoise:
    """The gradient noise of `model` (Megatron's DistributedDataParallel); `scale` holds the estimate, equal on all ranks.

    Left out, on every plan alike: tied embeddings (with pp > 1 their two copies are summed late) and, with sequence
    parallelism, the norms' parameters (each tensor-parallel rank has only a part of their gradient).
    """

    def __init__(self, model: Any, plan: Plan, ranks: Collectives, tied_embeddings: bool, distributed: bool) -> None:
        self.scale = NoiseScale()
        self._model, self._plan, self._ranks, self._distributed = model, plan, ranks, distributed
        weights: dict[Any, float] = {}
        for name, parameter in model.module.named_parameters():
            if tied_embeddings and ("word_embeddings" in name or "output_layer" in name):
                continue
            if getattr(parameter, "sequence_parallel", False):
                continue
            # A parameter that every tensor-parallel rank holds whole is counted by each of them.
            weights[parameter] = 1.0 if getattr(parameter, "tensor_model_parallel", False) else 1.0 / plan.tp
        self._parameters = list(weights)
        self._places = GradientSample(self._parameters, list(weights.values()))
        self._small: list[torch.Tensor] = []  # norms
        self._numbers: list[int] = []  # of whose parameters
        self._before: torch.Tensor | None = None
        # the largest stage's number, so that all ranks look at the same steps
        self._step, self._every = 0, sample_interval(ranks.maximum([sum(p.numel() for p in self._parameters)])[0])
        self.follow(plan)
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._see_gradient, number))

    def follow(self, plan: Plan) -> None:
        """Measure with this plan, of the same degrees, from the next step on."""
        self._plan = plan
        self._within = plan.global_batch > plan.micro_batch
        self._step = 0
        self._forget()
        self._before = None

    def _forget(self) -> None:
        self._small, self._numbers = [], []

    def _see_gradient(self, number: int, parameter: torch.Tensor) -> None:
        if self._within and self._step % self._every == 0 and parameter.grad is not None:
            self._small.append(self._places.norm(parameter.grad, number))
            self._numbers.append(number)

    def wrap(self, finalize: Callable[..., None]) -> Callable[..., None]:
        """Return Megatron's finalize_model_grads, wrapped to take in the two norms of the step afterwards."""

        def finalize_and_measure(*args: Any, **kwargs: Any) -> None:
            finalize(*args, **kwargs)
            if self._within:
                self._measure()
            else:
                self._measure_consecutive()

        return finalize_and_measure

    def _measure(self) -> None:
        plan, step = self._plan, self._step
        self._step += 1
        if step % self._every:
            return
        count = plan.micro_batches
        small, big = self._read(self._square(self._small, self._numbers), self._big_square())
        self._forget()
        # Megatron divides each loss by the number of micro-batches, so each gradient came scaled by 1 / count.
        small, big = small * count / plan.dp, big if self._distributed else big / plan.dp
        small, big = self._ranks.total([small, big])
        self.scale.update(small, big, plan.micro_batch, plan.global_batch)

    def _measure_consecutive(self) -> None:
        """Compare the gradients of two consecutive steps. dp is 1: the gradients here are whole, as far as tp and pp leave them so."""
        places = self._places
        # a stage without such parameters takes part with nothing
        now = places.take([p.main_grad for p in self._parameters]) if self._parameters else torch.zeros(0, device="cpu")
        before, self._before = self._before, None
        # every rank comes here at the same steps, so that they sum together
        if before is None:
            self._before = now
            return
        pairs = ((before, before), (now, now), (before, now))
        first, second, product = self._read(*(places.product(a, b) for a, b in pairs))
        small, product = self._ranks.total([(first + second) / 2, product])
        batch = self._plan.global_batch
        self.scale.update(small, (small + product) / 2, batch, 2 * batch)

    def _square(self, norms: list[torch.Tensor], numbers: list[int]) -> torch.Tensor:
        return self._places.square(norms, numbers) if norms else torch.zeros((), device="cpu")

    def _read(self, *values: torch.Tensor) -> list[float]:
        """Read numbers that lie on the device, all in one transfer."""
        numbers: list[float] = torch.stack([value.to(values[-1].device, torch.float64) for value in values]).tolist()
        return numbers

    def _big_square(self) -> torch.Tensor:
        """Return the square of the reduced gradient. With the distributed optimizer only this rank's slice of each bucket holds it."""
        if not self._distributed:
            norms = [self._places.norm(p.main_grad, number) for number, p in enumerate(self._parameters)]
            return self._square(norms, list(range(len(norms))))
        number_by_parameter = {parameter: number for number, parameter in enumerate(self._parameters)}
        norms, numbers = [], []
        for number, part, first, _ in reduced_slices(self._model.buffers, number_by_parameter):
            norms.append(self._places.norm(part, number, first))
            numbers.append(number)
        return self._square(norms, numbers)


def reduced_slices(
    buffers: Iterable[Any], number_by_parameter: Mapping[Any, int]
) -> Iterator[tuple[int, torch.Tensor, int, int]]:
    """Yield the parts of the reduced gradient that this rank of the distributed optimizer holds, by parameter of `number_by_parameter`.

    Each is (the parameter's number, its part here, where in it that begins, how many ranks share out the buffer).
    """
    for buffer in buffers:
        size = torch.distributed.get_world_size(buffer.data_parallel_group)
        rank = torch.distributed.get_rank(buffer.data_parallel_group)
        for parameter, (start, end, bucket_id) in buffer.param_index_map.items():
            if parameter not in number_by_parameter:
                continue
            bucket = buffer.buckets[bucket_id]
            share = bucket.grad_data.numel() // size
            low = max(start - bucket.offset, rank * share)
            high = min(end - bucket.offset, (rank + 1) * share)
            if low < high:
                yield (
                    number_by_parameter[parameter],
                    bucket.grad_data.view(-1)[low:high],
                    low + bucket.offset - start,
                    size,
                )
