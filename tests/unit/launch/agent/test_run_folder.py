"""The folder that the launcher and its training processes share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_launch.agent import run_folder


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_is_private_and_each_launchers_own(temp: Path) -> None:
    folder = run_folder.make(7, 1, 0)
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.parent == temp
    run_folder.request_checkpoint(folder, 4)
    (folder / "status.json").write_text('{"state": "done"}')
    again = run_folder.make(7, 1, 0)  # another cluster's job 7, or a second step
    assert again != folder and list(again.iterdir()) == []
    assert run_folder.read_status(again) is None and run_folder.read_status(folder) == {"state": "done"}


def test_a_dry_run_names_the_folder_and_makes_none(temp: Path) -> None:
    path = run_folder.folder_pattern(7, 1, 0)
    assert path.name == f"synergy-{os.getuid()}-7-1-0-XXXXXXXX" and list(temp.iterdir()) == []
    assert len(run_folder.make(7, 1, 0).name) == len(path.name)


def test_a_folder_that_can_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="set TMPDIR"):
        run_folder.make(7, 1, 0)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'"x"'])
def test_half_a_status_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "status.json").write_bytes(content)
    assert run_folder.read_status(tmp_path) is None
