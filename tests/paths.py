"""Where this checkout's sources lie, and PYTHONPATH for processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (str(ROOT), str(ROOT / "launch"), str(ROOT / "sim"), str(ROOT / "sql"))


def python_path(*more: str | Path) -> str:
    """This checkout's packages, then `more`, then what this process was given; whatever is installed comes after."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(str(p) for p in (*SOURCES, *more, *given) if str(p)))
