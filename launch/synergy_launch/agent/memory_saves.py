"""Memory checkpoints, as the training processes take them: more often than on disk, by the same copy beside training.

Each node's processes write their part to a folder of the launcher's on tmpfs, and the launchers hold each part on two nodes
(launcher/memory/copies.py). The next one is taken when the last one is held twice, so that its memory and its cost are bounded. None is
taken before the first good checkpoint on disk: until then no failure is answered in place, and the size is not known. Status and metadata
of the run never name a memory checkpoint as one that is safe.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synergy_launch.agent.background_save import BackgroundSave, StagedPart, with_history
from synergy_launch.agent.checkpoint import Checkpoint, CheckpointError, prepare, step_folder, verify
from synergy_launch.agent.checkpoint_interval import SHORTEST_S, choose_memory_interval
from synergy_launch.agent.collectives import Collectives
from synergy_launch.agent.memory_folder import (
    ACKNOWLEDGED,
    DISCARDED,
    OWN,
    RESUME,
    needed_bytes,
    room_obstacle,
    seal_part,
)


def discard_memory(directory: Path) -> None:
    """Note in the run's folder that it goes back on purpose: no memory checkpoint is to be used."""
    with contextlib.suppress(OSError):
        (directory / DISCARDED).touch()


class NodeParts:
    """One node's parts of a run's memory checkpoints, in `folder`. Its `local_rank` 0 makes and seals them."""

    def __init__(self, folder: Path, ranks: Collectives, local_rank: int) -> None:
        self.folder, self.ranks, self._local_rank = folder, ranks, local_rank
        self.needed_bytes = 0  # by all memory checkpoints of a node together, on rank 0

    @property
    def seals(self) -> bool:
        """Return whether this rank calls `close`."""
        return self._local_rank == 0

    def open(self, step: int) -> Path:
        """Return an empty folder for this node's part. Raises CheckpointError on every rank where one node has no room."""
        needed, error = self.ranks.broadcast(self.needed_bytes), ""
        if self.seals:
            try:
                error = room_obstacle(self.folder.parent, needed)
                if not error:
                    prepare(self.folder, step)
            except OSError as problem:
                error = problem.strerror or type(problem).__name__
        if self.ranks.maximum([1 if error else 0])[0]:
            raise CheckpointError(f"checkpoint of step {step}", error or "another node can't hold its part")
        return step_folder(self.folder, step)

    def close(self, folder: Path, step: int, meta: Mapping[str, Any]) -> None:
        """Seal this node's part. Raises OSError."""
        seal_part(folder, step, meta if self.ranks.rank == 0 else None)

    def discard(self, step: int) -> None:
        """Remove this node's part of `step`."""
        if self.seals:
            shutil.rmtree(step_folder(self.folder, step), ignore_errors=True)


@dataclass
class _Cost:
    """What the latest memory checkpoint costs, on rank 0: seconds by one clock."""

    step: int
    began_at: float
    held_s: float = 0.0
    is_acknowledged: bool = False


