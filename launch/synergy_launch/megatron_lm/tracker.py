"""Megatron-LM's own note of its newest checkpoint, in the folder that it saves to."""

from __future__ import annotations

from pathlib import Path

_TRACKER = "latest_checkpointed_iteration.txt"
_MAX_DIGITS = 18


def newest(folder: Path) -> int | str:
    """The iteration, or "release" for weights that no run has saved; "" where the note is missing or makes no sense."""
    try:
        said = (folder / _TRACKER).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    if said == "release":
        return said
    return int(said) if said.isdecimal() and len(said) <= _MAX_DIGITS else ""
