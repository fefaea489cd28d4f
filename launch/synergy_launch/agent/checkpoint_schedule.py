"""The schedule of a run's checkpoints, and the facts about failures that they hold for the next incarnation."""

from __future__ import annotations

from typing import Any

from synergy_launch.agent import checkpoint_interval
from synergy_launch.agent.checkpoint_interval import Interval


class CheckpointSchedule:
    """The times of a run's checkpoints.

    `steps` between two checkpoints; 0: none by itself; None: as often as loses least (synergy_launch.agent.checkpoint_interval). Times are
    seconds of one monotonic clock. `run_s` seconds of training and `failures` go over all incarnations.
    """

    def __init__(self) -> None:
        self.steps: int | None = 0
        self.save_s = 0.0  # the time of the last save until it was good
        self.held_s = 0.0  # the time that it held training up
        self.every: Interval | None = None
        self._run_s = 0.0
        self._failures = 0
        self._saved_at = 0.0

    @property
    def failures(self) -> int:
        """Return the number of failures of all incarnations before this one."""
        return self._failures

    def take(self, history: Any, ending: tuple[int, bool] | None = None) -> None:
        """Take over what a checkpoint's metadata holds of the incarnations before this one.

        `ending` (synergy_launch.agent.failure_log) takes precedence on how the last one ended.
        """
        if not isinstance(history, dict):
            return
        self._run_s, self._failures = float(history.get("run_s", 0.0)), int(history.get("failures", 0))
        self.save_s = float(history.get("save_s", 0.0))
        self.held_s = float(history.get("held_s", self.save_s))
        # a run that goes on from a checkpoint that nobody asked for has failed after it
        clean = bool(history.get("planned", True))
        if ending is not None:
            self._failures, clean = max(self._failures, ending[0]), ending[1]
        self._failures += not clean

    def start(self, steps: int | None, gpus: int, now_s: float) -> None:
        """Begin the schedule: training starts at `now_s`."""
        self.steps, self._saved_at = steps, now_s
        if self.save_s:
            self._choose(gpus)

    def add_step(self, seconds: float) -> None:
        self._run_s += seconds

    def is_due(self, now_s: float) -> bool:
        """Return whether a checkpoint is due by the clock; the caller counts steps."""
        every_s = self.every.every_s if self.every else checkpoint_interval.FIRST_S
        return self.steps is None and now_s - self._saved_at >= every_s

    def history(self, planned: bool) -> dict[str, Any]:
        """Return what goes into a checkpoint's metadata. `planned`: the run may end with it, and that is no failure."""
        return {
            "run_s": self._run_s,
            "failures": self._failures,
            "save_s": self.save_s,
            "held_s": self.held_s,
            "planned": planned,
        }

    def begin_save(self, now_s: float) -> None:
        """Note that a save begins, whether it succeeds or not: a full disk must not be tried again at every step."""
        self._saved_at = now_s

    def end_save(self, gpus: int, now_s: float, held_s: float | None = None) -> None:
        """Note that the save succeeded, having held training up for `held_s` seconds (None: all the time)."""
        self.save_s = now_s - self._saved_at
        self.held_s = self.save_s if held_s is None else held_s
        if held_s is None:
            self._saved_at = now_s
        self._choose(gpus)

    def format(self) -> str:
        """Return the interval as text, for `explain`; "" where the interval is the script's."""
        return self.every.format() if self.every else ""

    def _choose(self, gpus: int) -> None:
        if self.steps is None:
            written_s = self.save_s if self.held_s < self.save_s else 0.0
            self.every = checkpoint_interval.choose_interval(gpus, self.held_s, self._run_s, self._failures, written_s)
