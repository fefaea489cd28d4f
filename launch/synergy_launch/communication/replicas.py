"""The replicas of one run as their exchange sees them: averages over them, and the link gate that bulk messages pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import _utils
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.links.hooks import Ends
from synergy_launch.links.link_gate import LinkGate

_UTILS: Any = _utils  # what DDP itself flattens by, which is not typed
_BUCKET_BYTES = 25 << 20  # DistributedDataParallel's own default


class Replicas:
    """`model` on all ranks of its process group, its optimizer, and this rank's link gate if it has one."""

    def __init__(
        self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, gate: LinkGate | None = None
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.group = model.process_group
        self.world: int = dist.get_world_size(self.group)
        self.names = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        self.parameters = list(self.names.values())
        self._gate, self._ends = gate, Ends(gate) if gate is not None else None

    def buffers(self) -> list[torch.Tensor]:
        """Those that can be averaged, such as BatchNorm's: DDP leaves them alone in steps that it does not synchronise."""
        return [b for b in self.model.module.buffers() if b.is_floating_point()]

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Each becomes its mean over the ranks, in place and in its own precision. All ranks give the same shapes."""
        chosen = [t.detach() for t in tensors]
        if not chosen:
            return
        asked = self.begin(sum(t.numel() * t.element_size() for t in chosen))
        for bucket in _buckets(chosen):
            flat = _copied(bucket).div_(self.world)
            dist.all_reduce(flat, group=self.group)
            for tensor, mean in zip(bucket, _UTILS._unflatten_dense_tensors(flat, bucket), strict=True):
                tensor.copy_(mean)
        if asked:
            self.end()

    def begin(self, size_bytes: int) -> bool:
        """A message of so many bytes is ready; returns when it may go. Whether its `end` is to be told."""
        if self._gate is None or self._ends is None or not self._gate.asks:
            return False
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # kernels are queued: is the message really ready?
        if not self._ends.settled():
            return False
        self._gate.begin(size_bytes)
        return True

    def end(self) -> None:
        """The message has arrived, or will have when the present stream has come so far."""
        if self._ends is not None:
            self._ends.end()


class MeanUnderWay:
    """Means over the ranks of `factor` times what is in `tensors` now, on their way while something else is computed.

    `square` is the squared norm of this rank's own, a number on their device.
    """

    def __init__(self, replicas: Replicas, tensors: Sequence[torch.Tensor], factor: float) -> None:
        chosen = [t.detach() for t in tensors]
        buckets = _buckets(chosen)
        flats = [_copied(bucket).mul_(factor) for bucket in buckets]
        norms = [torch.linalg.vector_norm(flat, dtype=torch.float32).to(torch.float64) for flat in flats]
        self.square = torch.stack(norms).square().sum()
        parts = [
            p
            for flat, bucket in zip(flats, buckets, strict=True)
            for p in _UTILS._unflatten_dense_tensors(flat, bucket)
        ]
        places = {id(t): part for t, part in zip((t for b in buckets for t in b), parts, strict=True)}
        self._means = [places[id(t)] for t in chosen]
        asked = replicas.begin(sum(flat.numel() * flat.element_size() for flat in flats))
        group = replicas.group
        self._works: list[Any] = [
            dist.all_reduce(flat.div_(replicas.world), group=group, async_op=True) for flat in flats
        ]
        self._ended = self._works[-1].get_future().then(lambda _: replicas.end()) if asked else None

    def wait(self) -> list[torch.Tensor]:
        """The means, in the order that was given; the present stream waits for them."""
        for work in self._works:
            work.wait()
        return self._means


def _copied(bucket: Sequence[torch.Tensor]) -> torch.Tensor:
    # torch's own _flatten_dense_tensors gives a single tensor itself, which would be overwritten on its way
    return torch.cat([t.reshape(-1) for t in bucket])


def _buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """By type and device, of about 25 MiB, the order kept inside each: the same on all ranks."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return [list(bucket) for kind in kinds.values() for bucket in _UTILS._take_tensors(kind, _BUCKET_BYTES)]
