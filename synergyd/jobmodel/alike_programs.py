"""Measurements of programs that differ in their names alone and run as one.

For jobs whose model is not known. Programs of one user that say the same of their batches may be one program under many names (a sweep
over hyperparameters) or have nothing in common. Their step times tell which: each program is compared with the others, again whenever it
has measured something. A program that has measured and was not found to agree is told nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from synergy_core.records import Measurement, Plan, Profile, Shape

from synergyd.jobmodel.learning import round_to_grid

# |log| of two step times that are still one program's, in the median: about three sigmas of a measured one (throughput.NOISE)
SAME = 0.1
# Micro-batches that differ by no more are compared on the same GPUs: a step takes 1 to so many times as long
_NEAR = 1.25
# So many more than the first, less _DIFFERS for each that differs, and what they measured is used: more than four of five are to agree. One
# is enough: two unlike programs, whose times are spread over e^1.5 (throughput's priors), meet within SAME in one case of twenty.
_AGREE, _DIFFERS = 1, 4
_LATEST = 32  # programs whose agreement counts
_STRIKES = 2  # so many in a row that differ where few agree, and the latest is what others are compared with
_KEPT, _KEPT_A_SHAPE = 48, 3  # measurements
_KINDS = 10_000

_Where = tuple[Plan, Shape]


@dataclass
class _Kind:
    """The programs of one kind.

    `agrees`: by program, the first of all and the latest. `measured`: by the programs that agree, each with its program.
    """

    agrees: dict[str, bool] = field(default_factory=dict)
    measured: dict[_Where, tuple[Measurement, str]] = field(default_factory=dict)
    noise_scale: float | None = None
    noise_programs: frozenset[str] = frozenset()  # programs whose noise scale counts
    strikes: int = 0

    @property
    def is_trusted(self) -> bool:
        agree = sum(self.agrees.values()) - 1
        return agree - _DIFFERS * (len(self.agrees) - 1 - agree) >= _AGREE


class AlikePrograms:
    """The programs that say the same of themselves, by kind. The kind "" is none."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def take(self, kind: str, program: str, profile: Profile) -> None:
        """Take over everything that runs of `program` have measured so far."""
        if not kind or not profile.measured:
            return
        group = self._kinds.pop(kind, None) or _Kind()
        # its own measurements say nothing of the others, and those that it no longer has were dropped
        group.measured = {where: row for where, row in group.measured.items() if row[1] != program}
        agrees = _agrees(group.measured, profile) if group.measured else True
        before = group.agrees.get(program)
        agrees = before if agrees is None else agrees
        if agrees is not None and agrees != before:
            group.strikes = 0 if agrees else group.strikes + 1
            if group.strikes >= _STRIKES and not group.is_trusted:
                group, agrees = _Kind(), True
            group.agrees.pop(program, None)
            group.agrees[program] = agrees
            if len(group.agrees) > _LATEST:
                del group.agrees[next(iter(group.agrees))]
        if agrees:
            _join(group, program, profile)
        self._kinds[kind] = group
        while len(self._kinds) > _KINDS:
            del self._kinds[next(iter(self._kinds))]

    def find_measurements(
        self, kind: str, program: str, has_measured: bool
    ) -> tuple[tuple[Measurement, ...], float | None] | None:
        """Return (measurements, noise scale in samples) of the programs of this kind.

        Return None if they do not run as one, or if this program has measured and did not agree.
        """
        group = self._kinds.get(kind)
        if group is None or not group.is_trusted or not group.agrees.get(program, not has_measured):
            return None
        return tuple(m for m, _ in group.measured.values()), group.noise_scale


def _join(group: _Kind, program: str, profile: Profile) -> None:
    of_shape = Counter(shape for _, shape in group.measured)
    for m in profile.measured:
        where = m.plan, m.shape
        room = len(group.measured) < _KEPT and of_shape[m.shape] < _KEPT_A_SHAPE
        if m.step_s > 0 and where not in group.measured and room:
            group.measured[where] = replace(m, step_s=round_to_grid(m.step_s), samples=1), program
            of_shape[m.shape] += 1
    noise = profile.noise_scale
    if program not in group.noise_programs and noise is not None and noise > 0:
        group.noise_programs = (group.noise_programs & group.agrees.keys()) | {program}
        before = group.noise_scale
        group.noise_scale = round_to_grid(noise if before is None else math.sqrt(before * noise))


def _agrees(others: Mapping[_Where, tuple[Measurement, str]], profile: Profile) -> bool | None:
    """Return whether the step times agree with those of the others, in the median, or None if none can be compared."""
    off = sorted(log_ratio for m in profile.measured if (log_ratio := _log_ratio(others, m)) is not None)
    return off[len(off) // 2] <= SAME if off else None


def _log_ratio(others: Mapping[_Where, tuple[Measurement, str]], own: Measurement) -> float | None:
    """Return |log| of the ratio between `own`'s step time and what the nearest of `others` allows, or None if none is near."""
    if own.step_s <= 0:
        return None
    if (same := others.get((own.plan, own.shape))) is not None:
        return abs(math.log(own.step_s / same[0].step_s))
    distances = []
    for m in (m for m, _ in others.values() if _comparable(m, own)):
        longer, ratio = math.log(own.step_s / m.step_s), math.log(own.plan.micro_batch / m.plan.micro_batch)
        # a step of a micro-batch r times as large takes 1 to r times as long (T_grad is affine in it, T_sync the same)
        distances.append(max(min(ratio, 0.0) - longer, longer - max(ratio, 0.0), 0.0))
    return min(distances, default=None)


def _comparable(one: Measurement, other: Measurement) -> bool:
    """Return whether both have the same GPUs, degrees and passes, and micro-batches that are near one another."""
    low, high = sorted((one.plan.micro_batch, other.plan.micro_batch))
    if one.shape != other.shape or low < 1 or high > _NEAR * low:
        return False
    batch = other.plan.global_batch
    return replace(one.plan, micro_batch=other.plan.micro_batch, global_batch=batch) == other.plan and (
        one.plan.micro_batches == other.plan.micro_batches
    )
