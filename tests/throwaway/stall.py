"""Wrappers of scontrol, scancel, squeue and salloc that stop one kind of call for a while, or let it fail.

A daemon is caught in a state for certain.
"""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path

# read: whatever is none of the others; start: a run of light_job.py, which waits here by itself
KINDS = ("checkpoint", "requeue", "update", "release", "shield", "return", "join", "start", "read")
LONGEST_S = 25  # below the daemon's own patience with a command

_SCRIPT = """#!/bin/sh
# waits (at most {longest} s) before and after the real call while FOLDER/KIND.before, FOLDER/KIND.after exist;
# in place of the call says what is in FOLDER/KIND.fails, and fails
kind=read
case "$0" in */salloc) kind=join ;; esac
for word in "$@"; do
  case "$word" in
    requeue) kind=requeue ;;
    ReqNodeList=*) [ $kind = read ] && kind=return ;;
    ReservationName=*) kind=shield; break ;;
    NumNodes=*) kind=update ;;
    StartTime=now) kind=release ;;
    --signal=*) kind=checkpoint ;;
  esac
done
stall() {{
  left={ticks}
  while [ -e {folder}/$kind.$1 ] && [ $left -gt 0 ]; do
    : > {folder}/$kind.$1.reached
    sleep 0.05
    left=$((left - 1))
  done
}}
stall before
if [ -e {folder}/$kind.fails ]; then
  : > {folder}/$kind.fails.reached
  cat {folder}/$kind.fails >&2
  exit 1
fi
{real} "$@"
code=$?
stall after
exit $code
"""


class Stalls:
    """`folder / "bin"` goes first on the PATH of the daemon to be stalled."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for name in ("scontrol", "scancel", "squeue", "salloc"):
            real = shutil.which(name, path=path)
            if real is None:
                raise RuntimeError(f"{name} is not installed")
            wrapper = self.bin / name
            words = {"folder": shlex.quote(str(folder)), "real": shlex.quote(real)}
            wrapper.write_text(_SCRIPT.format(longest=LONGEST_S, ticks=LONGEST_S * 20, **words))
            wrapper.chmod(0o755)

    def set(self, kind: str, when: str = "before") -> None:
        """Calls of `kind` stop from now on, `before` or `after` the real one."""
        if kind not in KINDS:
            raise ValueError(kind)
        self._reached(kind, when).unlink(missing_ok=True)
        (self.folder / f"{kind}.{when}").touch()

    def fail(self, kind: str, message: str) -> None:
        """Calls of `kind` fail from now on, and say `message`."""
        if kind not in KINDS:
            raise ValueError(kind)
        fresh = self.folder / "fresh"
        fresh.write_text(message + "\n")
        fresh.replace(self.folder / f"{kind}.fails")

    def wait(self, kind: str, when: str = "before", timeout_s: float = 120.0) -> None:
        """Until a call has stopped there. Raises RuntimeError."""
        end = time.monotonic() + timeout_s
        while not self.reached(kind, when):
            if time.monotonic() > end:
                raise RuntimeError(f"no {kind} call came within {timeout_s:g} s")
            time.sleep(0.05)

    def reached(self, kind: str, when: str = "before") -> bool:
        """A call has stopped there since `set`."""
        return self._reached(kind, when).exists()

    def unset(self, kind: str, when: str = "before") -> None:
        """Calls of `kind` go on."""
        (self.folder / f"{kind}.{when}").unlink(missing_ok=True)

    def clear(self) -> None:
        """All calls go on."""
        for kind in KINDS:
            for when in ("before", "after", "fails"):
                (self.folder / f"{kind}.{when}").unlink(missing_ok=True)

    def _reached(self, kind: str, when: str) -> Path:
        return self.folder / f"{kind}.{when}.reached"
