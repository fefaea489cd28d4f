"""How a job ended, out of what squeue and sacct of several releases print."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from synergy_core.errors import UnavailableError
from synergy_core.job_end import JobEnd, format_end

from synergyd.slurm.parsed.job_end import read_job_end


def slurm(queue: str | None, accounts: str | None) -> Callable[[Sequence[str]], str]:
    def run(argv: Sequence[str]) -> str:
        text = queue if "squeue" in argv else accounts
        if text is None:
            raise UnavailableError("slurm", "Invalid job id specified")
        return text

    return run


@pytest.mark.parametrize(
    ("queue", "accounts", "end"),
    [
        ("7           FAILED              768         1000          1090", None, ("FAILED", 3, 0, 1000.0, 1090.0)),
        ("7           FAILED              9           1000          1001", None, ("FAILED", 0, 9, 1000.0, 1001.0)),
        ("7           CANCELLED           0:15        N/A           1001", None, ("CANCELLED", 0, 15, None, 1001.0)),
        (None, "7|CANCELLED by 1000|0:15|1000|1600\n", ("CANCELLED", 0, 15, 1000.0, 1600.0)),
        ("71          COMPLETED           0           1           2", "7|COMPLETED|0:0|1000|1600", ("COMPLETED", 0, 0, 1000.0, 1600.0)),
        ("7           RUNNING             0           1000          9000", None, None),
        (None, None, None),
    ],
)  # fmt: skip
def test_the_end(queue: str | None, accounts: str | None, end: tuple[str, int, int, float, float] | None) -> None:
    names = ("state", "exit_code", "signal", "start_s", "end_s")
    want = None if end is None else JobEnd(**dict(zip(names, end, strict=True)))  # type: ignore[arg-type]
    assert read_job_end(slurm(queue, accounts), 7) == want


def test_its_text() -> None:
    failed = JobEnd(state="FAILED", exit_code=3, signal=0, start_s=1000.0, end_s=1780.0)
    assert format_end(failed) == "FAILED, exit code 3, after 13 min in its last run"
    killed = JobEnd(state="OUT_OF_MEMORY", exit_code=0, signal=9, start_s=None, end_s=None)
    assert format_end(killed) == "OUT_OF_MEMORY, signal 9"
