"""Run folder, reporter and torchrun's wrapper."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from synergy_launch.agent import run_folder
from synergy_launch.launcher import torchrun
from synergy_launch.launcher.reporter import Reporter

from synergyd.errors import UnavailableError, UsageError
from synergyd.records import Report
from synergyd.wire import report


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
    path = run_folder.path_of(7, 1, 0)
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


# -- reporter ----------------------------------------------------------------------------------------------------------


class Wire:
    """`report.send` in memory; the first `fails` deliveries fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: int = 0) -> None:
        self.steps: list[int] = []
        self.fails = fails
        monkeypatch.setattr(report, "send", self)

    def __call__(self, newest: Report, address: str, by: int | None) -> None:
        assert (address, by) == ("ctl:1", None)
        if self.fails:
            self.fails -= 1
            raise UnavailableError("daemon at ctl:1", "away")
        self.steps.append(newest.step)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_only_the_newest_goes_and_urgent_goes_now(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    made = Reporter("ctl:1", every_s=60)
    for step in range(5):
        made.offer(Report(1, 0, step))
    time.sleep(0.05)
    assert wire.steps == []
    made.offer(Report(1, 0, 5), urgent=True)
    until(lambda: wire.steps == [5])
    made.offer(Report(1, 0, 6))
    made.close()
    assert wire.steps == [5, 6]
    assert not made._thread.is_alive()


def test_what_was_not_delivered_is_sent_again_unless_newer_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wire = Wire(monkeypatch, fails=3)
    made = Reporter("ctl:1", every_s=0.01)
    made.offer(Report(1, 0, 1), urgent=True)
    until(lambda: wire.steps == [1])
    made.close()
    assert wire.steps == [1]
    assert capsys.readouterr().err.count("training goes on") == 1  # an absent daemon is one line, not one a try


def test_close_is_quick_with_nothing_to_say_or_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch, fails=99)
    idle, lost = Reporter("ctl:1", every_s=60), Reporter("ctl:1", every_s=60)
    lost.offer(Report(1, 0, 1))
    began = time.monotonic()
    idle.close()
    lost.close()
    assert time.monotonic() - began < 2 and wire.steps == [] and wire.fails == 98


def test_another_daemon_is_found_and_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, str]] = []

    def send(newest: Report, address: str, by: int | None) -> None:
        assert by == 64030
        if address != "ctl2:1":
            raise UnavailableError(f"daemon at {address}", "away")
        told.append((newest.step, address))

    monkeypatch.setattr(report, "send", send)
    made = Reporter("ctl:1", every_s=60, find=lambda: "ctl2:1", by=lambda: 64030)
    made.offer(Report(1, 0, 1), urgent=True)
    until(lambda: told == [(1, "ctl2:1")])
    made.close()


# -- torchrun ----------------------------------------------------------------------------------------------------------


class SignalException(Exception):
    def __init__(self, sigval: int) -> None:
        self.sigval = sigval


class ChildFailedError(Exception):
    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def get_first_failure(self) -> tuple[int, ChildFailedError]:
        return 3, self


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (None, None),
        (SignalException(15), 143),
        (SystemExit(4), 4),
        (ChildFailedError(2), 2),
        (ChildFailedError(-9), 137),
    ],
)
def test_torchruns_end(ends: BaseException | None, code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def run(arguments: list[str]) -> None:
        given.append(arguments)
        if ends is not None:
            raise ends

    api, runner, errors = types.ModuleType("api"), types.ModuleType("run"), types.ModuleType("errors")
    errors.ChildFailedError = ChildFailedError  # type: ignore[attr-defined]
    api.SignalException = SignalException  # type: ignore[attr-defined]
    runner.main = run  # type: ignore[attr-defined]
    for name in (
        "torch",
        "torch.distributed",
        "torch.distributed.elastic",
        "torch.distributed.elastic.multiprocessing",
    ):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch.distributed.elastic.multiprocessing.api", api)
    monkeypatch.setitem(sys.modules, "torch.distributed.elastic.multiprocessing.errors", errors)
    monkeypatch.setitem(sys.modules, "torch.distributed.run", runner)
    monkeypatch.setattr(sys, "argv", ["torchrun", "--nnodes", "1", "t.py"])
    if code is None:
        torchrun.main()
    else:
        with pytest.raises(SystemExit) as end:
            torchrun.main()
        assert end.value.code == code
    assert given == [["--nnodes", "1", "t.py"]]
