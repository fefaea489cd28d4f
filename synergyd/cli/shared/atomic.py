"""Files that are written at once or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from synergy_core.errors import UsageError


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` at once: a reader sees the old file or the new one.

    Raises UsageError if that can't be done.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(str(path), f"can't be written: {error.strerror}", "name a file in a folder of yours") from None
