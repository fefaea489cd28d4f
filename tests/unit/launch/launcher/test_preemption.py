"""The launcher of a job that Slurm preempts: it asks for the requeue, and only then and there."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_launch.launcher import preemption


class FakeSlurm:
    """squeue answers what `rows` says, one a call; scontrol writes down what it was asked for."""

    def __init__(self, folder: Path, rows: list[str]) -> None:
        self.log = folder / "log"
        (folder / "rows").write_text("".join(f"{row}\n" for row in rows))
        self._write(folder / "squeue", f"head -n 1 {folder}/rows; sed -i 1d {folder}/rows")
        self._write(folder / "scontrol", f'echo "$@" >> {self.log}')

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preemption, "ASK_EVERY_S", 0.01)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")


def test_a_preempted_job_is_requeued_by_its_first_node(tmp_path: Path) -> None:
    slurm = FakeSlurm(tmp_path, ["RUNNING 1700000000", "RUNNING 1700000000", "COMPLETING 1700000000"])
    preemption.give_way(7, 0)
    assert slurm.asked == ["requeue 7", "requeue 7"], "until Slurm has done it"


def test_the_other_nodes_wait(tmp_path: Path) -> None:
    slurm = FakeSlurm(tmp_path, ["RUNNING 1700000000", "COMPLETING N/A"])
    preemption.give_way(7, 1)
    assert slurm.asked == []


@pytest.mark.parametrize(
    "row", ["RUNNING N/A", "RUNNING", "COMPLETING 1700000000", "CANCELLED N/A", "", "RUNNING None"]
)
def test_any_other_end_is_left_alone(tmp_path: Path, row: str) -> None:
    slurm = FakeSlurm(tmp_path, [row])
    preemption.give_way(7, 0)
    assert slurm.asked == []


def test_without_slurms_commands_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    preemption.give_way(7, 0)
