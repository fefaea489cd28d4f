"""pyslurm in a process of its own: `python -m synergyd.slurm.pyslurm_process`.

A call of pyslurm keeps Python's lock until slurmctld has answered: in the daemon's own process a controller that hangs would stop
the thread that renews the lease, ticks and reports. An import without a configuration, or a fault in libslurm, ends the process. The
process takes one word a line, one of CALLS, and ends with its standard input, as it does with the daemon's death.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

from synergy_core.errors import one_line

from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.rows import JobRow, SlurmNodeRow
from synergyd.slurm.pyslurm_reader import PyslurmReader

_LENGTH = struct.Struct("<Q")
CALLS = ("version", "made_for", "jobs", "nodes")


class PyslurmProcess:
    """A SlurmReader, which is the daemon's end of the process.

    The process is started at the first call, and anew if one ended or gave no answer in time. `environment` is
    added to this process's own. Raises SlurmError from every method; one that is not transient says that this
    pyslurm does not work here.
    """

    name = "pyslurm"

    def __init__(self, environment: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._answered = False  # the process that runs now has answered
        self._said: IO[bytes] | None = None  # the errors that it writes

    def version(self) -> str:
        return str(self._ask("version"))

    def made_for(self) -> tuple[str, str]:
        """Return (pyslurm's own version, that of the libslurm it has loaded)."""
        own, library = self._ask("made_for")
        return str(own), str(library)

    def jobs(self) -> tuple[JobRow, ...]:
        return tuple(self._ask("jobs"))

    def nodes(self) -> tuple[SlurmNodeRow, ...]:
        return tuple(self._ask("nodes"))

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
        if self._said is not None:
            self._said.close()
            self._said = None

    def _ask(self, what: str) -> Any:
        end_s = time.monotonic() + self._timeout_s
        child = self._child or self._start()
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: the answer says so
                child.stdin.write(what.encode() + b"\n")
                child.stdin.flush()
            (length,) = _LENGTH.unpack(self._take(child, _LENGTH.size, end_s))
            fine, answer = pickle.loads(self._take(child, length, end_s))
        except BaseException:
            self.close()
            raise
        self._answered = True
        if not fine:
            where, what, transient = answer
            raise SlurmError(where, what, transient=transient)
        return answer

    def _take(self, child: subprocess.Popen[bytes], length: int, end_s: float) -> bytes:
        assert child.stdout is not None
        answer, ready = bytearray(), select.poll()  # select() takes no descriptor above 1023
        ready.register(child.stdout, select.POLLIN)
        while len(answer) < length:
            left_s = max(0.0, end_s - time.monotonic())
            if not ready.poll(1000 * left_s):
                what = f"no answer within {self._timeout_s:g} s (are slurmctld and munged up?)"
                raise SlurmError("pyslurm", what, transient=True)
            more = os.read(child.stdout.fileno(), length - len(answer))
            if not more:
                # one that has worked was ended by somebody, or by one bad answer: it is started anew
                raise SlurmError("pyslurm", f"its process ended: {self._last_words()}", transient=self._answered)
            answer += more
        return bytes(answer)

    def _start(self) -> subprocess.Popen[bytes]:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 `close` does
        self._answered = False
        command = [sys.executable, "-m", "synergyd.slurm.pyslurm_process"]
        try:
            self._child = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said
            )
        except OSError as error:
            raise SlurmError("pyslurm", f"can't be started: {error.strerror}", transient=True) from None
        return self._child

    def _last_words(self) -> str:
        if self._said is None:
            return ""
        self._said.seek(0)
        lines = [x for x in self._said.read(1 << 16).decode(errors="replace").splitlines() if x.strip()]
        return one_line(lines[-1], 200) if lines else "without a word"


def serve(reader: PyslurmReader, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until `requests` ends."""
    for line in requests:
        what = line.decode().strip()
        try:
            answer: tuple[bool, object] = True, getattr(reader, what)() if what in CALLS else None
        except SlurmError as error:
            answer = False, (error.where, error.what, error.transient)
        body = pickle.dumps(answer)
        answers.write(_LENGTH.pack(len(body)) + body)
        answers.flush()


def main() -> None:
    """Run the process. Output of pyslurm goes where its errors go: standard output is the daemon's."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        reader = PyslurmReader()
    except SlurmError as error:
        sys.exit(error.what)
    serve(reader, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
