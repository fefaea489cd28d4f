"""The job's output over a requeue: copied when Slurm stops the job, and put back before what the next start has written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.job.kept_output import OutputKeeper, add_new, output_files, prepend


def node(restarts: int = 0, rank: int = 0) -> JobAllocation:
    return JobAllocation(
        job_id=7, restarts=restarts, nodes=("n1",), node_rank=rank, gpus=1, in_step=True, leader=rank == 0
    )


@pytest.fixture
def shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Path]:
    """A scontrol that shows the job with so many restarts and this JobFileAppend; returns the job's output file."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    out = tmp_path / "slurm-7.out"

    def show(restarts: int, appends: int = 0) -> Path:
        job = f"   Requeue=1 Restarts={restarts} BatchFlag=1\n   StdErr={out}\n   StdIn=/dev/null\n   StdOut={out}\n"
        (tmp_path / "job").write_text(job)
        (tmp_path / "config").write_text(f"JobFileAppend           = {appends}\n")
        program = tmp_path / "bin" / "scontrol"
        program.write_text(f'#!/bin/sh\ncat "{tmp_path}/$2"\n')
        program.chmod(0o755)
        return out

    return show


def run(
    allocation: JobAllocation, *, ends: bool, synergys: bool = True, environment: dict[str, str] | None = None
) -> None:
    keeper = OutputKeeper(allocation, lambda: ends, lambda: synergys, environment or {})
    keeper.start()
    keeper.close()


def copies(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob(".*"))


def test_a_requeued_jobs_output_comes_back_before_the_next_ones(shows: Callable[..., Path]) -> None:
    out = shows(1)
    out.write_text("first\n")
    run(node(), ends=True)
    assert copies(out.parent) == [".slurm-7.out.synergy-7-0"]
    out.write_text("second\n")  # Slurm has truncated it, and the script has said something already
    run(node(restarts=1), ends=False)
    assert out.read_text() == "first\nsecond\n" and copies(out.parent) == []


def test_nothing_is_kept_of_a_job_that_ends_for_good(shows: Callable[..., Path]) -> None:
    for restarts, appends, environment in ((0, 0, {}), (1, 1, {}), (1, 0, {"SLURM_OPEN_MODE": "t"})):
        out = shows(restarts, appends)
        out.write_text("first\n")
        run(node(), ends=True, environment=environment)
        run(node(rank=1), ends=True)
        assert copies(out.parent) == [] and out.read_text() == "first\n"


def test_a_requeued_job_that_is_not_synergys_is_left_to_slurm(shows: Callable[..., Path]) -> None:
    out = shows(1)
    out.write_text("first\n")
    run(node(), ends=True, synergys=False)
    assert copies(out.parent) == []


def test_output_that_nobody_truncated_is_left(shows: Callable[..., Path]) -> None:
    out = shows(1)
    out.write_text("first\n")
    run(node(), ends=True)
    out.write_text("first\nsecond\n")
    run(node(restarts=1), ends=False)
    assert out.read_text() == "first\nsecond\n" and copies(out.parent) == []


def test_two_copies_come_back_in_order(shows: Callable[..., Path]) -> None:
    """The launcher of an incarnation was killed before it could put back what the one before had left."""
    out = shows(2)
    for number, text in enumerate(("first\n", "second\n")):
        (out.parent / f".slurm-7.out.synergy-7-{number}").write_text(text)
    out.write_text("")
    run(node(restarts=2), ends=False)
    assert out.read_text() == "first\nsecond\n" and copies(out.parent) == []


def test_what_others_write_meanwhile_is_behind_it_and_whole(tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    old = b"".join(b"old line %07d\n" % i for i in range(300_000))
    copy.write_bytes(old)
    lines = [b"new line %05d\n" % i for i in range(20_000)]
    out.write_bytes(b"prologue\n")

    def write() -> None:
        descriptor = os.open(out, os.O_WRONLY | os.O_APPEND)
        for line in lines:
            os.write(descriptor, line)
        os.close(descriptor)

    writer = threading.Thread(target=write)
    writer.start()
    prepend(out, copy)
    writer.join()
    assert out.read_bytes() == old + b"prologue\n" + b"".join(lines)


def test_a_copy_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    secret, out, copy = tmp_path / "secret", tmp_path / "out", tmp_path / "copy"
    secret.write_text("secret\n")
    out.write_text("mine\n")
    copy.symlink_to(secret)
    with pytest.raises(OSError):
        prepend(out, copy)
    with pytest.raises(OSError):
        add_new(out, copy)
    assert (out.read_text(), secret.read_text()) == ("mine\n", "secret\n")


def test_a_copy_grows_by_what_is_new(tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    out.write_text("one\n")
    add_new(out, copy)
    with out.open("a") as stream:
        stream.write("two\n")
    add_new(out, copy)
    assert copy.read_text() == "one\ntwo\n" and copy.stat().st_mode & 0o777 == 0o600


def test_only_files_are_output(tmp_path: Path) -> None:
    out = tmp_path / "a b.out"
    out.write_text("x")
    text = f"   StdErr={out}\n   StdOut=/dev/null\n   StdOut={tmp_path}/gone\n   StdOut={out}\n"
    assert output_files(text) == [out]
