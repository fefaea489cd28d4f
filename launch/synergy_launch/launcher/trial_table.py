"""Two runs of a script, one left alone and one resized, compared step by step. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SAME_LOSS = 1e-3  # relative: sums in another order, in bf16 too
_SAME_RATE = 1e-6
_SIGMAS = 3.0  # of the difference of two means of a few steps


@dataclass(frozen=True)
class StepRecord:
    """One step of all processes. `loss`: their mean, None where no process knows one. `rows`: a number for each example."""

    step: int
    loss: float | None
    rate: float
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How the resized run differs from the one left alone. Losses and rates are those after step `saved`, up to `last`."""

    saved: int
    last: int
    batch: int  # examples a step, of the run left alone
    resized_batch: int  # the same after the resize
    examples: int
    repeated: int  # seen more often than by the run left alone
    other: int  # not seen by it at all
    skipped: int
    has_random_inputs: bool  # the examples differ without a resize, too
    has_random_losses: bool  # the same of the losses: the script sets no seed
    rate_difference: float  # relative, the largest
    loss: float | None
    resized_loss: float | None
    loss_difference: float | None  # the largest of a step
    scatter: float  # one sigma of the difference of the mean losses, by how much steps differ

    @property
    def is_same_batch(self) -> bool:
        return self.batch == self.resized_batch

    @property
    def is_same_data(self) -> bool:
        """Return whether the runs saw the same examples; True where inputs are random, which then can't be known."""
        return self.has_random_inputs or not (self.repeated or self.other or self.skipped)

    @property
    def is_same_rate(self) -> bool:
        return self.rate_difference <= _SAME_RATE

    @property
    def is_same_loss(self) -> bool:
        """Return whether each step has the same loss."""
        if self.loss is None or self.loss_difference is None:
            return False
        return _are_close(self.loss, self.loss + self.loss_difference)

    @property
    def is_alike(self) -> bool:
        """Return whether the mean losses differ by no more than steps do: other random numbers, as of dropout."""
        if self.loss is None or self.resized_loss is None:
            return False
        return self.is_same_loss or abs(self.loss - self.resized_loss) <= _SIGMAS * self.scatter

    @property
    def is_good(self) -> bool:
        is_same_loss = self.is_alike or (self.has_random_losses and self.loss_difference is not None)
        return self.is_same_batch and self.is_same_data and self.is_same_rate and is_same_loss


def _are_close(loss: float, other: float) -> bool:
    return abs(loss - other) <= _SAME_LOSS * max(1.0, abs(loss))


def merge(ranks: Sequence[Iterable[Mapping[str, Any]]], after: int = 0) -> list[StepRecord]:
    """Return the steps that all processes have recorded, counted on from step `after`."""
    merged = []
    for lines in zip(*ranks, strict=False):
        losses = [line["loss"] for line in lines]
        loss = None if None in losses else statistics.fmean(losses)
        rows = tuple(sorted(row for line in lines for row in line["rows"]))
        merged.append(StepRecord(after + int(lines[0]["step"]), loss, float(lines[0]["rate"]), rows))
    return merged


def compare(alone: Sequence[StepRecord], resized: Sequence[StepRecord], saved: int) -> Comparison:
    """Return the difference of two runs, of which one was resized after step `saved`. Both have steps after it.

    Raises ValueError if not.
    """
    last = min(alone[-1].step if alone else 0, resized[-1].step if resized else 0)
    pairs = [(a, b) for a in alone for b in resized if a.step == b.step and saved < a.step <= last]
    if not pairs:
        raise ValueError(f"no step after {saved} was made by both runs")
    alone_rows = Counter(row for record in alone if record.step <= last for row in record.rows)
    resized_rows = Counter(row for record in resized if record.step <= last for row in record.rows)
    extra = resized_rows - alone_rows
    before = [Counter(row for record in run if record.step <= saved for row in record.rows) for run in (alone, resized)]
    losses = [(a.loss, b.loss) for a, b in pairs if a.loss is not None and b.loss is not None]
    first = [(a.loss, b.loss) for a, b in zip(alone, resized, strict=False) if a.step == b.step <= saved]
    is_random = any(a is not None and b is not None and not _are_close(a, b) for a, b in first)
    spread = sum(statistics.variance(run) for run in zip(*losses, strict=True)) if len(losses) > 1 else 0.0
    return Comparison(
        saved=saved,
        last=last,
        batch=len(pairs[-1][0].rows),
        resized_batch=len(pairs[-1][1].rows),
        examples=alone_rows.total(),
        repeated=sum(count for row, count in extra.items() if row in alone_rows),
        other=sum(count for row, count in extra.items() if row not in alone_rows),
        skipped=(alone_rows - resized_rows).total(),
        has_random_inputs=before[0] != before[1],
        has_random_losses=is_random,
        rate_difference=max(abs(a.rate - b.rate) / max(abs(a.rate), 1e-30) for a, b in pairs),
        loss=statistics.fmean(a for a, _ in losses) if losses else None,
        resized_loss=statistics.fmean(b for _, b in losses) if losses else None,
        loss_difference=max(abs(a - b) for a, b in losses) if losses else None,
        scatter=(spread / len(losses)) ** 0.5 if losses else 0.0,
    )


def format_examples(comparison: Comparison) -> str:
    """Return how the examples of the resized run differ."""
    if comparison.has_random_inputs:
        return "random inputs: not known"
    counts = ((comparison.repeated, "seen again"), (comparison.other, "others"), (comparison.skipped, "not seen"))
    parts = [f"{count} {what}" for count, what in counts if count]
    return f"{', '.join(parts)}, of {comparison.examples}" if parts else f"{comparison.examples} seen once"


def format_loss(comparison: Comparison) -> str:
    """Return whether the losses are the same."""
    if comparison.is_same_loss:
        return "the same"
    if comparison.has_random_losses:
        return "random (no seed): not known"
    return "alike (other random numbers)" if comparison.is_alike else "DIFFERS"


def format_table(comparison: Comparison, sizes: tuple[int, int]) -> list[str]:
    """Return the lines of the table that a user reads."""
    first, second = sizes

    def verdict(is_same: bool) -> str:
        return "the same" if is_same else "DIFFERS"

    data = format_examples(comparison)
    loss = "unknown: no backward() of a loss was seen"
    if comparison.loss is not None and comparison.resized_loss is not None and comparison.loss_difference is not None:
        loss = f"{comparison.loss:.6g} | {comparison.resized_loss:.6g} | at most {comparison.loss_difference:.2g} in a step: "
        loss += format_loss(comparison)
    rows = [
        ("", f"left alone on {first} | {first}, from step {comparison.saved + 1} on {second} |"),
        ("steps", f"{comparison.saved + 1} to {comparison.last}"),
        ("batch", f"{comparison.batch} | {comparison.resized_batch} | {verdict(comparison.is_same_batch)}"),
        ("examples", f"{data}{'' if comparison.has_random_inputs else f': {verdict(comparison.is_same_data)}'}"),
        ("learning rate", f"{comparison.rate_difference:.1g} off: {verdict(comparison.is_same_rate)}"),
        ("loss", loss),
    ]
    return [f"{name:<15}{text}" for name, text in rows]
