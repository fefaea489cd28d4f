"""The agent's reports: status.json for the launcher, the step log, and lines on rank 0's standard output."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from synergy_core.errors import one_line
from synergy_core.records import Plan

from synergy_launch.agent.run_folder import STATUS
from synergy_launch.agent.settings import AgentSettings

_STATUS_EVERY_S = 0.5


class StatusFile:
    """The status of one run by the names of the report's fields (`values`).

    Only rank 0 writes and prints. `remarks` returns the additions to the note. `clock` is the time of day, `monotonic` measures intervals;
    both in seconds.
    """

    def __init__(
        self, settings: AgentSettings, plan: Plan, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self.remarks: Callable[[], Iterable[str]] = lambda: ()
        self._settings, self._clock, self._monotonic = settings, clock, monotonic
        self._written_at = -math.inf
        self.values: dict[str, Any] = {
            "step": 0,
            "step_s": None,
            "loss": None,
            "tokens": None,
            "noise_scale": None,
            "peak_memory_bytes": None,
            "done": None,
            "total": None,
            "checkpoint_step": None,
            "checkpoint_requests": 0,
            "checkpoint_s": None,
            "checkpoint_bytes": None,
            "trained_s": None,
            "first_step_s": None,
            "plan": asdict(plan),
            "restarts": settings.restarts,
            "resharding": False,
            "rebatching": False,
            "base_batch": None,
            "comm": "",
            "comm_efficiency": None,
            "batch_bound": None,
            "spike": None,
            "slow_nodes": [],
            "slow_times": [],
            "model": None,
            "kernels": None,
            "accepts": settings.accepts,
            "state": "starting",
            "note": "",
        }

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def update(self, **values: Any) -> None:
        self.values.update(values)

    def enter(self, state: str) -> None:
        """Write the file with this state."""
        self.values["state"] = state
        self.write()

    def say(self, text: str) -> None:
        """Print one line on rank 0's standard output."""
        if self._settings.rank == 0:
            print(f"synergy: {one_line(text)}", flush=True)

    def note(self, text: str) -> None:
        """Print a line, and keep it in the status until something newer is noted."""
        self.values["note"] = one_line(text)
        self.say(text)
        self.write()

    def write_if_due(self) -> None:
        """Write the file, at most twice a second."""
        if self._monotonic() - self._written_at >= _STATUS_EVERY_S:
            self.write()

    def write(self) -> None:
        """Replace the file. A full disk does not end training: the launcher sees a status that does not move."""
        if self._settings.rank != 0 or self._settings.run_dir is None:
            return
        self._written_at = self._monotonic()
        content = {key: _finite(value) for key, value in self.values.items()}
        content["note"] = "; ".join(filter(None, (self.values["note"], *self.remarks())))
        draft = self._settings.run_dir / (STATUS + ".tmp")
        try:
            draft.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
            draft.replace(self._settings.run_dir / STATUS)
        except OSError as error:
            print(f"synergy: status file: {error.strerror}", file=sys.stderr, flush=True)

    def log_step(self, plan: Plan) -> None:
        """Append the finished step to the step log."""
        if self._settings.rank != 0 or self._settings.step_log is None:
            return
        line = {
            "step": self.values["step"],
            "loss": _finite(self.values["loss"]),
            "restarts": self._settings.restarts,
            "tp": plan.tp,
            "pp": plan.pp,
            "dp": plan.dp,
            "global_batch": plan.global_batch,
            "time": self._clock(),
        }
        try:
            with self._settings.step_log.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
        except OSError as error:
            self.values["note"] = f"step log {self._settings.step_log}: {error.strerror}"


def _finite(value: Any) -> Any:
    """Return the value, or None for a float that JSON can't hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
