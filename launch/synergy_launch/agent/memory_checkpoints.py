"""Checkpoints in host memory, for a restart on the same node: the launcher copies each to the job's own checkpoint folder.

Their folder is the launcher's (launcher/memory_folder.py). Nothing here knows of torch.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from synergy_launch.agent.checkpoint import Checkpoints, FoundCheckpoint, latest_good
from synergy_launch.agent.collectives import Collectives
from synergy_launch.agent.host_memory import free_bytes

#: of the node's free memory: what is left is for the processes that load it, and for the page cache
_SHARE = 0.5
_SPREAD = 1.1  # of a checkpoint's size over that of the one before


class MemoryCheckpoints(Checkpoints):
    """Those in a folder of a memory file system, the newest alone. As Checkpoints, every method is collective."""

    def __init__(self, directory: Path, ranks: Collectives) -> None:
        super().__init__(directory, ranks, keep=1)

    def find(self) -> FoundCheckpoint:
        """As Checkpoints.find does; an unusable one is removed, and a folder that is gone holds none."""

        def look() -> FoundCheckpoint:
            if not self._usable():
                return FoundCheckpoint(None)
            newest = latest_good(self.directory)
            for folder in newest.bad:
                shutil.rmtree(folder, ignore_errors=True)
            return newest

        found: FoundCheckpoint = self._by_rank_0(look)
        return found

    def newer_than(self, stored: FoundCheckpoint) -> tuple[FoundCheckpoint, int | None]:
        """The newest of these and of what is `stored` on the file system, and the step of the former where it was taken.

        Of equal ones that in memory, which loads faster.
        """
        mine = self.find()
        if mine.checkpoint is None or (stored.checkpoint is not None and stored.checkpoint.step > mine.checkpoint.step):
            return stored, None
        return FoundCheckpoint(mine.checkpoint, stored.note, stored.bad), mine.checkpoint.step

    def has_room(self, size_bytes: int | None) -> bool:
        """Can a checkpoint of about `size_bytes` (None: of unknown size; rank 0's counts) lie there beside those that do?"""

        def room() -> bool:
            if size_bytes is None or not self._usable():
                return False
            system = os.statvfs(self.directory)
            free = free_bytes()
            return free is not None and _SPREAD * size_bytes <= _SHARE * min(free, system.f_bavail * system.f_frsize)

        return bool(self.ranks.broadcast(self.ranks.rank == 0 and room()))

    def _usable(self) -> bool:
        """The launcher's own folder, which nobody else can have put there."""
        try:
            status = self.directory.lstat()
        except OSError:
            return False
        return status.st_uid == os.getuid() and not status.st_mode & 0o077
