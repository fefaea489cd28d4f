"""Writes that failed since a disk is full or a quota used up: recognised by what the library says, and told with the free space."""

from __future__ import annotations

import errno
import os
from pathlib import Path

#: the last: torch.save, which does not say why the file system took no more
_WORDS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "PytorchStreamWriter failed writing")


def is_full_disk(text: str) -> bool:
    """Return whether an error's `text` says that a disk is full or a quota used up."""
    return any(words in text for words in _WORDS)


def read_free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user may still write in the file system of `folder`, quotas left out; None where it can't be asked."""
    for existing in (folder, *folder.parents):
        try:
            file_system = os.statvfs(existing)
        except OSError:
            continue
        return file_system.f_bavail * file_system.f_frsize
    return None


def with_free_space(text: str, folder: Path) -> str:
    """Return an error's `text`, with what is free in `folder` where it says that a disk is full."""
    free_bytes = read_free_bytes(folder) if is_full_disk(text) else None
    return text if free_bytes is None else f"{text}; {folder} has {free_bytes / 2**30:.1f} GiB free"
