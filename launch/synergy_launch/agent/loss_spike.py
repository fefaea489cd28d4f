"""Loss spikes: losses far above the run's own recent ones, or no numbers; and the way back past the examples that led to one.

A loss is spiky if it lies SIGMAS standard deviations above the mean of the last WINDOW ones: the rule by which OLMo 2 counts spikes ("at
least seven standard deviations away from a rolling average of the last 1,000 values", arXiv 2501.00656, section 3), on one side only. A
loss that falls, or rises along a line, widens the window's own deviation and never meets it; another batch starts the window afresh.

What follows is PaLM's practice (arXiv 2204.02311, section 5.1): "We re-started training from a checkpoint roughly 100 steps before the
spike started, and skipped roughly 200-500 data batches, which cover the batches that were seen before and during the spike." It is the
combination of these batches with the state of the parameters that does it, so a spike in the same place once more is not answered again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.job_report import SPIKE_WINDOW, LossSpike
from synergy_core.wire.codec import decode
from synergy_core.wire.report import read_spike

from synergy_launch.agent.lost_loss import LOST_STEPS
from synergy_launch.batch.data_order import NOTHING_SKIPPED, SkippedSamples

WINDOW, SIGMAS = SPIKE_WINDOW, 7.0
#: steps before a spike whose examples are left out, and without which there is nothing to judge by
BEFORE_STEPS = 100
#: steps from its first one on whose examples are left out too: 200 batches in all
FROM_STEPS = 100
#: spiky steps in a row that are answered: fewer may be odd examples, which leave the parameters as they are
LASTING_STEPS = LOST_STEPS
#: restarts within WITHIN_S for spikes: as many as in place after crashes at one step
MOST_RETURNS, WITHIN_S = 3, 3600.0
_KEPT_RETURNS = 16


class LossWindow:
    """The last losses at one batch."""

    def __init__(self, losses: Iterable[float] = (), batch: int = 0) -> None:
        self.losses, self.batch = deque(losses, WINDOW), batch
        self._count_up()

    def add(self, loss: float, batch: int) -> None:
        """Add a finite loss."""
        if batch != self.batch:
            self.losses.clear()
            self.batch = batch
        if not self.losses:
            self._count_up()
        if len(self.losses) == WINDOW:
            self._sum(self.losses[0], -1)
        self.losses.append(loss)
        self._sum(loss, 1)
        self._added += 1
        if self._added >= WINDOW:  # what rounding has left
            self._count_up()

    @property
    def mean(self) -> float | None:
        """Return the mean, or None where there are too few losses."""
        return self._origin + self._first / len(self.losses) if len(self.losses) >= BEFORE_STEPS else None

    def is_spiky(self, loss: float, batch: int) -> bool:
        """Return whether a finite `loss` at `batch` is far above the losses of the window."""
        mean, count = self.mean, len(self.losses)
        if mean is None or batch != self.batch:
            return False
        variance = (self._second - self._first * self._first / count) / (count - 1)
        return loss - mean > SIGMAS * math.sqrt(max(0.0, variance)) if math.isfinite(variance) else False

    def _sum(self, loss: float, sign: int) -> None:
        off = loss - self._origin
        self._first += sign * off
        self._second += sign * off * off

    def _count_up(self) -> None:
        self._added, self._first, self._second = 0, 0.0, 0.0
        self._origin = self.losses[-1] if self.losses else 0.0
        for loss in self.losses:
            self._sum(loss, 1)


@dataclass(frozen=True, kw_only=True)
class Return:
    """A restart for a spike from `first_step` on. `step`: the last one before it. `at_s`: seconds since 1970."""

    first_step: int
    step: int
    at_s: float


class SpikeWatch:
    """A watch over the losses of one run, over all its incarnations. Rank 0's decides for all.

    `steps` are the spiky ones in a row. `state` is kept in each checkpoint's metadata.
    """

    def __init__(self, state: object = None) -> None:
        checkpoint_state = state if isinstance(state, Mapping) else {}
        self.skipped = SkippedSamples.read(checkpoint_state.get("skipped")) if checkpoint_state else NOTHING_SKIPPED
        self.spike = read_spike(checkpoint_state.get("spike"))
        self.returns = _read_returns(checkpoint_state.get("returns"))
        self.steps = self._batch = 0
        self._newest: float | None = None
        self.lasts = False  # a spike that was answered goes on
        self._window = LossWindow(_read_losses(checkpoint_state.get("losses")), _whole(checkpoint_state.get("batch")))
        self._positions: deque[tuple[int, int]] = deque(maxlen=BEFORE_STEPS + LASTING_STEPS + 2)
        self._before = self.spike

    def record_step(self, step: int, loss: float | None, batch: int, *, finite: bool, samples: int | None) -> None:
        """Record a step. `finite`: its loss and gradient are. `samples`: trained after it; None where the run can't leave any out."""
        self._batch = batch
        if samples is not None:
            self._positions.append((step, samples))
        before, self._newest = self._newest, loss
        is_same = finite and loss is not None and loss == before
        # a run that logs every so many steps tells a loss until the next; a collapsed model's own may be the same at each step
        if is_same and (samples is None or not self.steps):
            return
        is_loss_finite = loss is not None and math.isfinite(loss)
        spiky = not finite or (loss is not None and is_loss_finite and self._window.is_spiky(loss, batch))
        if spiky:
            self.steps += 1
            if self.steps == 1:
                self._before = self.spike
                self.spike = LossSpike(step=step, loss=loss if finite else None, usual=self._window.mean)
        elif self.steps:
            if not self.lasts:  # it was an odd step or two
                self.spike = self._before
            self.steps = 0  # `lasts` goes by rank 0's count (`agree`): another rank may not know the loss
        if loss is not None and is_loss_finite and (not spiky or self.lasts):
            self._window.add(loss, batch)

    def agree(self, steps: int) -> None:
        """Take in the number of spiky steps in a row that rank 0 knows of, after each `record_step`."""
        self.steps = steps
        self.lasts = self.lasts and steps > 0

    @property
    def samples(self) -> int:
        """Return the samples trained so far, as far as the run tells them."""
        return self._positions[-1][1] if self._positions else 0

    @property
    def can_skip(self) -> bool:
        """Return whether the run can leave examples out."""
        return bool(self._positions)

    @property
    def is_open(self) -> bool:
        """Return whether the newest step is spiky and it is not known what follows."""
        return self.steps > 0 and not self.lasts

    @property
    def is_due(self) -> bool:
        """Return whether the spike has lasted for long enough to be answered."""
        return self.is_open and self.steps >= LASTING_STEPS

    def obstacle(self, now_s: float) -> str:
        """Return why the run is not started again for the present spike, by those before it: one of SPIKE_ANSWERS, or ""."""
        assert self.spike is not None
        step = self.spike.step
        if any(one.first_step - BEFORE_STEPS <= step <= one.step + BEFORE_STEPS for one in self.returns):
            return "same-place"
        late = [one for one in self.returns if abs(now_s - one.at_s) < WITHIN_S]  # whichever way a clock was set
        return "too-often" if len(late) >= MOST_RETURNS else ""

    def note_answer(self, spike: LossSpike) -> None:
        """Note that the run goes on although `spike` lasts."""
        self.spike, self.lasts = spike, True

    def state_after_return(
        self, checkpoint_step: int, samples: int, checkpoint_state: object, step: int, now_s: float
    ) -> dict[str, Any]:
        """Return the state for the checkpoint to go back to, without the examples that led to the spike.

        The checkpoint is that of `checkpoint_step`, after `samples` examples (fewer than now), with `checkpoint_state` in it. `step` is
        the run's newest.
        """
        assert self.spike is not None and samples < self.samples
        before = self.spike.step - 1 - BEFORE_STEPS
        start = max([samples, *(count for at, count in self._positions if at == before)])
        end = self.samples + max(0, FROM_STEPS - (step + 1 - self.spike.step)) * self._batch
        first, last = self.skipped.number(start), self.skipped.number(end - 1)
        spike = replace(
            self.spike, answer="skipped", checkpoint_step=checkpoint_step, first_example=first, last_example=last
        )
        returns = (*self.returns, Return(first_step=self.spike.step, step=step, at_s=now_s))[-_KEPT_RETURNS:]
        losses = checkpoint_state if isinstance(checkpoint_state, Mapping) else {}  # those of that time
        return {
            "skipped": [list(one) for one in self.skipped.with_positions(start, end).ranges],
            "spike": asdict(spike),
            "returns": [asdict(one) for one in returns],
            **{name: losses.get(name) for name in ("losses", "batch")},
        }

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint's metadata keeps; {} where there is nothing."""
        spike = self._before if self.is_open else self.spike
        state_fields = {
            "skipped": [list(one) for one in self.skipped.ranges],
            "spike": asdict(spike) if spike is not None else None,
            "returns": [asdict(one) for one in self.returns],
            "losses": " ".join(f"{loss:.6g}" for loss in self._window.losses),
        }
        return {**{name: value for name, value in state_fields.items() if value}, "batch": self._window.batch}


def rank_steps(steps: Sequence[int], spike_step: int) -> list[int]:
    """Return which of the checkpoints' `steps` to go back to: those from before the spike, the best one first.

    That is the newest which is BEFORE_STEPS older than the spike, else the oldest.
    """
    before = sorted(step for step in steps if step < spike_step)
    early = [step for step in before if step < spike_step - BEFORE_STEPS]
    return [*reversed(early), *before[len(early) :]]


def _read_returns(data: object) -> tuple[Return, ...]:
    try:
        return tuple(decode(Return, one, "returns") for one in (data if isinstance(data, list) else []))
    except UsageError:
        return ()


def _read_losses(text: object) -> list[float]:
    try:
        losses = [float(word) for word in text.split()] if isinstance(text, str) else []
    except ValueError:
        return []
    return losses if all(map(math.isfinite, losses)) else []


def _whole(value: object) -> int:
    return value if type(value) is int else 0
