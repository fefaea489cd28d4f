"""One child process, bounded: in time, in what it prints, and in how long its end is waited for."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress

log = logging.getLogger("synergyd.slurm")
KILLED_S = 2.0  # for which the end of a child that was killed is waited for: one in the kernel's hands may never end
_CHUNK = 1 << 16
_abandoned: list[subprocess.Popen[bytes]] = []  # killed, and to be reaped once they end


class TooLongError(Exception):
    """A child that printed more than it may."""


def answer(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    most_bytes: int,
    start: Callable[[], AbstractContextManager[None]],
    folder: str | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run `argv` in `folder`, entering `start` around its beginning, and return what it printed.

    Raise TimeoutExpired, or TooLongError beyond `most_bytes`. The child was killed by then, with all that it has
    started.
    """
    _abandoned[:] = [process for process in _abandoned if process.poll() is None]
    with start():
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        out, error = _wait_for_output(process, time.monotonic() + timeout_s, timeout_s, most_bytes)
    except BaseException:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        _end(process)
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return subprocess.CompletedProcess(argv, process.returncode, out, error)


def _wait_for_output(
    process: subprocess.Popen[bytes], until_s: float, timeout_s: float, most_bytes: int
) -> tuple[bytes, bytes]:
    """Return its output and errors once it has ended."""
    assert process.stdout is not None and process.stderr is not None
    parts: dict[int, list[bytes]] = {process.stdout.fileno(): [], process.stderr.fileno(): []}
    out, error = parts.values()
    size = 0
    with selectors.DefaultSelector() as selector:
        for descriptor in parts:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            for key, _ in selector.select(left_s):
                part = os.read(key.fd, _CHUNK)
                if not part:
                    selector.unregister(key.fd)
                size += len(part)
                if size > most_bytes:
                    raise TooLongError
                parts[key.fd].append(part)
    process.wait(max(0.001, until_s - time.monotonic()))
    return b"".join(out), b"".join(error)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child that was killed, for KILLED_S."""
    try:
        process.wait(KILLED_S)
    except subprocess.TimeoutExpired:
        log.warning("process %d was killed and does not end: it is waited for no longer", process.pid)
        _abandoned.append(process)
