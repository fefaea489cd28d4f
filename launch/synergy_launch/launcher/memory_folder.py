"""A job's folder for checkpoints in host memory, and their copies on the file system.

One launcher on one node has one, as long as it lives: a restart in place goes on from what lies there. Each checkpoint is copied
to the job's own folder when a run trains that began from it, at the launcher's end at the latest, and then removed: any other
start (a requeue, another node) takes the file system's. Only a node that fails before that loses more than it would otherwise: the
steps since the checkpoint before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from synergy_launch.agent import checkpoint

ROOT = Path("/dev/shm")
_AGAIN_S = 10.0  # after a copy that failed, such as on a full disk
#: so long a run may take to train; copying 512 MiB beside its start held it up by 5 s (median of 4, two loaded cores)
_PATIENCE_S = 60.0


def make(job_id: int, checkpoints: Path, root: Path = ROOT) -> MemoryFolder | None:
    """A new folder, mode 0700; those that launchers of this user have left behind are removed. None where there can be none."""
    prefix = f"synergy-memory-{os.getuid()}-"
    try:
        for folder in root.glob(f"{prefix}*"):
            _remove_left(folder)
        path = Path(tempfile.mkdtemp(prefix=f"{prefix}{job_id}-", dir=root))
        return MemoryFolder(path, _locked(path), checkpoints)
    except OSError:
        return None


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder as its launcher lives. Raises OSError where another does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_left(folder: Path) -> None:
    """Removes it unless its launcher lives, or it is another user's."""
    with contextlib.suppress(OSError):
        descriptor = _locked(folder)
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


class MemoryFolder:
    """`path`, held by `descriptor`, whose checkpoints are copied to `checkpoints`. `look` often, `close` at the end."""

    def __init__(
        self, path: Path, descriptor: int, checkpoints: Path, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._descriptor, self._checkpoints, self._monotonic = descriptor, checkpoints, monotonic
        self._thread: threading.Thread | None = None
        self._again_at = 0.0
        self._seen = -1, 0.0  # step of the newest, and when it was first seen
        self._copied = -1  # step of the newest that lies on the file system too

    def look(self, status: Mapping[str, Any] | None) -> None:
        """Copies what is new where the run's `status` says that it trains, and removes what has been copied."""
        if self._thread is not None and self._thread.is_alive():
            return
        newest = self._newest()
        if newest is None:
            return
        step, now_s, (reached, state) = checkpoint.step_of(newest), self._monotonic(), _where(status)
        if self._seen[0] != step:
            self._seen = step, now_s
        trains = state == "training" and reached >= step
        if step > self._copied and now_s >= self._again_at and (trains or now_s >= self._seen[1] + _PATIENCE_S):
            self._again_at = now_s + _AGAIN_S
            self._thread = threading.Thread(target=self._copy, args=(newest,), name="checkpoint", daemon=True)
            self._thread.start()
        elif step <= self._copied and trains:
            (newest / checkpoint.MARKER).unlink(missing_ok=True)  # a half-removed one must not look good
            shutil.rmtree(newest, ignore_errors=True)

    def close(self) -> None:
        """Completes the copying, and removes the folder."""
        if self._thread is not None:
            self._thread.join()
        newest = self._newest()
        if newest is not None and checkpoint.step_of(newest) > self._copied:
            self._copy(newest)
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)

    def _newest(self) -> Path | None:
        try:
            return checkpoint.newest_sealed(self.path)
        except OSError:  # somebody has removed the folder
            return None

    def _copy(self, folder: Path) -> None:
        with contextlib.suppress(
            OSError, shutil.Error
        ):  # tried again; the run's next checkpoint goes to the file system
            self._checkpoints.mkdir(exist_ok=True)
            stored = checkpoint.newest_sealed(self._checkpoints)
            if stored is None or checkpoint.step_of(stored) < checkpoint.step_of(folder):
                checkpoint.copy(folder, self._checkpoints)
                checkpoint.prune(self._checkpoints)
            self._copied = checkpoint.step_of(folder)


def _where(status: Mapping[str, Any] | None) -> tuple[int, object]:
    """(step, state) of a run."""
    step = status.get("step") if status else None
    return (step if isinstance(step, int) else -1), (status.get("state") if status else None)
