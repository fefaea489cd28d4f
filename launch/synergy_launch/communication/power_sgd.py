"""PowerSGD (Vogels et al. 2019): torch's hook, with its error feedback by parameter, so that a checkpoint can hold it.

torch keeps errors and warm-started factors by DDP's buckets, which DDP lays out anew after the first step of each start. Here they
follow the parameters into new buckets.

Factors, the decompressed gradient and the mean of the errors depend on the replicas' errors by their mean alone: with M_r = g_r + e_r, P is
the mean of M_r Q, and Q the mean of M_r^T P. So a checkpoint holds that mean, for any number of replicas, and a run that goes on
with it does as if each had kept its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from synergy_launch.batch.gradient_sample import GradientSample
from synergy_launch.communication.communication import Communication
from synergy_launch.communication.progress import Ratio
from synergy_launch.communication.replicas import Replicas
from synergyd.exchange import Exchange

_TORCH: Any = torch_hook  # with what it keeps to itself


class PowerSgd(Communication):
    """Parameters have one dimension or more. The noise of the gradients is not told: what is sent is none of a known batch."""

    def __init__(self, exchange: Exchange, replicas: Replicas) -> None:
        super().__init__(exchange, replicas)
        # its own count of exact steps is not used, but must be 2 or more
        self._torch = PowerSGDState(
            replicas.group, exchange.rank, start_powerSGD_iter=2, orthogonalization_epsilon=1e-8
        )
        self._torch.iter = self._torch.start_powerSGD_iter
        # torch's hook waits inside callbacks. On gloo those are its two workers' own: two buckets at a time would wait for each other
        self._blocks = dist.get_backend(replicas.group) == "gloo"
        self._names = {id(p): name for name, p in replicas.names.items()}
        self._layouts: dict[int, list[str]] = {}  # names in each bucket, by its number
        self._kept: dict[str, torch.Tensor] = {}  # of parameters in no bucket now: error.NAME, factor.NAME
        self._ratio = Ratio()
        self._numbers = {name: n for n, name in enumerate(replicas.names)}
        self._places = GradientSample(replicas.parameters)
        self._own: dict[int, torch.Tensor] = {}  # samples of this step's own gradient
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None  # own, and what was stepped with, a step ago
        replicas.model.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    @property
    def tells_noise(self) -> bool:  # type: ignore[override]
        return not self.active

    def _reduce(self, bucket: Any) -> Any:
        if not self.active:
            return allreduce_hook(self.replicas.group, bucket)
        names = [self._names[id(p)] for p in bucket.parameters()]
        for name, gradient in zip(names, bucket.gradients(), strict=True):
            number = self._numbers[name]
            self._own[number] = self._places.part(gradient, number)
        if self._layouts.get(bucket.index()) != names:
            self._lay_out(bucket, names)
        reduced = powerSGD_hook(self._torch, bucket)
        if self._blocks:
            reduced.wait()
        return reduced

    # -- errors and factors by parameter ------------------------------------------------------------------------------

    def _lay_out(self, bucket: Any, names: list[str]) -> None:
        """This bucket holds other parameters than in the step before: their errors and factors come along."""
        index = bucket.index()
        for other in [n for n in self._layouts if n >= index]:  # those before it may be on their way already
            self._take_apart(other)
        self._layouts[index] = names
        if any(f"error.{name}" not in self._kept for name in names):
            return  # torch begins them
        self._torch.error_dict[index] = torch.cat([self._kept.pop(f"error.{name}").reshape(-1) for name in names])
        factored = self._factored(names)
        device, dtype = bucket.buffer().device, bucket.buffer().dtype
        rows = sum(self.replicas.names[name].shape[0] * self._rank(name) for name in factored)
        self._torch.p_memory_dict[index] = torch.empty(rows, device=device, dtype=dtype)
        factors = [self._kept.pop(f"factor.{name}").reshape(-1) for name in factored]
        self._torch.q_memory_dict[index] = torch.cat(factors) if factors else torch.empty(0, device=device, dtype=dtype)

    def _take_apart(self, index: int) -> None:
        """A bucket's errors and factors go to `_kept`."""
        names = self._layouts.pop(index)
        error, factors = self._torch.error_dict.pop(index), self._torch.q_memory_dict.pop(index)
        del self._torch.p_memory_dict[index]
        parameters = [self.replicas.names[name] for name in names]
        for name, p, part in zip(names, parameters, torch.split(error, [p.numel() for p in parameters]), strict=True):
            self._kept[f"error.{name}"] = part.view(p.shape).clone()
        factored = self._factored(names)
        shapes = [self._factor_shape(name) for name in factored]
        for name, shape, part in zip(factored, shapes, torch.split(factors, [a * b for a, b in shapes]), strict=True):
            self._kept[f"factor.{name}"] = part.view(shape).clone()

    def _factored(self, names: list[str]) -> list[str]:
        """Those that torch factors, in the order in which it lays their factors out: shape by shape."""
        shapes: dict[tuple[int, int], list[str]] = {}
        for name in names:
            p = self.replicas.names[name]
            n, m = p.shape[0], p.numel() // max(1, p.shape[0])
            if _TORCH._should_compress(n, m, self._rank(name), self._torch.min_compression_rate)[0]:
                shapes.setdefault((n, m), []).append(name)
        return [name for group in shapes.values() for name in group]

    def _rank(self, name: str) -> int:
        p: torch.Tensor = self.replicas.names[name]
        return min(int(p.shape[0]), p.numel() // max(1, int(p.shape[0])), self.exchange.rank)

    def _factor_shape(self, name: str) -> tuple[int, int]:
        p = self.replicas.names[name]
        return p.numel() // max(1, p.shape[0]), self._rank(name)

    # -- what the training loop asks ----------------------------------------------------------------------------------

    def gradients(self, scale: float) -> list[float]:
        """Measured: this step's own gradient times what was stepped with a step ago, and times the own gradient of then."""
        if not self.active:
            return []
        own = torch.cat([self._own[n] for n in sorted(self._own)])
        self._own.clear()
        held = [p.grad for p in self.replicas.parameters if p.grad is not None]
        told = [0.0, 0.0]
        if self._before is not None and len(held) == len(self._numbers):
            told = torch.stack([self._places.product(own, one) for one in self._before[::-1]]).tolist()
        self._before = (own, self._places.take(held)) if len(held) == len(self._numbers) else None
        return told

    def measured(self, sums: list[float]) -> None:
        if any(sums):
            self._ratio.add(*sums)

    def settle(self, update: Callable[[], None], scale: float) -> None:
        """The errors become their mean."""
        if self.active:
            self._before = None
            self.replicas.average([self._torch.error_dict[index] for index in sorted(self._torch.error_dict)])

    @property
    def efficiency(self) -> float | None:
        """<next gradient, what was stepped with> over <next gradient, fresh gradient>."""
        return self._ratio.value if self.active else 1.0

    def tensors(self) -> dict[str, torch.Tensor]:
        for index in list(self._layouts):
            self._take_apart(index)
        return dict(self._kept)

    def blank(self, names: list[str]) -> dict[str, torch.Tensor]:
        found = {}
        for key in names:
            kind, _, name = key.partition(".")
            p = self.replicas.names.get(name)
            if p is not None and kind in ("error", "factor"):
                found[key] = p.new_zeros(p.shape if kind == "error" else self._factor_shape(name))
        return found

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._kept = dict(tensors)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "ratio": self._ratio.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._ratio.restore(state["ratio"])
