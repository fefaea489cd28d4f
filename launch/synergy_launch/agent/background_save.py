"""A checkpoint that is written while training goes on.

Training stops only while the state is copied (`stage`). Each rank then writes its part in a thread; at step boundaries
the ranks agree how far they are: when all have written, they call the library's last step (`finish`) together,
and the ranks that seal (rank 0 on disk) do so in a thread. Until it is sealed the folder does not count, so a kill at any moment leaves the
checkpoint before it. One at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synergy_launch.agent.checkpoint import CheckpointError, Store, attempt, error_cause

_LOOK_S = 0.02


@dataclass(frozen=True)
class StagedPart:
    """A rank's part of a checkpoint, copied.

    `write` runs in a thread beside training: it must not use training's process groups. `finish` is called by all ranks at the same step
    boundary when all have written, in the thread of training. `meta` is kept with the checkpoint (rank 0's counts).
    """

    meta: Mapping[str, Any]
    write: Callable[[], object]
    finish: Callable[[], object] = lambda: None


def with_history(stage: Callable[[Path], StagedPart], history: Mapping[str, Any]) -> Callable[[Path], StagedPart]:
    """Return `stage` with the agent's `history` in the metadata of what it copies."""

    def stage_with_history(folder: Path) -> StagedPart:
        part = stage(folder)
        return replace(part, meta={**part.meta, "agent": dict(history)})

    return stage_with_history


class _BackgroundTask:
    """An action done in a thread; `error` is "" while and if all is well."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self.error = ""
        self._thread = threading.Thread(target=self._run, name="synergy-checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._action()
        except BaseException as problem:  # torch's CheckpointException is no Exception
            self.error = error_cause(problem)

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()


class BackgroundSave:
    """The checkpoint under way, if there is one. `begin`, `advance` and `wait` are collective."""

    def __init__(self, checkpoints: Store) -> None:
        self._checkpoints = checkpoints
        self._ranks = checkpoints.ranks
        self.step: int | None = None  # the step of the checkpoint under way
        self._folder = Path()
        self._staged: StagedPart | None = None
        self._task: _BackgroundTask | None = None
        self._sealing = False

    def begin(self, step: int, stage: Callable[[Path], StagedPart]) -> None:
        """Copy the state and start to write.

        Raises CheckpointError on every rank if any rank could not; no checkpoint is under way then.
        """
        self._folder = self._checkpoints.open(step)
        staged, error = attempt(lambda: stage(self._folder))
        if self._ranks.maximum([1 if error else 0])[0] or staged is None:
            raise CheckpointError(f"checkpoint of step {step}", error or "another rank could not copy its part")
        self.step, self._staged, self._sealing = step, staged, False
        self._task = _BackgroundTask(staged.write)

    def state(self) -> list[int]:
        """Return [this rank is busy, it has failed]; the maximum over the ranks goes to `advance`."""
        if self._task is None:
            return [0, 0]
        busy = self._task.busy  # before the error is looked at
        return [int(busy), int(not busy and bool(self._task.error))]

    def advance(self, busy: int, failed: int) -> int | None:
        """Return the step of the checkpoint that has just become good, or None while there is none.

        Raises CheckpointError on every rank if it failed; none is under way then.
        """
        if self.step is None or self._staged is None or busy:
            return None
        if failed:
            raise self._fail(self._task.error if self._task else "")
        if self._sealing:
            step, self.step, self._staged, self._task = self.step, None, None, None
            return step
        staged, step, folder = self._staged, self.step, self._folder
        _, error = attempt(staged.finish)
        if self._ranks.maximum([1 if error else 0])[0]:
            raise self._fail(error)
        self._sealing = True
        seals = self._checkpoints.seals
        self._task = _BackgroundTask(lambda: self._checkpoints.close(folder, step, staged.meta)) if seals else None
        return None

    def wait(self, in_time: Callable[[], bool] = lambda: True) -> int | None:
        """Wait until the checkpoint under way is good, and return its step.

        Returns None where there is none, or where it was no longer `in_time` by rank 0's clock. Raises CheckpointError as `advance` does.
        """
        while self.step is not None:
            late = self._ranks.rank == 0 and not in_time()
            busy, failed, over = self._ranks.maximum([*self.state(), int(late)])
            done = self.advance(busy, failed)
            if done is not None:
                return done
            if over:
                return None
            time.sleep(_LOOK_S)
        return None

    def _fail(self, why: str) -> CheckpointError:
        step, self.step, self._staged, self._task = self.step, None, None, None
        return CheckpointError(f"checkpoint of step {step}", why or "another rank could not write its part")
