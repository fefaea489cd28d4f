"""What the agent asks of checkpoints: where to go on from, when one is due, writing it, in the background where possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from synergy_launch.agent import failure_log
from synergy_launch.agent.background_save import BackgroundSave, Staged
from synergy_launch.agent.checkpoint import CheckpointError, Checkpoints, FoundCheckpoint
from synergy_launch.agent.checkpoint_schedule import CheckpointSchedule
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.agent.status_file import StatusFile

Save = Callable[[Path], Mapping[str, Any]]
Stage = Callable[[Path], Staged]


class Checkpointer:
    """One rank's side of the run's checkpoints. `find_in`, `checkpoint`, `advance` and `settle` are collective.

    `save` and `stage` are the script's, as `Agent.start` takes them. Only periodic checkpoints are written in the background.
    """

    def __init__(self, settings: AgentSettings, gpus: int, status: StatusFile, monotonic: Callable[[], float]) -> None:
        self.store: Checkpoints | None = None
        self.schedule = CheckpointSchedule()
        self.save: Save | None = None
        self.stage: Stage | None = None
        self.background: BackgroundSave | None = None
        self._settings, self._gpus, self._status, self._monotonic = settings, gpus, status, monotonic
        self._held_s = 0.0  # by which the checkpoint under way has held training up
        self._spent_s = 0.0  # by the training library on a checkpoint before the agent was asked for it

    def find_in(self, store: Checkpoints) -> FoundCheckpoint:
        """Where to go on from in `store`, where this run's checkpoints will lie too."""
        self.store = store
        newest = store.find()
        if newest.note:
            self._status.note(newest.note)
        if newest.checkpoint is not None:
            step = newest.checkpoint.step
            self.schedule.take(newest.checkpoint.meta.get("agent"), failure_log.read(store.directory, step))
            store.ranks.barrier()  # all have read it before it is overwritten
            self._log_ending(step, clean=False)
        return newest

    def start(self, save: Save | None, stage: Stage | None, interval: int | None, now_s: float) -> None:
        """Training begins; `interval` as `Agent.start` has it."""
        self.save = save
        self.stage = stage if self._settings.background_saves else None
        if self.store is not None:
            self.background = BackgroundSave(self.store)
        else:  # nothing could go on from a checkpoint
            self._status.update(accepts={**(self._settings.accepts or {}), "own_size": True})
        self.schedule.start(interval, self._gpus, now_s)

    def trained(self, step_s: float, usual_s: float | None) -> None:
        """A step has taken `step_s`. What it took longer than usual is due to the checkpoint under way."""
        if self.under_way and usual_s is not None:
            self._held_s += max(0.0, step_s - usual_s)
        self.schedule.trained(step_s)

    def saved_by_library(self, spent_s: float) -> None:
        """The training library has taken `spent_s` for the checkpoint that is asked for next."""
        self._spent_s = spent_s

    @property
    def due_by_clock(self) -> bool:
        """Whether it is time for a checkpoint by rank 0's clock."""
        able = self._settings.rank == 0 and self.save is not None and self.store is not None
        return able and self.schedule.due(self._monotonic())

    def due_by_step(self, step: int) -> bool:
        return bool(self.schedule.steps and step % self.schedule.steps == 0)

    @property
    def expected_s(self) -> float:
        """What the next save may take: as long as the last one, and a fifth more."""
        return self.schedule.save_s * 1.2

    @property
    def under_way(self) -> bool:
        return self.background is not None and self.background.step is not None

    def state(self) -> list[int]:
        """[this rank is still writing, it has failed], of which the maximum over the ranks goes to `advance`."""
        return self.background.state() if self.background is not None else [0, 0]

    def advance(self, busy: int, failed: int) -> None:
        """Brings what is written in the background further."""
        self._completed(lambda background: background.advance(busy, failed))

    def settle(self, in_time: Callable[[], bool] = lambda: True) -> None:
        """Waits for the checkpoint under way, if there is one, while it is `in_time`."""
        began = self._monotonic()
        self._completed(lambda background: background.wait(in_time), lambda: self._monotonic() - began)

    def checkpoint(self, step: int, planned: bool = True) -> bool:
        """A good checkpoint of `step` exists afterwards: True. False: it failed, and the note says why.

        `planned`: the run may end with it, and that is no failure. One that is not may be written in the background: True
        then means that it was begun.
        """
        self.settle()
        if self._status["checkpoint_step"] == step:
            if planned:
                self._log_ending(step, clean=True)
            return True
        if self.save is None or self.store is None:
            return self._failed("no checkpoint folder was named: nothing was saved")
        self._status.enter("checkpointing")
        self.schedule.tried(self._monotonic() - self._spent_s)
        self._spent_s = 0.0
        save, history = self.save, self.schedule.history(planned)
        if not planned and self._begin(step, history):
            return True
        try:
            self.store.save(step, lambda folder: {**save(folder), "agent": history})
        except CheckpointError as error:
            return self._failed(str(error))
        self.saved(step)
        return True

    def saved(self, step: int, held_s: float | None = None) -> None:
        """The checkpoint of `step` is good; it has held training up for `held_s` (None: all the time)."""
        assert self.store is not None
        self.schedule.saved(self._gpus, self._monotonic(), held_s)
        self._status.update(
            checkpoint_step=step, checkpoint_s=self.schedule.held_s, checkpoint_bytes=self.store.size_bytes(step)
        )
        held = f", training held up for {held_s:.2f} s" if held_s is not None else ""
        self._status.say(f"checkpoint of step {step} in {self.store.directory} ({self.schedule.save_s:.2f} s{held})")

    def _begin(self, step: int, history: Mapping[str, Any]) -> bool:
        """A checkpoint has been begun in the background. False: the script has no `stage`, or it failed."""
        stage, began = self.stage, self._monotonic()
        if stage is None or self.background is None:
            return False

        def staged(folder: Path) -> Staged:
            part = stage(folder)
            return replace(part, meta={**part.meta, "agent": history})

        try:
            self.background.begin(step, staged)
        except CheckpointError as error:
            self.stage = None  # there may be no memory for the copy
            self._status.note(f"{error}; from now on training waits until checkpoints are written")
            return False
        self._held_s = self._monotonic() - began
        return True

    def _completed(
        self, advance: Callable[[BackgroundSave], int | None], waited_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Takes note of a checkpoint that has become good in the background, or failed."""
        if self.background is None:
            return
        try:
            step = advance(self.background)
        except CheckpointError as error:
            self._failed(str(error))
            return
        if step is not None:
            self.saved(step, self._held_s + waited_s())

    def _log_ending(self, step: int, clean: bool) -> None:
        if self.store is not None and self.store.ranks.rank == 0:
            failure_log.write(self.store.directory, step, self.schedule.failures, clean)

    def _failed(self, why: str) -> bool:
        self._status.note(why)
        return False
