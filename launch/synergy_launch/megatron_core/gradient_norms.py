"""Gradient noise of a Megatron run, from the gradients that pass by anyway; Megatron's files stay as they are.

Small batch: every micro-batch's own gradient, seen by a hook on each parameter as it is accumulated (so that it works
on every schedule, and for one replica as well as many). Big batch: the averaged gradient after Megatron has reduced it.
Where one micro-batch of one replica is all of a step, two consecutive steps are compared, every other step, by a sample
of the gradient (synergy_launch.batch.gradient_sample).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from synergy_launch.agent.collectives import Collectives
from synergy_launch.batch.gradient_sample import GradientSample
from synergy_launch.batch.noise_scale import NoiseScale
from synergyd.records import Plan


class GradientNoise:
    """Watches `model` (Megatron's DistributedDataParallel); `scale` holds the estimate, equal on all ranks.

    Left out, on every plan alike: tied embeddings (with pp > 1 their two copies are summed late) and, with sequence
    parallelism, the norms' parameters (each tensor-parallel rank has only a part of their gradient).
    """

    def __init__(self, model: Any, plan: Plan, ranks: Collectives, tied_embeddings: bool, distributed: bool) -> None:
        self.scale = NoiseScale()
        self._model, self._plan, self._ranks, self._distributed = model, plan, ranks, distributed
        self._weights: dict[Any, float] = {}
        for name, parameter in model.module.named_parameters():
            if tied_embeddings and ("word_embeddings" in name or "output_layer" in name):
                continue
            if getattr(parameter, "sequence_parallel", False):
                continue
            # A parameter that every tensor-parallel rank holds whole is counted by each of them.
            self._weights[parameter] = 1.0 if getattr(parameter, "tensor_model_parallel", False) else 1.0 / plan.tp
        self._small: list[torch.Tensor] = []
        self._before: tuple[GradientSample, list[torch.Tensor]] | None = None
        self.follow(plan)
        for parameter in self._weights:
            parameter.register_post_accumulate_grad_hook(self._seen)

    def follow(self, plan: Plan) -> None:
        """From the next step on the run has this plan, of the same degrees."""
        self._plan = plan
        self._within = plan.global_batch > plan.micro_batch
        self._small.clear()
        self._before = None

    def _seen(self, parameter: torch.Tensor) -> None:
        if self._within and parameter.grad is not None:
            norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float32)
            self._small.append(norm * norm * self._weights[parameter])

    def wrap(self, finalize: Callable[..., None]) -> Callable[..., None]:
        """Megatron's finalize_model_grads, after which the two norms of the step are taken in."""

        def finalize_and_measure(*args: Any, **kwargs: Any) -> None:
            finalize(*args, **kwargs)
            if self._within:
                self._measure()
            else:
                self._measure_consecutive()

        return finalize_and_measure

    def _measure(self) -> None:
        plan = self._plan
        count = plan.micro_batches
        # Megatron divides each loss by the number of micro-batches, so each gradient came scaled by 1 / count.
        small = float(torch.stack(self._small).sum()) * count * count / (count * plan.dp) if self._small else 0.0
        self._small.clear()
        big = self._sharded_square() if self._distributed else self._whole_square() / plan.dp
        small, big = self._ranks.total([small, big])
        self.scale.update(small, big, plan.micro_batch, plan.global_batch)

    def _measure_consecutive(self) -> None:
        """dp is 1: the gradients here are whole, as far as tp and pp leave them so."""
        gradients = [p.main_grad for p in self._weights]
        before, self._before = self._before, None
        # every rank comes here at the same steps, so that they sum together
        if before is None:
            places = GradientSample(gradients, list(self._weights.values()))
            self._before = (places, places.take(gradients))
            return
        places, first = before
        second = places.take(gradients)
        squares = (places.product(first, first) + places.product(second, second)) / 2
        small, product = self._ranks.total([squares, places.product(first, second)])
        batch = self._plan.global_batch
        self.scale.update(small, (small + product) / 2, batch, 2 * batch)

    def _whole_square(self) -> float:
        terms = [
            torch.linalg.vector_norm(p.main_grad, dtype=torch.float32).square() * weight
            for p, weight in self._weights.items()
        ]
        return float(torch.stack(terms).sum()) if terms else 0.0

    def _sharded_square(self) -> float:
        """With the distributed optimizer only this rank's slice of each bucket holds reduced gradients."""
        total = 0.0
        for buffer in self._model.buffers:
            for parameter, (start, end, bucket_id) in buffer.param_index_map.items():
                weight = self._weights.get(parameter)
                if weight is None:
                    continue
                bucket = buffer.buckets[bucket_id]
                size = bucket.grad_data.numel() // self._plan.dp
                rank = bucket.grad_data.numel() and torch.distributed.get_rank(buffer.data_parallel_group)
                low = max(start - bucket.offset, rank * size)
                high = min(end - bucket.offset, (rank + 1) * size)
                if low < high:
                    part = bucket.grad_data.view(-1)[low:high]
                    total += weight * float(torch.linalg.vector_norm(part, dtype=torch.float32)) ** 2
        return total
