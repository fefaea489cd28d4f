"""What forecasts were worth here: the intervals of new ones are widened, narrowed and moved by how the last ones came out. Pure.

Conformalised quantile regression (Romano, Patterson, Candes 2019) on each side of its own, over the latest `_KEPT` outcomes: whatever the
simulation leaves out (jobs still to come, priorities that change), of past forecasts 8 in 10 would have held. Errors are counted on a
logarithmic scale of the time ahead, and by how far ahead the forecast looked, as soon as there are `_ENOUGH` of that kind.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from synergy_core.expected import Expected

COVERAGE = 0.8
_KEPT, _ENOUGH = 400, 40
_LEAST = 10  # outcomes before which forecasts are as the simulation has them
_UNIT_S = 30.0  # Slurm's backfill looks that often (bf_interval): shorter times are alike
_SPANS_S = (300.0, 3600.0, 8 * 3600.0)  # bounds of the kinds of forecasts
_AGAIN = 2.0  # a job's next forecast is remembered when its wait has grown by this factor
_OPEN = 4000  # remembered forecasts at most


@dataclass
class _Errors:
    """The errors of the latest forecasts of one kind: how far each quantile lay above the outcome, on the scale."""

    low: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    middle: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    high: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, made_s: float, expected: Expected, at_s: float) -> None:
        true = _scale(at_s - made_s)
        self.low.append(_scale(expected.low_s - made_s) - true)
        self.middle.append(_scale(expected.middle_s - made_s) - true)
        self.high.append(_scale(expected.high_s - made_s) - true)


class Calibration:
    """The outcomes of past forecasts of one thing: of starts, or of ends."""

    def __init__(self) -> None:
        self._open: dict[int, list[tuple[float, Expected]]] = {}
        self._kinds = [_Errors() for _ in range(len(_SPANS_S) + 1)]

    def note(self, key: int, made_s: float, expected: Expected, since_s: float) -> None:
        """Remember a forecast as the simulation had it, unless the job's last one is as good as new. `since_s`: when its wait began."""
        forecasts = self._open.setdefault(key, [])
        if forecasts and made_s - since_s < _AGAIN * (forecasts[-1][0] - since_s) + _UNIT_S:
            return
        forecasts.append((made_s, expected))
        while len(self._open) > _OPEN:
            del self._open[next(iter(self._open))]

    def settle(self, key: int, at_s: float) -> None:
        """Learn from what happened at `at_s`."""
        for made_s, expected in self._open.pop(key, ()):
            if at_s >= made_s:
                self._kinds[_kind(expected.middle_s - made_s)].add(made_s, expected, at_s)

    def forget_all_but(self, keys: Iterable[int]) -> None:
        """Forget what can't be settled any more."""
        here = frozenset(keys)
        self._open = {key: forecasts for key, forecasts in self._open.items() if key in here}

    def apply(self, now_s: float, expected: Expected) -> Expected:
        """Return the forecast with the errors of its kind taken off."""
        kind = _kind(expected.middle_s - now_s)
        errors = self._kinds[kind]
        if len(errors.low) < _ENOUGH:
            errors = _joined(self._kinds)
        if len(errors.low) < _LEAST:
            return expected
        tail = (1 - COVERAGE) / 2
        low = _scale(expected.low_s - now_s) - _quantile(errors.low, 1 - tail)
        middle = _scale(expected.middle_s - now_s) - _quantile(errors.middle, 0.5)
        high = _scale(expected.high_s - now_s) - _quantile(errors.high, tail)
        low, high = min(low, middle), max(high, middle)
        return Expected(low_s=now_s + _seconds(low), middle_s=now_s + _seconds(middle), high_s=now_s + _seconds(high))

    def to_json(self) -> list[list[list[float]]]:
        """Return the errors, to be stored."""
        return [[list(map(_short, some)) for some in (e.low, e.middle, e.high)] for e in self._kinds]

    def load(self, stored: object) -> None:
        """Take over what `to_json` returned. What makes no sense is left out."""
        if not isinstance(stored, list) or len(stored) != len(self._kinds):
            return
        for errors, lists in zip(self._kinds, stored, strict=True):
            if isinstance(lists, list) and len(lists) == 3 and len({len(x) for x in lists if isinstance(x, list)}) == 1:
                for quantile_errors, values in zip((errors.low, errors.middle, errors.high), lists, strict=True):
                    quantile_errors.extend(float(v) for v in values if isinstance(v, int | float) and math.isfinite(v))


def _short(value: float) -> float:
    return round(value, 4)


def _joined(kinds: Iterable[_Errors]) -> _Errors:
    whole = _Errors(deque(), deque(), deque())
    for errors in kinds:
        whole.low.extend(errors.low)
        whole.middle.extend(errors.middle)
        whole.high.extend(errors.high)
    return whole


def _kind(ahead_s: float) -> int:
    return sum(ahead_s >= bound for bound in _SPANS_S)


def _scale(ahead_s: float) -> float:
    return math.log1p(max(0.0, ahead_s) / _UNIT_S)


def _seconds(scaled: float) -> float:
    return _UNIT_S * math.expm1(max(0.0, min(scaled, 30.0)))


def _quantile(values: Iterable[float], share: float) -> float:
    """Return the quantile of n values that a further one like them keeps to: that of n + 1, which errs to the outer side."""
    ordered = sorted(values)
    at = (len(ordered) + 1) * share - 1
    if share == 0.5:
        return ordered[len(ordered) // 2]
    place = math.ceil(at) if share > 0.5 else math.floor(at)
    return ordered[max(0, min(len(ordered) - 1, place))]
