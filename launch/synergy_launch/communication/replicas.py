"""The replicas of one run as their exchange sees them: averages over them, and the link gate that bulk messages pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import _utils
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.links.hooks import MessageEnds
from synergy_launch.links.link_gate import LinkGate

_UTILS: Any = _utils  # DDP's own flattening functions, which are not typed
_BUCKET_BYTES = 25 << 20  # DistributedDataParallel's own default


class Replicas:
    """`model` on all ranks of its process group, its optimizer, and this rank's link gate if it has one."""

    def __init__(
        self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, gate: LinkGate | None = None
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.group = model.process_group
        self.world: int = dist.get_world_size(self.group)
        self.parameters = [p for p in model.module.parameters() if p.requires_grad]
        self._gate, self._ends = gate, MessageEnds(gate) if gate is not None else None

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers that can be averaged, such as BatchNorm's: DDP leaves them alone in steps that it does not synchronise."""
        return [b for b in self.model.module.buffers() if b.is_floating_point()]

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its mean over the ranks, in place and in its own precision. All ranks give the same shapes."""
        values = [t.detach() for t in tensors]
        if not values:
            return
        needs_end = self.begin(sum(t.numel() * t.element_size() for t in values))
        for bucket in _buckets(values):
            flat = _flatten(bucket).div_(self.world)
            dist.all_reduce(flat, group=self.group)
            for tensor, mean in zip(bucket, _UTILS._unflatten_dense_tensors(flat, bucket), strict=True):
                tensor.copy_(mean)
        if needs_end:
            self.end()

    def begin(self, size_bytes: int) -> bool:
        """Wait until a message of `size_bytes` that is ready may go. Return whether its `end` is to be told."""
        if self._gate is None or self._ends is None or not self._gate.is_asking:
            return False
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # kernels are queued: is the message really ready?
        if not self._ends.wait_until_reported():
            return False
        self._gate.begin(size_bytes)
        return True

    def end(self) -> None:
        """Tell the gate that the message has arrived, or will have when the present stream has come so far."""
        if self._ends is not None:
            self._ends.end()


def _flatten(bucket: Sequence[torch.Tensor]) -> torch.Tensor:
    # torch's own _flatten_dense_tensors gives a single tensor itself, which would be overwritten on its way
    return torch.cat([t.reshape(-1) for t in bucket])


def _buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the tensors in buckets by type and device, of about 25 MiB each.

    The order is kept inside each bucket, so the buckets are the same on all ranks.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return [list(bucket) for kind in kinds.values() for bucket in _UTILS._take_tensors(kind, _BUCKET_BYTES)]
