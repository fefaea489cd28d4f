"""Names a process so that another one on the same machine can find out that it is gone."""

from __future__ import annotations

import os
from pathlib import Path


def this_process() -> str:
    """`<boot id> <pid namespace> <pid> <start time in clock ticks since boot>`; "" where /proc does not tell."""
    here, pid = _here(), os.getpid()
    started = _started(pid)
    return f"{here} {pid} {started}" if here and started is not None else ""


def gone(process: str) -> bool:
    """True only if it ran on this machine, in this pid namespace, and has ended for certain. Takes any text."""
    words = process.split()
    if len(words) != 4 or " ".join(words[:2]) != _here() or not (words[2].isdecimal() and words[3].isdecimal()):
        return False
    pid = int(words[2])
    try:
        os.kill(pid, 0)  # /proc may hide the processes of other users; this does not
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    started = _started(pid)
    return started is not None and started != int(words[3])


def _here() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Of a process that has ended and was not waited for: -1. None: not told."""
    try:
        # the name in brackets may hold anything
        words = (Path("/proc") / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return -1 if words[0] in "ZX" else int(words[19])
    except (OSError, ValueError, IndexError):
        return None
