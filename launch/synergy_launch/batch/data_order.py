"""The order of the examples: a pure function of the seed and the example's number in the run.

A run counts the samples it has trained on. Sample n is the same example on every plan and after every restart, so none
is skipped or seen twice when the data-parallel degree, or even the global batch, changes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.records import Plan

_ROUNDS = 4


@dataclass(frozen=True)
class SampleOrder:
    """An endless order over `count` examples: each epoch is a permutation of its own, made from `seed`.

    The permutation is a Feistel network on the next power of four, walked until it lands below `count` (Black and Rogaway, 2002, "Ciphers
    with arbitrary finite domains", section 4). It takes no memory, however large the data set.
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("an order needs at least one example")

    def index(self, sample: int) -> int:
        """Return the example, in [0, count), that is sample number `sample` (from 0) of the run."""
        epoch, value = divmod(sample, self.count)
        half = max(1, ((self.count - 1).bit_length() + 1) // 2)
        while True:
            value = self._permute(value, half, epoch)
            if value < self.count:
                return value

    def _permute(self, value: int, half: int, epoch: int) -> int:
        mask = (1 << half) - 1
        left_half, right_half = value >> half, value & mask
        for i in range(_ROUNDS):
            word = f"{self.seed}/{epoch}/{i}/{right_half}".encode()
            left_half, right_half = (
                right_half,
                left_half ^ (int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "big") & mask),
            )
        return left_half << half | right_half


@dataclass(frozen=True)
class DataSetOrder(SampleOrder):
    """An endless order over `count` examples that is the data set's own in each epoch."""

    def index(self, sample: int) -> int:
        return sample % self.count


@dataclass(frozen=True)
class SkippedSamples:
    """The samples that a run leaves out: (first, last) numbers, ascending, no two of them adjacent."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def read(cls, data: Any) -> SkippedSamples:
        """Read them from a checkpoint's metadata. Raises UsageError: with others the run would not go on as it was."""
        ranges, after = [], -1
        try:
            for first, last in data or ():
                if type(first) is not int or type(last) is not int or not after < first <= last:
                    raise ValueError
                ranges.append((first, last))
                after = last + 1
        except (TypeError, ValueError):
            raise UsageError("checkpoint", "its list of skipped examples can't be read", "use an older one") from None
        return cls(tuple(ranges))

    def number(self, position: int) -> int:
        """Return the number of the sample that comes after `position` others that are not left out."""
        number = position
        for first, last in self.ranges:
            if number < first:
                break
            number += last - first + 1
        return number

    def with_positions(self, start: int, end: int) -> SkippedSamples:
        """Return these and the samples at positions from `start` up to `end`, without it (`start` < `end`)."""
        first, last = self.number(start), self.number(end - 1)
        others = []
        for a, b in self.ranges:
            if b + 1 < first or a > last + 1:
                others.append((a, b))
            else:  # inside, or adjacent
                first, last = min(a, first), max(b, last)
        return SkippedSamples(tuple(sorted([*others, (first, last)])))


NOTHING_SKIPPED = SkippedSamples()


def rank_samples(start: int, global_batch: int, dp: int, rank: int, micro_batch: int) -> list[list[int]]:
    """Return the sample numbers of one rank's micro-batches in the step that begins at sample `start`.

    Over all ranks these are exactly start .. start + global_batch - 1.
    """
    steps = global_batch // (dp * micro_batch)
    return [[start + (m * dp + rank) * micro_batch + j for j in range(micro_batch)] for m in range(steps)]


@dataclass(frozen=True)
class RankIndices:
    """The examples of one rank's micro-batches after `start` others of the run, without end: a batch sampler."""

    order: SampleOrder
    plan: Plan
    rank: int
    start: int
    skipped: SkippedSamples = NOTHING_SKIPPED

    def __iter__(self) -> Iterator[list[int]]:
        plan = self.plan
        for start in itertools.count(self.start, plan.global_batch):
            for numbers in rank_samples(start, plan.global_batch, plan.dp, self.rank, plan.micro_batch):
                yield [self.order.index(self.skipped.number(number)) for number in numbers]
