"""The training data of a Lightning run: examples by their number in the run, as synergy_launch.batch.data_order has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.records import Plan
from torch.utils.data import DataLoader

from synergy_launch.batch.data_order import DataSetOrder, RankIndices, SampleOrder

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class SampleLoader:
    """One rank's micro-batches of an epoch: of as many whole steps of `unit` as `dataset` has.

    The examples that are left over come first in the next one.

    `start` tells the number of the first example when the first batch is asked for: Lightning makes the iterator before it has loaded
    its checkpoint. `seed`: of the order, None: the data set's own. `options` are a DataLoader's. Raises UsageError.
    """

    def __init__(
        self, dataset: Any, unit: Plan, rank: int, seed: int | None, start: Callable[[], int], options: dict[str, Any]
    ) -> None:
        where = "SynergyCallback.loader"
        for name in _OURS:
            if name in options:
                raise UsageError(where, f"{name}= is Synergy's to set", "leave it out")
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise UsageError(where, "the data set has no length, or no examples by number", "one with len and [index]")
        self.steps, self._micro_batches = len(dataset) // unit.global_batch, unit.micro_batches
        if self.steps < 1:
            what = f"the data set has {len(dataset)} examples, fewer than global_batch={unit.global_batch}"
            raise UsageError(where, what, "a smaller global_batch")
        self.start = start
        self._order = DataSetOrder(len(dataset)) if seed is None else SampleOrder(len(dataset), seed)
        self._unit, self._rank = unit, rank
        self._loader = DataLoader(dataset, batch_sampler=_Sampler(self._indices, len(self)), **options)

    def __len__(self) -> int:
        return self.steps * self._micro_batches

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader  # from the first `next` on

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: the step tells the place. Lightning warns of loaders that have no state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the state, which is empty."""

    def _indices(self) -> Iterator[list[int]]:
        return iter(RankIndices(self._order, self._unit, self._rank, self.start()))


class _Sampler:
    """`count` batches from wherever the run stands."""

    def __init__(self, indices: Callable[[], Iterator[list[int]]], count: int) -> None:
        self._indices, self._count = indices, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        for _, batch in zip(range(self._count), self._indices(), strict=False):
            yield batch
