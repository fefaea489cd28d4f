"""How a run's incarnations ended, as far as its checkpoints do not tell: a small file beside them.

A checkpoint says whether the run may end with it, and that is right for the first that goes on from it. It is not where
an incarnation ends cleanly at a step that an earlier, periodic save has just covered; nor where two in a row go on from
the same checkpoint, the first of which has died.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

FILE = "synergy-endings.json"


def read(folder: Path, step: int) -> tuple[int, bool] | None:
    """(failures so far, whether the last incarnation ended cleanly) if that went on from `step`, or ended at it; else
    None: the checkpoint itself knows best."""
    try:
        said = json.loads((folder / FILE).read_text(encoding="ascii"))
        found = int(said["step"]), int(said["failures"]), said["clean"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found[1:] if found[0] == step and found[1] >= 0 else None


def write(folder: Path, step: int, failures: int, clean: bool) -> None:
    """An incarnation goes on from `step`, or has ended cleanly at it. A failure to note it costs one miscounted failure."""
    fresh = folder / f".{FILE}"
    with contextlib.suppress(OSError):
        fresh.write_text(json.dumps({"step": step, "failures": failures, "clean": clean}) + "\n", encoding="ascii")
        fresh.replace(folder / FILE)
