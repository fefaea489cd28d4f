"""The private folder that the launcher and its training processes share on one node."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from synergyd.errors import UsageError

STATUS = "status.json"
REQUEST = "checkpoint-request"


def path_of(job_id: int | None, restarts: int, node_rank: int) -> Path:
    """Where the folder of this node and incarnation lies."""
    name = f"synergy-{os.getuid()}-{job_id or os.getpid()}-{restarts}-{node_rank}"
    return Path(tempfile.gettempdir()) / name


def make(job_id: int | None, restarts: int, node_rank: int) -> Path:
    """Makes the folder (mode 0700), never through a link or in a folder of someone else's. Raises UsageError."""
    path = path_of(job_id, restarts, node_rank)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        about = path.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise UsageError(
                str(path), "exists and is not this user's private folder", "remove it, or set TMPDIR"
            ) from None
        for left in (STATUS, REQUEST):
            (path / left).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(str(path), f"can't be made ({error.strerror})", "set TMPDIR to a writable folder") from None
    return path


def read_status(folder: Path) -> dict[str, Any] | None:
    """The training process's status, None while there is none (or half of one)."""
    try:
        data = json.loads((folder / STATUS).read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def request_checkpoint(folder: Path, number: int) -> None:
    """Asks the training processes for their `number`th checkpoint on request."""
    fresh = folder / f".{REQUEST}"
    fresh.write_text(f"{number}\n")
    fresh.replace(folder / REQUEST)
