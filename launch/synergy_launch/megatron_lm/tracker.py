"""Megatron-LM's own note of its newest checkpoint, in the folder that it saves to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_TRACKER = "latest_checkpointed_iteration.txt"
_MAX_DIGITS = 18


def newest_iteration(folder: Path) -> int | str:
    """Return the newest checkpoint's iteration, or "release" for weights that no run has saved.

    Return "" where the tracker file is missing or makes no sense.
    """
    try:
        text = (folder / _TRACKER).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    if text == "release":
        return text
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else ""


def resume_source(folder: Path | None, load: Sequence[str]) -> Path | None:
    """Return the checkpoint that a run resumes from: the newest of `folder` where one lies there, else that of the last --load (`load`)."""
    for where in (*([folder] if folder else []), *(Path(name) for name in load[-1:])):
        newest = newest_iteration(where)
        if newest != "":
            return where / (f"iter_{newest:07d}" if isinstance(newest, int) else newest)
    return None
