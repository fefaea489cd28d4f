"""Restarts of a job's processes inside its allocation: the daemon's orders, and crashes of a run that had trained.

An order comes in the answer to a report, after the checkpoint that it builds on. A run that had got past its first steps and
ends with an error is started again from its last checkpoint, at most CRASHES times in WINDOW_S, and each time only where it has
come further than at the crash before: a script that fails at the same step again ends with its own exit code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from synergy_launch.launcher import run_history
from synergy_launch.launcher.allocation import JobAllocation
from synergy_launch.launcher.run_history import Crash
from synergyd.records import InPlace
from synergyd.wire.report import Told

CRASHES, WINDOW_S = 3, 3600.0
#: for the end of a run that has its checkpoint; torchrun gives its workers 60 s (TORCH_ELASTIC_SHUTDOWN_TIMEOUT)
LEAVE_S = 75.0
_USAGE = 2  # a user's mistake by the house's convention and argparse's: another try says the same
_ENDED_WELL = (0, _USAGE, 130, 143)  # SIGINT, SIGTERM


def may_go_on(crashes: tuple[Crash, ...], step: int, now_s: float, most: int = CRASHES) -> bool:
    """Is a run that crashed at `step` started again? `crashes`: those before, of all incarnations."""
    late = [c for c in crashes if abs(now_s - c.at_s) < WINDOW_S]  # whichever way a clock was set
    return len(late) < most and all(step > c.step for c in late)


class Restarts:
    """Of one node of one incarnation. `folder`: the checkpoints'; None where there are none. `crashes`: the most in WINDOW_S.

    `hear` what the daemon says, `look` at the run's status; where `leaves` is true the run is to end, and `ended` says whether
    another follows, with `plan` in place of its own where that is not None.
    """

    def __init__(
        self,
        allocation: JobAllocation,
        folder: Path | None,
        *,
        crashes: int = CRASHES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.told = InPlace()
        self._allocation, self._folder, self._most, self._clock = allocation, folder, crashes, clock
        self._order: Told | None = None  # heard, and not followed yet; set by the reporter's thread
        self._acknowledged = self._present = 0  # checkpoints on request: of former runs, of this one
        self._step = 0
        self._saved: int | None = None
        self.words = ""

    @property
    def possible(self) -> bool:
        """Can this launcher restart the job's processes?"""
        return self._allocation.job_id is not None and len(self._allocation.nodes) == 1

    @property
    def leaves(self) -> bool:
        """The run is to end, for another follows."""
        return self._order is not None

    @property
    def acknowledged(self) -> int:
        """Checkpoints on request that runs before this one have completed: the incarnation's count goes on."""
        return self._acknowledged

    def hear(self, told: Told) -> None:
        """The daemon's order; one that was followed already is none."""
        if self.possible and told.order > self.told.order:
            self._order = told

    def look(self, status: Mapping[str, Any] | None) -> None:
        """The run's status as it is now."""
        if status is None:
            return
        step, saved, requests = (status.get(name) for name in ("step", "checkpoint_step", "checkpoint_requests"))
        self._step = step if isinstance(step, int) else self._step
        self._saved = saved if isinstance(saved, int) else self._saved
        self._present = requests if isinstance(requests, int) else self._present

    def ordered(self) -> Told | None:
        """The run has ended since it was to: what follows."""
        order, self._order = self._order, None
        if order is not None:
            self._again(replace(self.told, order=order.order))
            self.words = f"started again in place with another plan, by the daemon's order {order.order}"
        return order

    def crashed(self, code: int) -> bool:
        """A run past its first steps has ended by itself with `code`: is it started again?"""
        if not self.possible or code in _ENDED_WELL or self._saved is None:
            return False
        history, now_s = run_history.read(self._folder, self._allocation.job_id or 0), self._clock()
        if not may_go_on(history.crashes, self._step, now_s, self._most):
            return False
        run_history.write(self._folder, history.with_crash(Crash(self._step, now_s)))
        self.words = (
            f"ended with exit code {code} at step {self._step}: "
            f"started again in place from its checkpoint of step {self._saved}"
        )
        self._again(replace(self.told, crashes=self.told.crashes + 1, code=min(code, 255), step=self._step))
        return True

    def failed(self) -> None:
        """A plan that failed is replaced in place."""
        self._again(self.told)
        self.words = ""

    def _again(self, told: InPlace) -> None:
        self.told = replace(told, number=told.number + 1)
        self._acknowledged, self._present = self._acknowledged + self._present, 0
        self._saved = None
