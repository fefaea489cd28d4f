"""A run's own choice of its batch, where no daemon makes it: from its noise scale and the step times it has measured.

Goodput of a batch M is worth(M0, M, phi) / T(M), Pollux's (Qiao et al., OSDI 2021, section 3) with the run's own
T(M) = a + b M, seconds a step, fitted to the medians of the batches it has run with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from synergy_core.errors import UsageError
from synergy_core.loss_trend import NO_LOSSES, LossTrend, with_loss
from synergy_core.rates import equivalent_sequences, fit_line
from synergy_core.records import Plan

_RANGE = re.compile(r"([0-9]{1,8}):([0-9]{1,8})\Z")
_POINTS = 24
GAIN = 1.05  # the least gain for which the batch changes: a change costs caches and allocations
_FIRST_GAIN = 1.2  # nothing is known of larger batches: they must promise this much if they cost no more time
STEPS_BETWEEN = 30
MEMORY_USED = 0.85  # the device's part that torch may allocate: the rest is fragments, NCCL and the CUDA context


def parse_batch_range(text: str, where: str = "global_batch") -> tuple[int, int]:
    """Return the (low, high) of a `LO:HI` in sequences. Raises UsageError."""
    match = _RANGE.match(text)
    if match is None or not 0 < int(match[1]) <= int(match[2]):
        raise UsageError(where, f"{text[:40]!r}", "LO:HI in sequences, such as 64:1024")
    return int(match[1]), int(match[2])


def fit_batch(plan: Plan, batch: float, micro_limit: int) -> Plan | None:
    """Return `plan` with the largest global batch <= `batch` that its degrees allow, in micro-batches of at most `micro_limit`.

    Returns None where not even one sequence a replica is left.
    """
    each = int(batch) // plan.dp  # sequences a replica
    stages = plan.pp if plan.vpp > 1 else 1  # interleaved schedules want a multiple of pp micro-batches
    if each < stages:
        return None
    micro = min(micro_limit, each // stages)
    while micro > 1 and each % micro and each - each % micro < 0.9 * each:
        micro -= 1
    count = each // micro
    return replace(plan, micro_batch=micro, global_batch=plan.dp * micro * (count - count % stages))


def choose_plan(
    plan: Plan,
    limits: tuple[int, int],
    base: int,
    noise: float | None,
    times: Mapping[int, float],
    micro_limit: int,
) -> Plan:
    """Return the plan to go on with: `plan` itself, or the same degrees with another batch within `limits`.

    `times`: measured seconds by global batch, `plan`'s own among them. The batch is never more than twice the largest that was measured, so
    that each stride is checked before the next; without a noise scale nothing changes.
    """
    now = plan.global_batch
    if noise is None or now not in times:
        return plan
    low, high = limits[0], min(limits[1], 2 * max(times))
    if low >= high:
        return plan
    if len(times) == 1:
        further = fit_batch(plan, min(2 * now, high), micro_limit)
        promise = (
            equivalent_sequences(base, further.global_batch, noise) / equivalent_sequences(base, now, noise)
            if further
            else 0.0
        )
        return further if further and promise >= _FIRST_GAIN else plan
    fixed, slope = fit_line(times)

    def goodput(batch: int) -> float:
        return equivalent_sequences(base, batch, noise) / (fixed + slope * batch)

    best, score = plan, GAIN * goodput(now)
    for i in range(_POINTS + 1):
        other = fit_batch(plan, low * math.exp(math.log(high / low) * i / _POINTS) + 1e-6, micro_limit)
        if other is not None and low <= other.global_batch <= high and goodput(other.global_batch) > score:
            best, score = other, goodput(other.global_batch)
    return best


@dataclass
class BatchTuner:
    """The choice of a batch by `choose_plan` every STEPS_BETWEEN steps, with what was measured in between. One for rank 0.

    A batch at which the loss does worse (synergy_core.loss_trend) is taken back, and ends the range of this start of the run. Micro-batches
    go up to the largest that has run, and beyond it as far as memory surely allows: peak memory is a fixed part and one that grows with the
    micro-batch, so k times the micro-batch takes at most k times as much.
    """

    limits: tuple[int, int]
    base: int
    device_bytes: int | None = None
    times: dict[int, float] = field(default_factory=dict)
    trend: LossTrend = NO_LOSSES
    _steps: int = 0
    _largest_micro: int = 1

    def after_step(
        self,
        plan: Plan,
        step_s: float | None,
        noise: float | None,
        peak_bytes: int | None = None,
        loss: tuple[int, float | None] | None = None,
    ) -> Plan:
        """Take in a finished step, and return the plan to go on with.

        `step_s`: median of the recent steps with this very `plan`; `peak_bytes`: the most memory used so far; `loss`: (step, loss).
        """
        self._steps += 1
        self._largest_micro = max(self._largest_micro, plan.micro_batch)
        if loss is not None and (back := self._back(plan, loss, noise, peak_bytes)) is not None:
            return back
        if self._steps < STEPS_BETWEEN or not step_s:
            return plan
        self._steps = 0
        self.times[plan.global_batch] = step_s
        return choose_plan(plan, self.limits, self.base, noise, self.times, self.micro_limit(peak_bytes))

    def _back(
        self, plan: Plan, loss: tuple[int, float | None], noise: float | None, peak_bytes: int | None
    ) -> Plan | None:
        """Return the plan with the largest batch that the loss has borne, which then ends the range; None where the loss is well."""
        batch = plan.global_batch
        self.trend = with_loss(self.trend, *loss, batch, equivalent_sequences(self.base, batch, noise))
        worse = self.trend.worse
        if worse is None:
            return None
        self.limits = self.limits[0], max(self.limits[0], min(self.limits[1], worse.good))
        self._steps = 0
        return fit_batch(plan, self.limits[1], self.micro_limit(peak_bytes))

    def micro_limit(self, peak_bytes: int | None) -> int:
        """Return the largest micro-batch that is known to fit."""
        if not self.device_bytes or not peak_bytes:
            return self._largest_micro
        return max(self._largest_micro, int(self._largest_micro * MEMORY_USED * self.device_bytes / peak_bytes))
