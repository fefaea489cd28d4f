"""The plugin in each Lua there is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.plugin.submit_world import Controller


@pytest.fixture(params=["lua51", "lua53", "lua54"])
def lua(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def slurm(lua: str, tmp_path: Path) -> Controller:
    """A controller with a live daemon that asks for 20 s of grace."""
    controller = Controller(lua)
    (tmp_path / "heartbeat").write_text(f"{int(time.time())} 20\n")
    controller.configure(state_dir=str(tmp_path))
    return controller
