"""The endings of a run's incarnations that its checkpoints do not show: a small file beside them.

A checkpoint records whether the run may end with it. This is right for the first incarnation that goes on from it. It is wrong where
an incarnation ends cleanly at a step that an earlier, periodic save has just covered, and where two in a row go on from
the same checkpoint, the first of which has died.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

FILE = "synergy-endings.json"


def read(folder: Path, step: int) -> tuple[int, bool] | None:
    """Return (failures so far, whether the last incarnation ended cleanly) if it went on from `step` or ended at it.

    Returns None otherwise: the checkpoint itself knows best.
    """
    try:
        entry = json.loads((folder / FILE).read_text(encoding="ascii"))
        ending = int(entry["step"]), int(entry["failures"]), entry["clean"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ending[1:] if ending[0] == step and ending[1] >= 0 else None


def write(folder: Path, step: int, failures: int, clean: bool) -> None:
    """Record that an incarnation goes on from `step`, or has ended cleanly at it. If it can't be written, one failure is miscounted."""
    fresh = folder / f".{FILE}"
    with contextlib.suppress(OSError):
        fresh.write_text(json.dumps({"step": step, "failures": failures, "clean": clean}) + "\n", encoding="ascii")
        fresh.replace(folder / FILE)
