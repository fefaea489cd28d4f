"""What one of Slurm's commands can cost the daemon, whatever holds it: real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from synergyd.slurm import child, commands
from synergyd.slurm.client import SlurmError
from synergyd.slurm.command_line import CommandLine

LATE_S = 25.0  # on a busy machine; without the bound each of these takes minutes
TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
assert libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0, os.strerror(ctypes.get_errno())  # PTRACE_SEIZE
print("holds it", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in scontrol's place."""

    def put(text: str) -> None:
        script = tmp_path / "scontrol"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return put


def test_an_update_in_an_owners_name_runs_no_process_as_that_user(
    program: Callable[[str], None], tmp_path: Path
) -> None:
    program(f'echo "$(id -u) $*" >> {tmp_path}/log')
    slurm = CommandLine()
    slurm._limits = True
    if os.geteuid() == 0:
        slurm.update_size(7, 1, {"NumNodes": "1", "AdminComment": "x"})
        assert (tmp_path / "log").read_text().splitlines() == [
            "0 --uid=1 update JobId=7 NumNodes=1",
            "0 update JobId=7 AdminComment=x",
        ]
        with pytest.raises(SlurmError, match="this host knows no user 54321") as refused:
            slurm.update_size(7, 54321, {"NumNodes": "1"})
        assert refused.value.transient
    program("echo 'scontrol: error: --uid=\"x\" invalid' >&2")  # and exit code 0, as 22.05 has it
    with pytest.raises(SlurmError, match="invalid"):
        slurm.run("scontrol", "update")


def test_an_answer_without_end_is_cut_off(program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    program("exec cat /dev/zero")
    slurm, began_s = CommandLine(), time.monotonic()
    with pytest.raises(SlurmError, match="printed more than 1 MiB"):
        slurm.release(7)
    monkeypatch.setattr(commands, "MOST_READ_BYTES", 8 << 20)
    with pytest.raises(SlurmError, match="printed more than 8 MiB"):
        slurm.version()
    program("exec cat /dev/zero >&2")
    with pytest.raises(SlurmError, match="printed more than 1 MiB"):
        slurm.release(7)
    assert time.monotonic() - began_s < LATE_S


@pytest.mark.parametrize("held", ["kill -STOP $$", "exec >&- 2>&-; sleep 600", "sleep 600 & exit 0"])
def test_a_command_that_does_not_end_is_waited_for_no_longer_than_its_time(
    program: Callable[[str], None], held: str
) -> None:
    program(held)
    began_s = time.monotonic()
    with pytest.raises(SlurmError, match="no answer within 1 s") as late:
        CommandLine(timeout_s=1.0).release(7)
    assert late.value.transient and time.monotonic() - began_s < LATE_S
    assert child._abandoned == []


def test_one_that_a_tracer_keeps_from_ending_is_left_and_reaped_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As whoever may trace it can: its parent hears of its end only once the tracer lets it go."""
    monkeypatch.setattr(child, "KILLED_S", 0.5)
    real, tracers = subprocess.Popen, []

    def traced(*args: object, **options: object) -> subprocess.Popen[bytes]:
        made = real(*args, **options)  # type: ignore[call-overload]
        tracer = real([sys.executable, "-c", TRACER, str(made.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        tracers.append(tracer)
        assert tracer.stdout is not None and tracer.stdout.readline() == b"holds it\n"
        return made  # type: ignore[no-any-return]

    monkeypatch.setattr(subprocess, "Popen", traced)
    began_s = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        child.answer(["sleep", "600"], os.environ, 0.5, 100, nullcontext)
    assert time.monotonic() - began_s < LATE_S
    assert "does not end: it is waited for no longer" in caplog.text and len(child._abandoned) == 1
    monkeypatch.undo()
    for tracer in tracers:
        tracer.kill()
        tracer.communicate()
    end_s = time.monotonic() + LATE_S
    while child._abandoned and time.monotonic() < end_s:
        assert child.answer(["echo", "x"], os.environ, 10.0, 100, nullcontext).stdout == b"x\n"
    assert child._abandoned == []
