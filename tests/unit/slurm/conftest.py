"""A folder that stands in for Slurm's commands, and one with a slurm.conf's neighbours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from synergyd.slurm.command_line import CommandLine
from tests.unit.slurm.shell_world import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, value in {"SQUEUE_FORMAT": "%i", "SINFO_SORT": "x", "SCANCEL_INTERACTIVE": "1", "SLURM_CLUSTERS": "all", "SLURM_JOB_ID": "5",
                        "SLURM_TIME_FORMAT": "relative", "LC_ALL": "de_DE", "SLURM_CONF": "/outer"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return Shell(tmp_path, CommandLine({"SLURM_CONF": "/throwaway"}, timeout_s=5, slurm_release=(22, 5)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job_submit.lua").write_text("dofile('synergy.lua')")
    return tmp_path
