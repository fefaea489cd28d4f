"""torchrun's wrapper: the exit code of each way to end."""

from __future__ import annotations

import os
import sys
import types

import pytest
from synergy_launch.launcher import torchrun
from synergy_launch.launcher.group.meeting import NO_MEETING, VARIABLE, Meeting, NoMeetingError
from synergy_launch.launcher.job import job_secret


class SignalException(Exception):
    def __init__(self, sigval: int) -> None:
        self.sigval = sigval


class ChildFailedError(Exception):
    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def get_first_failure(self) -> tuple[int, ChildFailedError]:
        return 3, self


def run_with(monkeypatch: pytest.MonkeyPatch, arguments: list[str], ends: BaseException | None) -> list[list[str]]:
    """Let the wrapper run a torchrun that `ends` so. Return what torchrun is given, once it is."""
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
    monkeypatch.setattr(sys, "argv", ["torchrun", *arguments])
    return given


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
    given = run_with(monkeypatch, ["--nnodes", "1", "t.py"], ends)
    if code is None:
        torchrun.main()
    else:
        with pytest.raises(SystemExit) as end:
            torchrun.main()
        assert end.value.code == code
    assert given == [["--nnodes", "1", "t.py"]]


@pytest.mark.parametrize("meets", [True, False])
def test_on_several_nodes_torchrun_goes_where_the_nodes_meet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], meets: bool
) -> None:
    def find_port(meeting: Meeting) -> int:
        if not meets:
            raise NoMeetingError("rendezvous", "no port can be had")
        return 20_000 + meeting.rank

    monkeypatch.setattr(Meeting, "find_port", find_port)
    monkeypatch.setenv(VARIABLE, "7 0 0 1")
    monkeypatch.setenv(job_secret.VARIABLE, job_secret.new_secret())
    where = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "n1", "--master-port"]
    given = run_with(monkeypatch, [*where, "1", "t.py", "--master-port", "5"], None)
    if meets:
        torchrun.main()
    else:
        with pytest.raises(SystemExit) as end:
            torchrun.main()
        assert end.value.code == NO_MEETING
        assert capsys.readouterr().err == "synergy-launch: rendezvous: no port can be had\n"
    assert given == ([[*where, "20001", "t.py", "--master-port", "5"]] if meets else [])
    assert VARIABLE not in os.environ  # the script may start a torchrun of its own
