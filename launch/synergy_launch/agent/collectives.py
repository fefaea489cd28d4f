"""The few collective operations that the agent and the checkpoints need, over the host network (gloo).

`OneProcess` is the same for one process and needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Collectives(Protocol):
    """All processes of a training run, as one of them sees them."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Return the element-wise maximum over the ranks (non-negative 63-bit integers)."""

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise sum over the ranks, in double precision."""

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value, on every rank. Small picklable values only."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value in the order of ranks, on every rank. Small picklable values only."""

    def barrier(self) -> None: ...


class OneProcess:
    """The collectives of one process: every answer is its own."""

    rank = 0
    world = 1

    def maximum(self, values: Sequence[int]) -> list[int]:
        return list(values)

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        return None


class TorchCollectives:
    """The default process group of torch.distributed, which must be initialised, with a gloo group of its own beside it.

    The gloo group keeps the agent's messages from being mixed up with those of the training library.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.group = dist.new_group(backend="gloo")

    def maximum(self, values: Sequence[int]) -> list[int]:
        import torch

        tensor = torch.tensor(list(values), dtype=torch.int64, device="cpu")
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX, group=self.group)
        return [int(value) for value in tensor.tolist()]

    def total(self, values: Sequence[float]) -> list[float]:
        import torch

        tensor = torch.tensor(list(values), dtype=torch.float64, device="cpu")
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.SUM, group=self.group)
        return [float(value) for value in tensor.tolist()]

    def broadcast(self, value: Any) -> Any:
        box = [value]
        self._dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world
        self._dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        # An all-reduce rather than dist.barrier(): the latter takes the GPU's device where there is one.
        self.maximum([0])
