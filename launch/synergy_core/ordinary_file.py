"""Reading a file that a user or an admin names."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_LINE = 1 << 20  # characters


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """Return the content of an ordinary file of at most `limit_bytes`. Raises OSError, with a reason in `strerror`.

    A pipe may never end and a device may do something when it is opened, so neither is opened.
    """
    about = path.stat()
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not an ordinary file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # it may be another by now
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size <= limit_bytes and len(content := file.read(limit_bytes + 1)) <= limit_bytes:
            return content
    size = f"{limit_bytes >> 20} MiB" if limit_bytes >= 1 << 20 else f"{limit_bytes >> 10} KiB"
    raise OSError(errno.EFBIG, f"larger than {size}")


def read_lines(path: Path, limit_bytes: int) -> Iterator[str]:
    """Yield the lines of such a file of UTF-8, with their ends. Raises OSError, also at a line above MAX_LINE, and UnicodeDecodeError."""
    for line in io.TextIOWrapper(io.BytesIO(read_bytes(path, limit_bytes)), "utf-8-sig", newline=""):
        if len(line) > MAX_LINE:
            raise OSError(errno.EINVAL, f"a line is longer than {MAX_LINE} characters")
        yield line
