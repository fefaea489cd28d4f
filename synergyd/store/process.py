"""Names for processes, from which another process on the same machine can find out that one is gone."""

from __future__ import annotations

import os
from pathlib import Path


def this_process() -> str:
    """Return `<boot id> <pid namespace> <pid> <start time in clock ticks since boot>`, or "" if /proc does not tell."""
    here, pid = _here(), os.getpid()
    start_ticks = _start_ticks(pid)
    return f"{here} {pid} {start_ticks}" if here and start_ticks is not None else ""


def has_ended(process: str) -> bool:
    """Return True only if `process` ran on this machine, in this pid namespace, and has ended for certain. Accept any text."""
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
    start_ticks = _start_ticks(pid)
    return start_ticks is not None and start_ticks != int(words[3])


def _here() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """Return the start time of the process in clock ticks since boot, -1 if it has ended and was not waited for, or None if unknown."""
    try:
        # the name in brackets may hold anything
        words = (Path("/proc") / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return -1 if words[0] in "ZX" else int(words[19])
    except (OSError, ValueError, IndexError):
        return None
