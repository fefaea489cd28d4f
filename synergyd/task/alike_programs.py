"""Programs that differ in their names alone: what they have measured, once several of them have run as one.

For jobs whose model is not known. Those of one user that say the same of their batches may be one program under many names (a sweep over
hyperparameters) or have nothing in common. Their step times tell: each program is compared with those before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from synergyd.records import Measurement, Plan, Profile, Shape
from synergyd.task.learning import rounded

# |log| of two step times of one plan on one shape, in the median, that are still one program's: about three sigmas of a measured one
# (throughput.NOISE)
SAME = 0.1
# So many more than the first, less _DIFFERS for each that differs, and what they measured is used: four of five are to agree. One is
# enough: two unlike programs, whose times are spread over e^1.5 (throughput's priors), meet within SAME in one case of twenty.
_AGREE, _DIFFERS = 1, 4
_LATEST = 32  # programs whose agreement counts
_STRIKES = 2  # so many in a row that differ where few agree, and the latest is what others are compared with
_KEPT = 48  # measurements
_KINDS = 10_000


@dataclass
class _Kind:
    """`agrees` by program, the first of all and the latest; `known`: what those that agree have measured, and their noise scale."""

    agrees: dict[str, bool] = field(default_factory=dict)
    measured: dict[tuple[Plan, Shape], Measurement] = field(default_factory=dict)
    noise_scale: float | None = None
    heard: set[str] = field(default_factory=set)  # programs whose noise scale counts
    strikes: int = 0

    @property
    def trusted(self) -> bool:
        agree = sum(self.agrees.values()) - 1
        return agree - _DIFFERS * (len(self.agrees) - 1 - agree) >= _AGREE


class AlikePrograms:
    """By kind: the programs that say the same of themselves."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def take(self, kind: str, program: str, profile: Profile) -> None:
        """What runs of `program` have measured by now."""
        if not profile.measured:
            return
        known = self._kinds.pop(kind, None) or _Kind()
        self._kinds[kind] = known
        while len(self._kinds) > _KINDS:
            del self._kinds[next(iter(self._kinds))]
        agrees = known.agrees.get(program)
        if agrees is None:
            agrees = _agrees(known.measured, profile.measured) if known.measured else True
            if agrees is None:
                return
            known.strikes = 0 if agrees else known.strikes + 1
            if known.strikes >= _STRIKES and not known.trusted:
                known = self._kinds[kind] = _Kind()
                agrees = True
            known.agrees[program] = agrees
            if len(known.agrees) > _LATEST:
                del known.agrees[next(iter(known.agrees))]
        if agrees:
            _join(known, program, profile)

    def known(self, kind: str, program: str) -> tuple[tuple[Measurement, ...], float | None] | None:
        """(measurements, noise scale in samples) of the programs of its kind; None where they do not run as one, or this one does not as
        they do."""
        known = self._kinds.get(kind)
        if known is None or not known.trusted or known.agrees.get(program) is False:
            return None
        return tuple(known.measured.values()), known.noise_scale


def _join(known: _Kind, program: str, profile: Profile) -> None:
    for m in profile.measured:
        key = m.plan, m.shape
        if m.step_s > 0 and key not in known.measured:
            known.measured[key] = replace(m, step_s=rounded(m.step_s), samples=1)
            if len(known.measured) > _KEPT:
                del known.measured[next(iter(known.measured))]
    noise = profile.noise_scale
    if program not in known.heard and noise is not None and noise > 0:
        known.heard = {*known.heard & known.agrees.keys(), program}
        before = known.noise_scale
        known.noise_scale = rounded(noise if before is None else math.sqrt(before * noise))


def _agrees(known: Mapping[tuple[Plan, Shape], Measurement], own: Sequence[Measurement]) -> bool | None:
    """Are the step times of the same plans on the same shapes the same, in the median? None where there are none."""
    off = sorted(
        abs(math.log(m.step_s / known[m.plan, m.shape].step_s))
        for m in own
        if (m.plan, m.shape) in known and m.step_s > 0
    )
    return off[len(off) // 2] <= SAME if off else None