class MemorySaves:
    """One rank's side of the run's memory checkpoints. All methods are collective but those that say otherwise.

    `directory`: the folder of this run and node that the launcher has made. `monotonic` returns seconds.
    """

    def __init__(
        self,
        directory: Path,
        ranks: Collectives,
        local_rank: int,
        monotonic: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._directory, self._ranks, self._local_rank = directory, ranks, local_rank
        self._monotonic, self._say = monotonic, say
        self._parts = NodeParts(directory / OWN, ranks, local_rank)
        self.background = BackgroundSave(self._parts)
        self._every_s = SHORTEST_S
        self._saved_at = monotonic()  # the time of the last save of any kind
        self._cost: _Cost | None = None
        self._has_said_cost = False

    # -- where to go on from -------------------------------------------------------------------------------------------

    def find(self, after_step: int) -> Checkpoint | None:
        """Return the memory checkpoint that every node has whole, if it is of a later step than `after_step`.

        `after_step` is rank 0's. The path is this node's own.
        """
        own: Checkpoint | None = None
        if self._local_rank == 0:
            with contextlib.suppress(OSError):
                for folder in sorted((self._directory / RESUME).iterdir()):
                    own = verify(folder)[0] or own
        steps = self._ranks.gather((own.step if own is not None else 0) if self._local_rank == 0 else None)
        newest, meta = self._ranks.broadcast((max(after_step, 0), own.meta if own is not None else None))
        agreed = {step for step in steps if step is not None}
        if len(agreed) != 1 or (step := agreed.pop()) <= newest or meta is None:
            self.forget_resumed()  # of the nodes that have it: its memory is needed for the next ones
            return None
        return Checkpoint(step_folder(self._directory / RESUME, step), step, meta)

    def forget_resumed(self) -> None:
        """Remove what the run could go on from: every rank has read it, or none will. Not collective."""
        if self._local_rank == 0:
            shutil.rmtree(self._directory / RESUME, ignore_errors=True)

    # -- each step -----------------------------------------------------------------------------------------------------

    def is_due(self, checkpoint_bytes: int | None) -> bool:
        """Return whether one is due by rank 0's clock. `checkpoint_bytes`: of the last one on disk. Not collective."""
        now_s = self._monotonic()
        self._look_for_acknowledgement(now_s)
        waits = self._cost is not None and not self._cost.is_acknowledged
        nodes = self._ranks.world // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        if not checkpoint_bytes or waits or nodes < 2 or now_s - self._saved_at < self._every_s:
            return False
        self._parts.needed_bytes = needed_bytes(checkpoint_bytes, nodes)
        return True

    def postpone(self) -> None:
        """Note that a checkpoint is written to disk now, which is as good. Not collective."""
        self._saved_at = self._monotonic()

    def add_step(self, step_s: float, usual_s: float | None) -> None:
        """Note that a step took `step_s` seconds: more than usual is due to the copy under way. Not collective."""
        if self._cost is not None and not self._cost.is_acknowledged and usual_s is not None:
            self._cost.held_s += step_s - usual_s

    def begin(self, step: int, stage: Callable[[Path], StagedPart], history: Mapping[str, Any]) -> None:
        """Copy the state of `step` and start to write it. Raises CheckpointError on every rank where one could not."""
        self._saved_at = began_at = self._monotonic()

        try:
            self.background.begin(step, with_history(stage, history))
        except CheckpointError:
            self._parts.discard(step)
            raise
        self._cost = _Cost(step, began_at, held_s=self._monotonic() - began_at)

    @property
    def is_under_way(self) -> bool:
        """Return whether one is being written. Not collective, but the same on all ranks."""
        return self.background.step is not None

    def advance(self, advance: Callable[[BackgroundSave], int | None]) -> None:
        """Bring the one under way further by `advance`. Raises CheckpointError on every rank where one could not be written."""
        step = self.background.step
        try:
            advance(self.background)
        except CheckpointError:
            if step is not None:
                self._parts.discard(step)
            raise

    # -- inside --------------------------------------------------------------------------------------------------------

    def _look_for_acknowledgement(self, now_s: float) -> None:
        cost = self._cost
        if cost is None or cost.is_acknowledged:
            return
        try:
            step = int((self._directory / ACKNOWLEDGED).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return  # none yet
        if step < cost.step:
            return
        cost.is_acknowledged = True
        held_s, copied_s = max(0.0, cost.held_s), now_s - cost.began_at
        self._every_s = choose_memory_interval(held_s, copied_s)
        if not self._has_said_cost:
            self._has_said_cost = True
            self._say(
                f"memory checkpoint of step {cost.step}: training held up for {held_s:.2f} s, held on two nodes after "
                f"{copied_s:.1f} s; the next one after {self._every_s:.0f} s"
            )
