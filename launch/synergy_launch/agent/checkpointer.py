"""The agent's use of checkpoints: where to go on from, when one is due, writing it, in the background where possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from synergy_launch.agent import failure_log
from synergy_launch.agent.background_save import BackgroundSave, StagedPart, with_history
from synergy_launch.agent.checkpoint import CheckpointError, Checkpoints, FoundCheckpoint
from synergy_launch.agent.checkpoint_schedule import CheckpointSchedule
from synergy_launch.agent.full_disk import with_free_space
from synergy_launch.agent.memory_saves import MemorySaves, discard_memory
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.agent.status_file import StatusFile

Save = Callable[[Path], Mapping[str, Any]]
Stage = Callable[[Path], StagedPart]
#: what is due by the clock; the larger number takes precedence
NOTHING_DUE, MEMORY_DUE, DISK_DUE = 0, 1, 2


class Checkpointer:
    """One rank's side of the run's checkpoints. `find_checkpoint`, `checkpoint`, `advance` and `settle` are collective.

    `save` and `stage` are the script's, as `Agent.start` takes them. Only periodic checkpoints are written in the background.
    """

    def __init__(self, settings: AgentSettings, gpus: int, status: StatusFile, monotonic: Callable[[], float]) -> None:
        self.store: Checkpoints | None = None
        self.schedule = CheckpointSchedule()
        self.save: Save | None = None
        self.stage: Stage | None = None
        self.background: BackgroundSave | None = None
        # for each checkpoint's metadata, beside the schedule's
        self.more_history: Callable[[], Mapping[str, Any]] = dict
        self.memory: MemorySaves | None = None  # None: no memory checkpoints, or no more
        self._resumes_from_memory = False
        self._has_begun = False  # all ranks have loaded and made a step
        self._file_step: int | None = None  # the step of the newest good checkpoint on disk at the start
        self._file_bytes: int | None = None
        self._settings, self._gpus, self._status, self._monotonic = settings, gpus, status, monotonic
        self._held_s = 0.0  # the time that the checkpoint under way has held training up
        self._spent_s = 0.0  # the training library's time for a checkpoint before the agent was asked for it

    def find_checkpoint(self, store: Checkpoints) -> FoundCheckpoint:
        """Return the checkpoint to go on from in `store`, where this run's checkpoints will lie too, or a newer one in memory."""
        self.store = store
        newest = store.find()
        if newest.note:
            self._status.note(newest.note)
        newest = self._newer_in_memory(newest)
        if newest.checkpoint is not None:
            step = newest.checkpoint.step
            self.schedule.take(newest.checkpoint.meta.get("agent"), failure_log.read(store.directory, step))
            store.ranks.barrier()  # all have read it before it is overwritten
            self._log_ending(step, clean=False)
        return newest

    def _newer_in_memory(self, newest: FoundCheckpoint) -> FoundCheckpoint:
        """Return `newest`, which is on disk, or a memory checkpoint of a later step."""
        settings, store = self._settings, self.store
        assert store is not None
        lacks_folder = store.ranks.maximum([int(settings.memory_dir is None)])[0]
        if lacks_folder or settings.memory_dir is None:  # off on one node is off on all
            return newest
        self.memory = MemorySaves(
            settings.memory_dir, store.ranks, settings.local_rank, self._monotonic, self._status.say
        )
        self._file_step = newest.checkpoint.step if newest.checkpoint is not None else None
        self._file_bytes = store.size_bytes(self._file_step) if self._file_step is not None else None
        in_memory = self.memory.find(self._file_step or 0)
        if in_memory is None:
            return newest
        self._resumes_from_memory = True
        self._status.say(f"goes on from the memory checkpoint of step {in_memory.step}")
        return replace(newest, checkpoint=in_memory)

    def durable_step(self, step: int) -> int | None:
        """Return the step of the last checkpoint on disk as training starts after `step`, which may be that of one in memory."""
        if self.store is None:
            return None
        return self._file_step if self._resumes_from_memory else step or None

    def start(self, save: Save | None, stage: Stage | None, interval: int | None, now_s: float) -> None:
        """Start: training begins. `interval` is as in `Agent.start`."""
        self.save = save
        self.stage = stage if self._settings.background_saves else None
        if self.store is not None:
            self.background = BackgroundSave(self.store)
        else:  # nothing could go on from a checkpoint
            self._status.update(accepts={**(self._settings.accepts or {}), "own_size": True})
        self.schedule.start(interval, self._gpus, now_s)

    def add_step(self, step_s: float, usual_s: float | None) -> None:
        """Note that a step has taken `step_s` seconds. The time above the usual is due to the checkpoint under way."""
        if self.is_under_way and usual_s is not None:
            self._held_s += max(0.0, step_s - usual_s)
        if self.memory is not None:
            self.memory.add_step(step_s, usual_s)
        self.schedule.add_step(step_s)

    def add_library_time(self, spent_s: float) -> None:
        """Note that the training library has taken `spent_s` seconds for the checkpoint that is asked for next."""
        self._spent_s = spent_s

    @property
    def due_by_clock(self) -> int:
        """Return what it is time for by rank 0's clock: DISK_DUE, MEMORY_DUE or NOTHING_DUE."""
        if self._settings.rank != 0 or self.save is None or self.store is None:
            return NOTHING_DUE
        if self.schedule.is_due(self._monotonic()):
            return DISK_DUE
        if self.memory is None or self.stage is None or self.is_under_way:
            return NOTHING_DUE
        return MEMORY_DUE if self.memory.is_due(self._file_bytes) else NOTHING_DUE

    def is_due_by_step(self, step: int) -> bool:
        return bool(self.schedule.steps and step % self.schedule.steps == 0)

    @property
    def expected_save_s(self) -> float:
        """Return the seconds that the next save may take: as long as the last one, and a fifth more."""
        return self.schedule.save_s * 1.2

    @property
    def is_under_way(self) -> bool:
        return self.background is not None and self.background.step is not None

    def state(self) -> list[int]:
        """Return [this rank is still writing, it has failed]; the maximum over the ranks goes to `advance`."""
        if self.memory is not None and self.memory.is_under_way:
            return self.memory.background.state()
        return self.background.state() if self.background is not None else [0, 0]

    def advance(self, busy: int, failed: int) -> None:
        """Advance the checkpoint that is written in the background."""
        if self.memory is not None and not self._has_begun:
            self.memory.forget_resumed()
        self._has_begun = True
        if self.memory is not None and self.memory.is_under_way:
            self._advance_memory(lambda background: background.advance(busy, failed))
            return
        self._finish_background_save(lambda background: background.advance(busy, failed))

    def settle(self, in_time: Callable[[], bool] = lambda: True) -> None:
        """Wait for the checkpoint under way, if there is one, while it is `in_time`."""
        if self.memory is not None and self.memory.is_under_way:
            self._advance_memory(lambda background: background.wait(in_time))
        began = self._monotonic()
        self._finish_background_save(lambda background: background.wait(in_time), lambda: self._monotonic() - began)

    def checkpoint(self, step: int, planned: bool = True) -> bool:
        """Take a checkpoint of `step`. Return whether a good one exists afterwards; if not, the note says why.

        `planned`: the run may end with it, and that is no failure. A checkpoint that is not planned may be written in the background: True
        then means that it was begun.
        """
        self.settle()
        if self._status["checkpoint_step"] == step:
            if planned:
                self._log_ending(step, clean=True)
            return True
        if self.save is None or self.store is None:
            return self._note_failure("no checkpoint folder was named: nothing was saved")
        self._status.enter("checkpointing")
        self.schedule.begin_save(self._monotonic() - self._spent_s)
        if self.memory is not None:
            self.memory.postpone()
        self._spent_s = 0.0
        save, history = self.save, {**self.schedule.history(planned), **self.more_history()}
        if not planned and self._begin(step, history):
            return True
        try:
            self.store.save(step, lambda folder: {**save(folder), "agent": history})
        except CheckpointError as error:
            return self._note_failure(str(error))
        self.end_save(step)
        return True

    def copy_to_memory(self, step: int) -> None:
        """Begin a memory checkpoint of `step`, beside training. If it fails there are no more."""
        if self.memory is None or self.stage is None or self.is_under_way or self.memory.is_under_way:
            return
        try:
            self.memory.begin(step, self.stage, {**self.schedule.history(False), **self.more_history()})
        except CheckpointError as error:
            self._end_memory(error)

    def discard_memory(self) -> None:
        """Note that the run ends to go back on purpose, which no memory checkpoint is to undo."""
        if self._settings.memory_dir is not None:
            discard_memory(self._settings.memory_dir)

    def end_save(self, step: int, held_s: float | None = None) -> None:
        """Note that the checkpoint of `step` is good; it has held training up for `held_s` seconds (None: all the time)."""
        assert self.store is not None
        self.schedule.end_save(self._gpus, self._monotonic(), held_s)
        self._file_bytes = self.store.size_bytes(step)
        self._status.update(checkpoint_step=step, checkpoint_s=self.schedule.held_s, checkpoint_bytes=self._file_bytes)
        pause_text = f", training held up for {held_s:.2f} s" if held_s is not None else ""
        self._status.say(
            f"checkpoint of step {step} in {self.store.directory} ({self.schedule.save_s:.2f} s{pause_text})"
        )

    def _begin(self, step: int, history: Mapping[str, Any]) -> bool:
        """Begin a checkpoint in the background. Return False if the script has no `stage`, or if it failed."""
        stage, began = self.stage, self._monotonic()
        if stage is None or self.background is None:
            return False

        try:
            self.background.begin(step, with_history(stage, history))
        except CheckpointError as error:
            self.stage = None  # there may be no memory for the copy
            message = with_free_space(str(error), self.store.directory if self.store is not None else Path())
            self._status.note(f"{message}; from now on training waits until checkpoints are written")
            return False
        self._held_s = self._monotonic() - began
        return True

    def _finish_background_save(
        self, advance: Callable[[BackgroundSave], int | None], waited_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Note that a checkpoint in the background has become good, or failed."""
        if self.background is None:
            return
        try:
            step = advance(self.background)
        except CheckpointError as error:
            self._note_failure(str(error))
            return
        if step is not None:
            self.end_save(step, self._held_s + waited_s())

    def _advance_memory(self, advance: Callable[[BackgroundSave], int | None]) -> None:
        assert self.memory is not None
        try:
            self.memory.advance(advance)
        except CheckpointError as error:
            self._end_memory(error)

    def _end_memory(self, error: CheckpointError) -> None:
        self.memory = None
        self._status.note(f"memory {error}: no more memory checkpoints, those on disk go on")

    def _log_ending(self, step: int, clean: bool) -> None:
        if self.store is not None and self.store.ranks.rank == 0:
            failure_log.write(self.store.directory, step, self.schedule.failures, clean)

    def _note_failure(self, why: str) -> bool:
        self._status.note(with_free_space(why, self.store.directory) if self.store is not None else why)
        return False
