"""The side that asks: the launcher for torchrun, and torchrun for the ranks.

    launcher --- waiting process --fork--> torchrun --- waiting process --fork--> rank, rank, ...

Each asks a waiting process of its own, and is the parent of what that one forks. Whatever stands in the way, the caller is told None,
and starts Python as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

from synergy_launch.warm_start import server

#: what Python and native libraries read as they are loaded: with other values a fork is another program
READ_AT_IMPORT = (
    "PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_", "TORCH_LOGS", "TORCH_DISTRIBUTED_DEBUG",
    "TORCHDYNAMO_", "TORCHINDUCTOR_",
)  # fmt: skip
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
_ANSWER_S = 10.0  # for a fork, which takes milliseconds
_POLL_S = 0.02


class Child(Protocol):
    """What the launcher uses of subprocess.Popen."""

    pid: int
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    @property
    def returncode(self) -> Any: ...  # None until it has ended, as subprocess has it
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...


class ForkedProcess:
    """A child that was not started by subprocess.Popen, whose methods it has."""

    def __init__(self, pid: int, stdout: IO[bytes] | None = None, stderr: IO[bytes] | None = None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class WaitingProcess:
    """A process that waits to become another one. `own`: it was started here, with what `environment` says."""

    def __init__(self, channel: socket.socket, environment: Mapping[str, str], own: subprocess.Popen[bytes] | int):
        self._channel, self._process = channel, own
        self._read_at_import = _at_import(environment)
        self._state: bool | None = None if isinstance(own, subprocess.Popen) else True  # None: it imports yet

    @classmethod
    def launch(cls, modules: Sequence[str], environment: Mapping[str, str]) -> WaitingProcess | None:
        """Start one that imports `modules`, in the background; None where that fails."""
        here, there = socket.socketpair()
        command = (sys.executable, "-P", "-u", "-m", "synergy_launch.warm_start", str(there.fileno()), *modules)
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=(there.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            here.close()
            return None
        finally:
            there.close()
        return cls(here, environment, process)

    @property
    def is_importing(self) -> bool:
        """Return whether it is not known yet that it can be asked, or can't."""
        return self._state is None

    def is_ready(self, within_s: float) -> bool:
        """Return whether it can be asked, as soon as that is known, or after `within_s`."""
        if self._state is None:
            with contextlib.suppress(OSError):
                readable, _, _ = select.select([self._channel], [], [], within_s)
                if readable:
                    self._state = self._channel.recv(1) == server.READY
        return bool(self._state)

    def start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: bool = False,
        errors: bool = False,
        new_session: bool = False,
        passes_descriptors: bool = True,
    ) -> ForkedProcess | None:
        """Have a child forked that runs the Python command `argv`; None where it can't be.

        `output`, `errors`: through a pipe. `passes_descriptors` False: it has the server's own input and outputs.
        """
        if not self._state or self._read_at_import != _at_import(environment) or argv[0] != sys.executable:
            return None
        pipes = [os.pipe() if piped else None for piped in (output, errors)]
        readers = [os.fdopen(pipe[0], "rb") if pipe else None for pipe in pipes]
        descriptors = (0, *(pipe[1] if pipe else number for number, pipe in zip((1, 2), pipes, strict=True)))
        try:
            server.command_of(argv)
            body = json.dumps([list(argv), dict(environment), new_session]).encode()
            with _taking_orphans():
                pid = self._ask(body, descriptors if passes_descriptors else ())
            return ForkedProcess(pid, *readers)
        except (OSError, ValueError):
            self._state = False
            for reader in filter(None, readers):
                reader.close()
            return None
        finally:
            for pipe in filter(None, pipes):
                os.close(pipe[1])

    def close(self) -> None:
        """End the process."""
        self._state = False
        self._channel.close()
        if isinstance(self._process, subprocess.Popen):
            self._process.kill()
            self._process.wait()
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, 0)

    def _ask(self, body: bytes, descriptors: Sequence[int]) -> int:
        """Send a request and return the process id that answers it. Raises OSError."""
        self._channel.settimeout(_ANSWER_S)
        head = server.LENGTH.pack(len(body))
        if descriptors:
            socket.send_fds(self._channel, [head], list(descriptors))
        else:
            self._channel.sendall(head)
        self._channel.sendall(body)
        answer = self._channel.recv(server.LENGTH.size)
        if len(answer) < server.LENGTH.size:
            raise ConnectionResetError
        return int(server.LENGTH.unpack(answer)[0])


def fork_here() -> WaitingProcess | server.Request | None:
    """Fork this process into one that waits; None where a fork would not be whole.

    Return the waiting process to the caller, and its request to each process that it becomes.
    """
    if not server.is_forkable():
        return None
    here, there = socket.socketpair()
    pid = os.fork()
    if pid:
        there.close()
        return WaitingProcess(here, os.environ, pid)
    here.close()
    request = None
    with contextlib.suppress(OSError):
        request = server.serve(there)
    if request is None:
        os._exit(0)
    return request


@contextlib.contextmanager
def _taking_orphans() -> Iterator[None]:
    """Make this process the parent of descendants whose parents end. Raises OSError."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}
