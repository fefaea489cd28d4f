"""Old import names: for one release, scripts with `from launch import SynergyTask`, as in release 0.1.0, go on working."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

BRIDGE = Path(__file__).resolve().parents[1] / "bridge"


def python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH with the folder of the old names at its end, behind all that the user put there."""
    before = environment.get("PYTHONPATH", "")
    if str(BRIDGE) in before.split(os.pathsep):
        return {"PYTHONPATH": before}
    return {"PYTHONPATH": f"{before}{os.pathsep}{BRIDGE}" if before else str(BRIDGE)}
