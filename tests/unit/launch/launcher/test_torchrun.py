"""torchrun's wrapper: the exit code of each way to end."""

from __future__ import annotations

import sys
import types

import pytest
from synergy_launch.launcher import torchrun


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
